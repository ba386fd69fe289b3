"""Pipeline files: what a file of `penstock pipeline run FILE.py` may contain; its parameters.

    def pipeline(spark, hubs, window="1 minute"):
        readings = hubs.read("telemetry")
        ...
        return hubs.write(averages, "averages")

The function gets `spark` and `hubs` if it has parameters of these names; further parameters have
defaults and are set with `--set`. The function returns what is to run: writers (`df.writeStream`),
queries that it started itself, DataFrames (whose rows are shown), or a list or a dict by name of
these. A file without such a function is run as a script, with `spark` and `hubs` as globals.
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
from penstock.spark.spark_session import option_texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

FUNCTION = "pipeline"
CONNECTION_VARIABLE = "PENSTOCK_CONNECTION_STRING"
SHOWN_ROWS_MAX = 1000  # of one batch, which passes through this process
_MODULE = "penstock_pipeline_file"
_QUERY_ID = "sql.streaming.queryId"  # Spark sets it for the thread that runs a batch
_PROVIDED = ("spark", "hubs")
_BOOLEANS = {
    **dict.fromkeys(("true", "yes", "on", "1"), True),
    **dict.fromkeys(("false", "no", "off", "0"), False),
}

ShowRows = Callable[[str, int, list[str]], None]  # query id, batch, rows as JSON


class PipelineResult(NamedTuple):
    """A query, a writer or a DataFrame that a pipeline function returned, perhaps with a name."""

    name: str | None
    value: Any


class PipelineFile:
    """A user's file. Nothing of it is executed before `run`."""

    def __init__(self, path: Path) -> None:
        """Raises ConfigurationError if the file is not Python; OSError."""
        self.path = path.resolve()
        self.name = path.stem
        try:
            tree = ast.parse(self.path.read_bytes(), filename=str(path))
        except (SyntaxError, ValueError) as error:
            raise ConfigurationError(f"{path} is not a Python file: {error}") from error
        functions = [
            node
            for node in tree.body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == FUNCTION
        ]
        self.is_script = not functions
        # A decorator may change the parameters: then they are known only after the file has run.
        is_plain = bool(functions) and not functions[-1].decorator_list
        self._parameters = _parameter_names(functions[-1]) if is_plain else None

    def check_names(self, names: Iterable[str]) -> None:
        """Raises ConfigurationError for a parameter that the file's function does not have. Does
        not execute the file, so that a typo is reported before Spark starts."""
        if self.is_script:
            if names := sorted(names):
                raise ConfigurationError(
                    f"{self.path.name} has no function {FUNCTION}(spark, hubs, ...) that could "
                    f"take {', '.join(names)}."
                )
        elif self._parameters is not None:
            _check_names(names, self._parameters, where=self.path.name)

    def run(
        self, spark: SparkSession, hubs: PipelineHubs, texts: Mapping[str, str]
    ) -> list[PipelineResult]:
        """Run the file with the parameters `texts`, and return what its function returned."""
        self.check_names(texts)
        if self.is_script:
            self._run_script(spark, hubs)
            return []
        function = getattr(self._import(), FUNCTION)
        arguments = parse_arguments(function, texts, where=self.path.name)
        for name, value in (("spark", spark), ("hubs", hubs)):
            if name in inspect.signature(function).parameters:
                arguments[name] = value
        return pipeline_results(function(**arguments), where=self.path.name)

    def _import(self) -> ModuleType:
        """Import the file, again at each attempt. Its functions are pickled by value, so that
        Spark's workers do not need the file."""
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
        own_arguments, sys.argv = sys.argv, [str(self.path)]
        try:
            runpy.run_path(
                str(self.path), init_globals={"spark": spark, "hubs": hubs}, run_name="__main__"
            )
        finally:
            sys.argv = own_arguments


class PipelineHubs:
    """The event hubs of one service: a pipeline only names a hub. `options` of the methods are
    those of the `eventhubs` format, and win over the ones given here."""

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

    def __repr__(self) -> str:  # the connection may hold a key
        return "<Hubs>"

    def options(self, hub: str) -> dict[str, str]:
        """Options for `spark.readStream.format("eventhubs").options(**hubs.options("name"))`."""
        return {**self._connection, "eventHubName": hub}

    def read(self, hub: str, **options: object) -> DataFrame:
        """A stream of the hub's events, with the nine columns of the format."""
        return self._load(self._spark.readStream, hub, options)

    def read_batch(self, hub: str, **options: object) -> DataFrame:
        """The events that the hub holds now, or the range that the options name."""
        return self._load(self._spark.read, hub, options)

    def write(
        self, frame: DataFrame, hub: str, *, output_mode: str = "append", **options: object
    ) -> DataStreamWriter:
        """A writer of rows to a hub. Without a column `body` each row becomes a JSON event; the
        columns `partitionKey`, `partitionId` and `properties` keep their meaning either way."""
        writer = as_events(frame).writeStream.format("eventhubs").outputMode(output_mode)
        return writer.options(**{**self.options(hub), **option_texts(options)})

    def show(
        self, frame: DataFrame, *, output_mode: str = "update", rows: int = SHOWN_ROWS_MAX
    ) -> DataStreamWriter:
        """A writer of up to `rows` rows per batch to the terminal, or as JSON lines to a pipe."""
        if self._is_remote:
            raise ConfigurationError(
                "Rows cannot be shown over Spark Connect: write them to a hub, "
                "hubs.write(frame, 'name'), or to files."
            )
        if not 1 <= rows <= SHOWN_ROWS_MAX:
            raise ArgumentError(f"show() takes rows=1 to {SHOWN_ROWS_MAX}, not {rows}.")
        from pyspark.sql.functions import struct, to_json

        show_rows = self._show

        def show_batch(batch: DataFrame, batch_id: int) -> None:
            query_id = batch.sparkSession.sparkContext.getLocalProperty(_QUERY_ID)
            texts = batch.select(to_json(struct("*"))).limit(rows).collect()
            show_rows(query_id or "", batch_id, [str(text[0]) for text in texts])

        return frame.writeStream.outputMode(output_mode).foreachBatch(show_batch)

    def _load(self, reader: Any, hub: str, options: Mapping[str, object]) -> DataFrame:
        merged = {**self._reading, **self.options(hub), **option_texts(options)}
        frame: DataFrame = reader.format("eventhubs").options(**merged).load()
        return frame


_EVENT_COLUMNS = ("body", "partitionKey", "partitionId", "properties")


def as_events(frame: DataFrame) -> DataFrame:
    """The frame itself if it has a column `body`; else its columns as a JSON body."""
    if "body" in frame.columns:
        return frame
    from pyspark.sql.functions import struct, to_json

    others = [name for name in frame.columns if name in _EVENT_COLUMNS]
    fields = [name for name in frame.columns if name not in _EVENT_COLUMNS]
    return frame.select(to_json(struct(*fields)).alias("body"), *others)


def pipeline_results(returned: object, *, where: str) -> list[PipelineResult]:
    """What a pipeline function returned, as a list. Raises ConfigurationError."""
    if returned is None:
        return []
    if isinstance(returned, Mapping):
        for name in returned:
            if not isinstance(name, str) or not name.strip():
                raise ConfigurationError(f"{where}: {FUNCTION}() named a query {name!r}.")
        results = [PipelineResult(name, value) for name, value in returned.items()]
    else:
        values = returned if isinstance(returned, list | tuple) else [returned]
        results = [PipelineResult(None, value) for value in values]
    for result in results:
        _check_result(result.value, where)
    return results


def _check_result(value: object, where: str) -> None:
    if is_frame(value) and not getattr(value, "isStreaming", True):
        raise ConfigurationError(
            f"{where}: {FUNCTION}() returned a DataFrame that is no stream: read it with "
            "hubs.read(hub) or spark.readStream."
        )
    if not is_query(value) and not is_writer(value) and not is_frame(value):
        raise ConfigurationError(
            f"{where}: {FUNCTION}() returned {type(value).__name__}: it returns writers "
            "(df.writeStream...), started queries, streaming DataFrames, a list or a dict of them, "
            "or None if it started all of them."
        )


def is_query(value: object) -> bool:
    return hasattr(value, "awaitTermination") and hasattr(value, "lastProgress")


def is_writer(value: object) -> bool:
    return hasattr(value, "queryName") and hasattr(value, "start")


def is_frame(value: object) -> bool:
    # By its class: the attribute of a DataFrame itself creates a writer, which takes a query name.
    return hasattr(type(value), "isStreaming") and hasattr(type(value), "writeStream")


def start_results(results: Iterable[PipelineResult], hubs: PipelineHubs) -> None:
    """Start what is not a started query."""
    for name, value in results:
        if is_query(value):
            continue
        writer = hubs.show(value) if is_frame(value) else value
        if name is not None:
            writer = writer.queryName(name)
        writer.start()


def parse_arguments(
    function: Callable[..., object], texts: Mapping[str, str], *, where: str
) -> dict[str, Any]:
    """Convert texts to the types of the parameters' defaults. Raises ConfigurationError, also for a
    parameter without a default."""
    defaults: dict[str, object] = {}
    for parameter in inspect.signature(function).parameters.values():
        is_variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        if is_variable or parameter.name in _PROVIDED:
            continue
        if parameter.default is parameter.empty:
            raise ConfigurationError(
                f"{where}: the parameter '{parameter.name}' of {FUNCTION}() needs a default: only "
                "spark and hubs are provided."
            )
        defaults[parameter.name] = parameter.default
    _check_names(texts, list(defaults), where=where)
    return {name: _convert(name, text, defaults[name], where) for name, text in texts.items()}


def _convert(name: str, text: str, default: object, where: str) -> object:
    try:
        if isinstance(default, bool):
            return _BOOLEANS[text.lower()]
        if isinstance(default, int | float):
            return type(default)(text)
    except (KeyError, ValueError):
        raise ConfigurationError(
            f"{where}: {name} is {type(default).__name__}, as its default {default!r}: '{text}' is "
            "not."
        ) from None
    return text


def _check_names(names: Iterable[str], allowed: Sequence[str], *, where: str) -> None:
    for name in names:
        if name not in allowed:
            near = get_close_matches(name, allowed, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            parameters = f"it has {', '.join(allowed)}" if allowed else "it has none"
            raise ConfigurationError(f"{where} has no parameter '{name}': {parameters}.{hint}")


def _parameter_names(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    arguments = function.args
    nodes = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
    return [node.arg for node in nodes if node.arg not in _PROVIDED]
