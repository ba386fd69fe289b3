"""Pipeline files: what `penstock pipeline run FILE.py` expects of a file, and what it hands to it.

    def pipeline(spark, hubs, window="1 minute"):
        readings = hubs.read("telemetry")
        ...
        return hubs.write(averages, "averages")

`spark` and `hubs` are given by name, in any order, to whoever wants them; further parameters have
defaults and are set from outside. The function returns what is to run: writers (`df.writeStream`),
queries it started itself, DataFrames (whose rows are shown), a list or a dict by name of these. A
file without such a function is run as a script, with `spark` and `hubs` as globals.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import runpy
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock.model.errors import ArgumentError, ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FUNCTION = "pipeline"
CONNECTION_VARIABLE = "PENSTOCK_CONNECTION_STRING"
SHOWN_ROWS_MAX = 1000  # of one batch: it passes through this process
_MODULE = "penstock_pipeline_file"
_QUERY_ID = "sql.streaming.queryId"  # Spark sets it for the thread that runs a batch
_OURS = ("spark", "hubs")
_YES = frozenset(("true", "yes", "on", "1"))
_NO = frozenset(("false", "no", "off", "0"))

ShowRows = Callable[[str, int, list[str]], None]  # query id, batch, rows as JSON


class PipelineParameter(NamedTuple):
    """One that is set from outside."""

    name: str
    kind: type
    default: Any


class PipelineResult(NamedTuple):
    """A query, a writer or a DataFrame; the name is None where none was given."""

    name: str | None
    what: Any


class PipelineFile:
    """A file of the user's. Reading it runs nothing; `load` runs its top level."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError for what is no Python; OSError."""
        self.path = path.resolve()
        self.name = path.stem
        try:
            tree = ast.parse(self.path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(f"{path} is no Python that can be run: {error}") from error
        self.summary = (ast.get_docstring(tree) or "").partition("\n")[0]
        functions = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == FUNCTION
        ]
        self.is_script = not functions
        # A decorator may give the function other parameters: then only running the file shows them.
        is_plain = bool(functions) and not functions[-1].decorator_list
        self._parameters = _parameter_names(functions[-1]) if is_plain else None

    def check_names(self, given: Iterable[str]) -> None:
        """Raises ConfigurationError for a parameter that the file's function does not have. Runs
        nothing of the file, so a typo is reported before Spark starts."""
        if self.is_script:
            if given := sorted(given):
                raise ConfigurationError(
                    f"{self.path.name} has no function {FUNCTION}(spark, hubs, ...) that could "
                    f"take {', '.join(given)}."
                )
        elif self._parameters is not None:
            _check_names(given, self._parameters, where=self.path.name)

    def run(
        self, spark: SparkSession, hubs: PipelineHubs, given: Mapping[str, str]
    ) -> list[PipelineResult]:
        """Run it; what it gave back, to be started yet or not."""
        self.check_names(given)
        if self.is_script:
            self._run_script(spark, hubs)
            return []
        function = getattr(self._load(), FUNCTION)
        arguments = select_arguments(function, given, where=self.path.name)
        wanted = inspect.signature(function).parameters
        ours = {"spark": spark, "hubs": hubs}
        mine = {name: value for name, value in ours.items() if name in wanted}
        return pipeline_results(function(**mine, **arguments), where=self.path.name)

    def _load(self) -> ModuleType:
        """Anew at each attempt. Its functions go to Spark's workers by value: no worker needs the
        file."""
        from pyspark import cloudpickle

        spec = importlib.util.spec_from_file_location(_MODULE, self.path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[_MODULE] = module
        spec.loader.exec_module(module)
        by_value: Any = cloudpickle
        by_value.register_pickle_by_value(module)
        return module

    def _run_script(self, spark: SparkSession, hubs: PipelineHubs) -> None:
        kept, sys.argv = sys.argv, [str(self.path)]
        try:
            runpy.run_path(
                str(self.path), init_globals={"spark": spark, "hubs": hubs}, run_name="__main__"
            )
        finally:
            sys.argv = kept


class PipelineHubs:
    """The event hubs of one service, wired: a pipeline names a hub and nothing else.

    `options` are those of the `eventhubs` format; what a call says wins."""

    def __init__(
        self,
        spark: SparkSession,
        connection: Mapping[str, str],
        *,
        reading: Mapping[str, str],
        show: ShowRows,
        is_remote: bool = False,
    ) -> None:
        self._spark = spark
        self._connection = dict(connection)
        self._reading = dict(reading)
        self._show = show
        self._is_remote = is_remote

    def __repr__(self) -> str:  # it may hold a key
        return "<Hubs>"

    def options(self, hub: str) -> dict[str, str]:
        """For `spark.readStream.format("eventhubs").options(**hubs.options("telemetry"))`."""
        return {**self._connection, "eventHubName": hub}

    def read(self, hub: str, **options: object) -> DataFrame:
        """A stream of its events, with the nine columns of the format."""
        return self._reader(self._spark.readStream, hub, options)

    def read_batch(self, hub: str, **options: object) -> DataFrame:
        """What it holds now, or the range that the options name."""
        return self._reader(self._spark.read, hub, options)

    def write(
        self, frame: DataFrame, hub: str, *, output_mode: str = "append", **options: object
    ) -> DataStreamWriter:
        """Rows into a hub. Without a column `body` each row becomes an event of JSON; the columns
        `partitionKey`, `partitionId` and `properties` keep their meaning either way."""
        wanted = {**self.options(hub), **_option_texts(options)}
        return (
            as_events(frame)
            .writeStream.format("eventhubs")
            .options(**wanted)
            .outputMode(output_mode)
        )

    def show(
        self, frame: DataFrame, *, output_mode: str = "update", rows: int = SHOWN_ROWS_MAX
    ) -> DataStreamWriter:
        """Rows of each batch onto the terminal, or as JSON lines into a pipe."""
        if self._is_remote:
            raise ConfigurationError(
                "Rows cannot be shown over Spark Connect, whose server would show them: "
                "write them to a hub, hubs.write(frame, 'name'), or to files."
            )
        if not 1 <= rows <= SHOWN_ROWS_MAX:
            raise ArgumentError(f"show() takes rows=1 to {SHOWN_ROWS_MAX}, not {rows}.")
        from pyspark.sql.functions import struct, to_json

        tell = self._show

        def show(batch: DataFrame, batch_id: int) -> None:
            query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            texts = batch.select(to_json(struct("*"))).limit(rows).collect()
            tell(query_id or "", batch_id, [str(text[0]) for text in texts])

        return frame.writeStream.outputMode(output_mode).foreachBatch(show)

    def _reader(self, reader: Any, hub: str, options: Mapping[str, object]) -> DataFrame:
        wanted = {**self._reading, **self.options(hub), **_option_texts(options)}
        found: DataFrame = reader.format("eventhubs").options(**wanted).load()
        return found


_EVENT_COLUMNS = ("body", "partitionKey", "partitionId", "properties")


def as_events(frame: DataFrame) -> DataFrame:
    """With a column `body`: as it is, else every other column as JSON."""
    if "body" in frame.columns:
        return frame
    from pyspark.sql.functions import struct, to_json

    kept = [name for name in frame.columns if name in _EVENT_COLUMNS]
    rest = [name for name in frame.columns if name not in _EVENT_COLUMNS]
    return frame.select(to_json(struct(*rest)).alias("body"), *kept)


def pipeline_results(returned: object, *, where: str) -> list[PipelineResult]:
    """What a pipeline function gave back. Raises ConfigurationError."""
    if returned is None:
        return []
    if isinstance(returned, Mapping):
        named = []
        for name, each in returned.items():
            if not isinstance(name, str) or not name.strip():
                raise ConfigurationError(f"{where}: {FUNCTION}() named a query {name!r}.")
            named.append(PipelineResult(name, _check_result(each, where)))
        return named
    several = returned if isinstance(returned, list | tuple) else [returned]
    return [PipelineResult(None, _check_result(each, where)) for each in several]


def _check_result(each: object, where: str) -> object:
    if is_frame(each) and not getattr(each, "isStreaming", True):
        raise ConfigurationError(
            f"{where}: {FUNCTION}() returned a DataFrame that is no stream: read it with "
            "hubs.read(hub) or spark.readStream."
        )
    if not is_query(each) and not is_writer(each) and not is_frame(each):
        raise ConfigurationError(
            f"{where}: {FUNCTION}() returned {type(each).__name__}: it returns writers "
            "(df.writeStream...), started queries, streaming DataFrames, a list or a dict of them, "
            "or None when it started all of them."
        )
    return each


def is_query(each: object) -> bool:
    return hasattr(each, "awaitTermination") and hasattr(each, "lastProgress")


def is_writer(each: object) -> bool:
    return hasattr(each, "queryName") and hasattr(each, "start")


def is_frame(each: object) -> bool:
    # Of its class: to look at a DataFrame's own makes a writer, which takes a name.
    return hasattr(type(each), "isStreaming") and hasattr(type(each), "writeStream")


def select_arguments(
    function: Callable[..., object], given: Mapping[str, str], *, where: str
) -> dict[str, Any]:
    """Texts from outside as the function's own types. Raises ConfigurationError."""
    known = {each.name: each for each in parameters(function, where=where)}
    _check_names(given, list(known), where=where)
    return {name: _convert_parameter(text, known[name], where) for name, text in given.items()}


def _check_names(given: Iterable[str], known: Sequence[str], *, where: str) -> None:
    for name in given:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigurationError(f"{where} has no parameter '{name}': {has}.{hint}")


def _parameter_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [each.arg for each in every if each.arg not in _OURS]


def parameters(function: Callable[..., object], *, where: str) -> list[PipelineParameter]:
    """Those beside `spark` and `hubs`. Raises ConfigurationError for one without a default."""
    found = []
    for each in inspect.signature(function).parameters.values():
        if each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) or each.name in _OURS:
            continue
        if each.default is each.empty:
            raise ConfigurationError(
                f"{where}: {FUNCTION}() wants '{each.name}', which nobody gives: there are spark "
                "and hubs, and parameters with a default."
            )
        kind = type(each.default)
        found.append(PipelineParameter(each.name, kind, each.default))
    return found


def _convert_parameter(text: str, parameter: PipelineParameter, where: str) -> object:
    try:
        if parameter.kind is bool:
            if text.lower() not in _YES | _NO:
                raise ValueError
            return text.lower() in _YES
        if parameter.kind in (int, float):
            return parameter.kind(text)
    except ValueError:
        raise ConfigurationError(
            f"{where}: {parameter.name} is {parameter.kind.__name__}, as its default "
            f"{parameter.default!r}: '{text}' is not."
        ) from None
    return text


def _option_texts(options: Mapping[str, object]) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if value is not None
    }


def start_result(found: Iterable[PipelineResult], hubs: PipelineHubs) -> None:
    """What has not been started; whoever listens at `query_defaults` hears of each."""
    for name, each in found:
        if is_query(each):
            continue
        writer = hubs.show(each) if is_frame(each) else each
        if name is not None:
            writer = writer.queryName(name)
        writer.start()
