"""`penstock pipeline run|list`: Structured Streaming jobs on the service's event hubs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Self

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.events_options import EventsEndpoint, with_events
from penstock.cli.options import argument, option, parse_seconds
from penstock.cli.output import TABLE, Format, print_message
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.model.errors import ConfigurationError, PenstockError
from penstock.model.extras import require_extra

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.spark.pipeline_display import PipelineDisplay
    from penstock.management.client import ManagementClient
    from penstock.spark.pipelines.pipeline_file import PipelineFile, PipelineHubs, ShowRows
    from penstock.spark.pipelines.runner import PipelineRun, RunSettings

app = CommandGroup("Stream processing on Spark.")

_SETTING = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
_RESTARTS_MAX = 1_000_000
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_SIGNALS_JOIN_S = 5.0
_REPORT_INTERVAL_S = 5.0
_REPORT_TIMEOUT_S = 5.0
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAME_MAX, _TEXT_MAX, _ERROR_MAX = 128, 512, 4096
_CHECKPOINT = "spark.sql.streaming.checkpointLocation"
_LOCAL_REMOTE = re.compile(r"local|sc://(localhost|127\.0\.0\.1|\[::1\])(?![^:/;])")
_spark_option = partial(option, rich_help_panel="Spark")


@dataclass(kw_only=True)
class _PipelineOptions:
    file: Annotated[Path, argument("FILE", "Defines pipeline()")]
    set_: Annotated[
        list[str] | None, option("--set NAME=VALUE", "A parameter of pipeline(); repeatable")
    ] = None
    name: Annotated[
        str | None, option("TEXT", "Name of the job and its queries [default: name of the file]")
    ] = None
    checkpoint: Annotated[
        str | None, option("DIR", "Directory for progress; without it a new run starts over")
    ] = None
    from_: Annotated[
        str, option("--from POSITION", "Where a new query begins: earliest, latest")
    ] = "latest"
    group: Annotated[str, option("--group -g TEXT", "Consumer group")] = "$Default"
    trigger: Annotated[str | None, option("TIME", "Interval between batches [default: 1s]")] = None
    available_now: Annotated[
        bool, option("--available-now", "Process the events that exist, then end")
    ] = False
    restart: Annotated[str, option("TIMES", "Restarts after a failure: a number, or always")] = "0"
    stop_timeout: Annotated[str, option("TIME", "How long a stop waits for the batch to end")] = (
        "60s"
    )
    master: Annotated[
        str | None, _spark_option("URL", "Spark master: local[*] (default), spark://, yarn, k8s://")
    ] = None
    remote: Annotated[
        str | None, _spark_option("URL", "A Spark Connect server: sc://HOST:PORT")
    ] = None
    conf: Annotated[
        list[str] | None, _spark_option("spark.NAME=VALUE", "A setting of Spark; repeatable")
    ] = None
    spark_log: Annotated[
        str | None, _spark_option("FILE|-", "File for Spark's own log; -: stderr")
    ] = None
    every: Annotated[str, option("TIME", "Interval between lines, without a terminal")] = "10s"
    output: Format = TABLE
    quiet: Annotated[bool, option("--quiet -q", "Print only rows and errors")] = False

    def __post_init__(self) -> None:
        """Raises typer.BadParameter."""
        self.spark_conf = _parse_pairs(self.conf, "--conf", what="spark.NAME=VALUE", form=_SETTING)
        self.chosen_master = self.master or self.spark_conf.get("spark.master")


@app.verb(options=with_events)
def run(wire: EventsEndpoint, options: _PipelineOptions) -> None:
    """Run a Structured Streaming job with a session and a source for the service.

    The file defines `def pipeline(spark, hubs)` and returns what is to run
    (docs/guides/pipelines.md).
    Ctrl-C and SIGTERM end the job when its batch is done; a second one ends it at once.

    Examples:
        penstock pipeline run windows.py --checkpoint checkpoints/windows
        penstock pipeline run windows.py --set device=a --from earliest --available-now
    """
    from penstock.cli.spark.pipeline_display import open_display
    from penstock.spark.pipelines.pipeline_file import PipelineFile
    from penstock.spark.pipelines.runner import RunSettings

    if options.master is not None and options.remote is not None:
        raise typer.BadParameter("--master and --remote exclude each other.")
    if options.trigger is not None and options.available_now:
        raise typer.BadParameter("--trigger and --available-now exclude each other.")
    interval_ms = round(parse_seconds(options.trigger or "1s", option="--trigger") * 1000)
    every_s = parse_seconds(options.every, option="--every")
    settings = RunSettings(
        name=options.name or options.file.stem,
        arguments=_parse_pairs(options.set_, "--set", what="NAME=VALUE"),
        trigger={"availableNow": True}
        if options.available_now
        else {"processingTime": f"{interval_ms} milliseconds"},
        is_trigger_forced=options.available_now or options.trigger is not None,
        restarts_max=_parse_restarts(options.restart),
        stop_s=parse_seconds(options.stop_timeout, option="--stop-timeout"),
    )
    pipeline = PipelineFile(options.file)
    pipeline.check_names(settings.arguments)
    shown = open_display(options.output, every_s=every_s, is_quiet=options.quiet)
    with closing(shown):
        _run(wire, options, pipeline, settings, shown)


@app.verb("list", options=with_whole_service)
def list_(service: AdminSession, output: Format = TABLE) -> None:
    """List the jobs that reported to the service: pipelines, Capture.

    Examples:
        penstock pipeline list
    """
    columns = ("name", "kind", "state", "rows_per_second", "lag_events", "batch_seconds", "master")
    output.print_rows(service.client.jobs(), title="Jobs", columns=columns)


def _run(
    wire: EventsEndpoint,
    options: _PipelineOptions,
    file: PipelineFile,
    settings: RunSettings,
    shown: PipelineDisplay,
) -> None:
    require_extra("spark" if options.remote is None else "connect")
    from penstock.spark.launcher import JvmLauncher
    from penstock.spark.pipelines.runner import PipelineRun

    name, where = settings.name, options.chosen_master or options.remote or "local[*]"
    with ExitStack() as stack:
        signals = stack.enter_context(StopSignals(shown.show_message))
        scratch = Path(tempfile.mkdtemp(prefix="penstock-pipeline-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        log = None
        if options.spark_log != "-":
            log = Path(options.spark_log) if options.spark_log else scratch / "spark.log"
        reporter = stack.enter_context(report_job(name, where, wire))
        _prepare_environment(wire, str(file.path.parent))
        shown.show_starting(name, where)
        launcher = stack.enter_context(
            JvmLauncher(
                app_name=f"penstock {name}",
                master=options.chosen_master,
                remote=options.remote,
                conf=_with_checkpoint(options, scratch),
                log=log,
            )
        )

        def start_spark() -> SparkSession:
            spark = launcher.start()
            ui_url = None if options.remote is not None else spark.sparkContext.uiWebUrl
            reporter.ui_url = ui_url or ""
            signals.install()  # again: Spark's own handler would cancel the batch
            shown.show_started(ui_url, options.checkpoint)
            return spark

        pipeline = PipelineRun(
            start_spark(),
            file,
            settings,
            shown,
            hubs=partial(_make_hubs, wire, options),
            restart_spark=start_spark if options.remote is None else None,
        )
        reporter.run = pipeline
        signals.forward(pipeline.ask_to_stop)
        try:
            pipeline.run()
        except BaseException:
            _show_log(log, scratch)
            raise
    shown.show_ended()


def _show_log(log: Path | None, scratch: Path) -> None:
    if log is None or not log.exists():
        return  # over Spark Connect the server has it
    if log.is_relative_to(scratch):
        copy = Path(tempfile.mkdtemp(prefix="penstock-spark-log-")) / "spark.log"
        log = Path(shutil.copy(log, copy))
    print_message(f"Spark's own log: {log}")


def _parse_restarts(text: str) -> int | None:
    if text == "always":
        return None
    if text.isascii() and text.isdigit() and int(text[:8]) <= _RESTARTS_MAX:
        return int(text)
    raise typer.BadParameter(f"'{text}' is neither a number nor 'always'.", param_hint="--restart")


def _parse_pairs(
    texts: list[str] | None, option: str, *, what: str, form: re.Pattern[str] | None = None
) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or (form is not None and not form.fullmatch(name)):
            shown = name if equals else text  # the value may be a secret
            raise typer.BadParameter(f"'{shown}' is not {what}.", param_hint=option)
        pairs[name] = value
    return pairs


def _prepare_environment(wire: EventsEndpoint, folder: str) -> None:
    """Pass the connection to the JVM, and through it to the source's processes, by the environment:
    other users can see command-line arguments."""
    from penstock.spark.pipelines.pipeline_file import CONNECTION_VARIABLE

    os.environ[CONNECTION_VARIABLE] = wire.connection_string
    if wire.data is not None:
        os.environ["PENSTOCK_DATA"] = str(wire.data.absolute())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # modules beside the file can be imported, as by python FILE.py
    paths = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if folder not in paths:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *paths])


def _with_checkpoint(options: _PipelineOptions, scratch: Path) -> dict[str, str]:
    """Spark's settings, with a directory for checkpoints."""
    checkpoint, remote = options.checkpoint, options.remote
    if checkpoint is not None:
        if remote is None and "://" not in checkpoint:
            checkpoint = Path(checkpoint).absolute().as_uri()
        return {_CHECKPOINT: checkpoint, **options.spark_conf}
    if _CHECKPOINT not in options.spark_conf and remote and not _LOCAL_REMOTE.match(remote):
        raise ConfigurationError(
            "--remote needs --checkpoint: a directory that the server can write to, as the "
            "server names it."
        )
    # For this run only: a query that is restarted continues where it was.
    return {_CHECKPOINT: (scratch / "checkpoints").as_uri(), **options.spark_conf}


def _make_hubs(
    wire: EventsEndpoint, options: _PipelineOptions, spark: SparkSession, show: ShowRows
) -> PipelineHubs:
    from penstock.spark.pipelines.pipeline_file import CONNECTION_VARIABLE, PipelineHubs

    is_remote = options.remote is not None
    connection: dict[str, Any] = {"operationTimeout": f"{wire.timeout_s:g}s"}
    if is_remote:
        connection["connectionString"] = wire.connection_string
    else:
        connection["connectionString.env"] = CONNECTION_VARIABLE
    if wire.resolved_ca_file and wire.endpoint.tls:
        connection["tls.caFile"] = wire.resolved_ca_file
    if wire.websocket:
        connection["transport"] = "wss"
    reading = {"startingPosition": options.from_, "consumerGroup": options.group}
    return PipelineHubs(spark, connection, reading=reading, show=show, is_remote=is_remote)


# --- signals --------------------------------------------------------------------------------------


class StopSignals:
    """SIGINT and SIGTERM ask a pipeline to stop, also before it has started. `install` sets the
    handlers; `forward` names the function that signals call from then on.

    A signal handler interrupts the main thread, which may hold the lock that printing or an Event
    needs: the handler would deadlock. So the handler only puts the signal into a queue that is safe
    to enter again, and a thread does the rest.
    """

    def __init__(self, show_message: Callable[[str], None]) -> None:
        self._show_message = show_message
        self._handlers = {number: signal.getsignal(number) for number in _SIGNALS}
        self._thread: threading.Thread | None = None
        self._is_pending = False  # a signal came before `forward`
        self._queue: SimpleQueue[bool] = SimpleQueue()  # False ends the thread

    def __enter__(self) -> Self:
        self.install()
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._thread is not None:
            self._queue.put(False)
            self._thread.join(_SIGNALS_JOIN_S)

    def install(self) -> None:
        for number in _SIGNALS:
            signal.signal(number, self._on_signal)

    def forward(self, ask_to_stop: Callable[[], bool]) -> None:
        """`ask_to_stop` returns whether it was called for the first time."""
        self._thread = threading.Thread(
            target=self._run, args=(ask_to_stop,), name="penstock-signals", daemon=True
        )
        self._thread.start()
        if self._is_pending:
            self._queue.put(True)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._thread is not None:
            self._queue.put(True)
        elif self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True

    def _run(self, ask_to_stop: Callable[[], bool]) -> None:
        while self._queue.get():
            if ask_to_stop():
                self._show_message(
                    "Stopping after the current batch; a second signal stops at once."
                )


# --- reports to the service -----------------------------------------------------------------------


class JobReporter:
    """Sends the pipeline's last snapshot to its service every few seconds. Set `run` when there is
    one. It has a thread of its own: a service that is slow or stopped never delays a batch."""

    def __init__(self, client: ManagementClient | None, name: str, master: str) -> None:
        self.run: PipelineRun | None = None
        self.ui_url = ""
        self._client = client
        self._name = name[:_NAME_MAX]
        self._master = master[:_TEXT_MAX]

    def send_until(self, ended: threading.Event) -> None:
        self.send("Starting")
        while not ended.wait(_REPORT_INTERVAL_S):
            self.send(None)

    def send(self, state: str | None) -> None:
        """`state` None: that of the last snapshot."""
        if self._client is None:
            return
        snapshot = None if self.run is None else self.run.snapshot
        try:
            self._client.put_job(
                self._name,
                kind="pipeline",
                state=state or ("Starting" if snapshot is None else snapshot.state),
                pid=os.getpid(),
                master=self._master,
                ui_url=self.ui_url[:_TEXT_MAX],
                rows_per_second=None if snapshot is None else round(snapshot.rows_per_second, 1),
                batch_seconds=None if snapshot is None else snapshot.batch_seconds,
                lag_events=None if snapshot is None else snapshot.lag_events,
                last_error="" if snapshot is None else snapshot.last_error[:_ERROR_MAX],
            )
        except (PenstockError, OSError):
            return  # the next report replaces this one


@contextmanager
def report_job(name: str, master: str, endpoint: EventsEndpoint) -> Iterator[JobReporter]:
    """Report to the service that flags, environment or directory name, if there is one."""
    reporter = JobReporter(_find_client(endpoint), name, master)
    ended = threading.Event()
    thread = threading.Thread(
        target=reporter.send_until, args=(ended,), name="penstock-job", daemon=True
    )
    thread.start()
    state = "Failed"
    try:
        yield reporter
        state = "Stopped"
    finally:
        ended.set()
        thread.join(_REPORT_TIMEOUT_S * 2)
        reporter.send(state)


def _find_client(endpoint: EventsEndpoint) -> ManagementClient | None:
    """Only if events and administration are of one service: a pipeline that reads from Azure is not
    reported to the service that happens to run in ./penstock-data."""
    is_named = endpoint.data is not None or endpoint.context is not None
    is_local = endpoint.endpoint.host in _LOOPBACK
    if not (is_named or is_local or os.environ.get("PENSTOCK_ADMIN_URL")):
        return None
    try:
        return endpoint.find_admin().client(timeout_s=_REPORT_TIMEOUT_S)
    except (PenstockError, OSError):
        return None
