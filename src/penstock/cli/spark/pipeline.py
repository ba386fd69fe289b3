"""`penstock pipeline run|list`: Structured Streaming jobs with session and source wired."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.events_options import EventsEndpoint, with_events
from penstock.cli.output import Format, OutputFormat, format_seconds, print_message, print_rows
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.cli.spark import pipeline_options as options
from penstock.cli.spark.job_reporter import JobReporter, report_job
from penstock.cli.spark.stop_signals import stop_signals
from penstock.cli.units import parse_seconds
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.spark.pipelines.pipeline_file import PipelineHubs, ShowRows
    from penstock.spark.pipelines.runner import PipelineRun, PipelineWatcher, RunSettings

app = CommandGroup("Stream processing on Spark.")

_PACKAGES = "pip install 'penstock[spark]'"
_SETTING = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
_RESTARTS_MAX = 1_000_000
_CHECKPOINT = "spark.sql.streaming.checkpointLocation"
_NEAR = re.compile(r"local|sc://(localhost|127\.0\.0\.1|\[::1\])(?![^:/;])")


@app.verb()
@with_events
def run(
    wire: EventsEndpoint,
    file: options.File,
    set_: options.Set = None,
    name: options.Name = None,
    checkpoint: options.Checkpoint = None,
    from_: options.From = "latest",
    group: options.Group = "$Default",
    trigger: options.Trigger = None,
    available_now: options.AvailableNow = False,
    restart: options.Restart = "0",
    stop_timeout: options.StopTimeout = "60s",
    master: options.Master = None,
    remote: options.Remote = None,
    conf: options.Conf = None,
    spark_log: options.SparkLog = None,
    every: options.Every = "10s",
    output: Format = OutputFormat.TABLE,
    quiet: options.Quiet = False,
) -> None:
    """Run a Structured Streaming job: the session and the source are wired.

    The file defines `def pipeline(spark, hubs)` and returns what is to run; docs/pipelines.md has
    the whole of it. Ctrl-C and SIGTERM end it when its batch is done; a second one ends it now.
    """
    from penstock.spark.pipelines.pipeline_file import PipelineFile

    found = PipelineFile(file)
    label = name or found.name
    conf_given = _parse_pairs(conf, "--conf", what="spark.NAME=VALUE", form=_SETTING)
    if master is not None and remote is not None:
        raise typer.BadParameter("--master and --remote exclude each other.")
    job = _PipelineOptions(
        wire=wire,
        file=file.resolve(),
        label=label,
        checkpoint=checkpoint,
        reading={"startingPosition": from_, "consumerGroup": group},
        settings=_settings(label, set_, trigger, available_now, restart, stop_timeout),
        master=master or conf_given.get("spark.master"),
        remote=remote,
        conf=conf_given,
        spark_log=spark_log,
    )
    found.check_names(job.settings.arguments)
    from penstock.cli.spark.pipeline_display import display

    with display(output, every_s=parse_seconds(every, option="--every"), is_quiet=quiet) as watcher:
        _run(job, found, watcher)


@app.verb("list")
@with_whole_service
def list_(service: AdminSession, output: Format = OutputFormat.TABLE) -> None:
    """Jobs as they reported themselves: pipelines, Capture."""
    rows = service.client.jobs()
    columns = ("name", "kind", "state", "rows_per_second", "lag_events", "batch_seconds", "master")
    shown = {"batch_seconds": format_seconds, "rows_per_second": _rate}
    print_rows(rows, output, title="Jobs", columns=columns, shown=shown)


class _PipelineOptions:
    """What the options said."""

    def __init__(self, **given: Any) -> None:
        self.wire: EventsEndpoint = given["wire"]
        self.file: Path = given["file"]
        self.label: str = given["label"]
        self.checkpoint: str | None = given["checkpoint"]
        self.reading: dict[str, str] = given["reading"]
        self.settings: RunSettings = given["settings"]
        self.master: str | None = given["master"]
        self.remote: str | None = given["remote"]
        self.conf: dict[str, str] = given["conf"]
        self.spark_log: str | None = given["spark_log"]


def _run(job: _PipelineOptions, file: Any, watcher: Any) -> None:
    """Everything that is opened is closed again, in the reverse order."""
    _check_packages(job.remote)
    from penstock.spark.launcher import JvmLauncher
    from penstock.spark.pipelines.runner import PipelineRun

    with ExitStack() as stack:
        asked = stack.enter_context(stop_signals(watcher.note))
        scratch = Path(tempfile.mkdtemp(prefix="penstock-pipeline-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        log = _log_file(job, scratch)
        reporter = stack.enter_context(report_job(job.label, job.master or job.remote, job.wire))
        _prepare_environment(job)
        watcher.show_starting(job.label, job.master or job.remote or "local[*]")
        launcher = stack.enter_context(
            JvmLauncher(
                app_name=f"penstock {job.label}",
                master=job.master,
                remote=job.remote,
                conf=_conf(job, scratch),
                log=log,
            )
        )

        def start() -> SparkSession:
            spark = launcher.start()
            ui_url = None if job.remote is not None else spark.sparkContext.uiWebUrl
            reporter.ui_url = ui_url or ""
            asked.claim()  # Spark's own handler would cancel the batch
            watcher.show_started(ui_url, job.checkpoint)
            return spark

        running = PipelineRun(
            start(),
            file,
            job.settings,
            _WatcherPair(watcher, reporter),
            hubs=_hubs(job),
            renew=start if job.remote is None else None,
        )
        asked.answer(running)
        _finish(running, reporter, log, scratch)
    watcher.show_ended()


def _finish(running: PipelineRun, reporter: JobReporter, log: Path | None, scratch: Path) -> None:
    try:
        running.run()
    except BaseException:
        reporter.is_failed = True
        if log is not None and not log.exists():
            log = None  # over Spark Connect the server has it
        if log is not None and log.is_relative_to(scratch):
            kept = Path(tempfile.mkdtemp(prefix="penstock-spark-log-")) / "spark.log"
            shutil.copy(log, kept)
            log = kept
        if log is not None:
            print_message(f"Spark's own log: {log}")
        raise


class _WatcherPair:
    """The person and the service look on."""

    def __init__(self, watcher: PipelineWatcher, reporter: JobReporter) -> None:
        self._watcher = watcher
        self._reporter = reporter
        self.rows, self.note = watcher.rows, watcher.note

    def saw(self, shot: Any) -> None:
        self._watcher.saw(shot)
        self._reporter.saw(shot)


# --- options --------------------------------------------------------------------------------------


def _settings(
    label: str,
    set_: list[str] | None,
    trigger: str | None,
    available_now: bool,
    restart: str,
    stop_timeout: str,
) -> RunSettings:
    from penstock.spark.pipelines.runner import RunSettings

    if available_now and trigger is not None:
        raise typer.BadParameter("--trigger and --available-now exclude each other.")
    if available_now:
        wanted: dict[str, Any] = {"availableNow": True}
    else:
        between_s = parse_seconds(trigger or "1s", option="--trigger")
        wanted = {"processingTime": f"{round(between_s * 1000)} milliseconds"}
    return RunSettings(
        name=label,
        arguments=_parse_pairs(set_, "--set", what="NAME=VALUE"),
        trigger=wanted,
        is_trigger_forced=available_now or trigger is not None,
        restarts_max=_restarts(restart),
        stop_s=parse_seconds(stop_timeout, option="--stop-timeout"),
    )


def _restarts(text: str) -> int | None:
    if text == "always":
        return None
    if text.isascii() and text.isdigit() and int(text[:8]) <= _RESTARTS_MAX:
        return int(text)
    raise typer.BadParameter(f"'{text}' is neither a number nor 'always'.", param_hint="--restart")


def _parse_pairs(
    given: list[str] | None, option: str, *, what: str, form: re.Pattern[str] | None = None
) -> dict[str, str]:
    found: dict[str, str] = {}
    for each in given or ():
        name, equals, value = each.partition("=")
        if not equals or not name or (form is not None and not form.fullmatch(name)):
            shown = name if equals else each  # a value may be a secret
            raise typer.BadParameter(f"'{shown}' is not {what}.", param_hint=option)
        found[name] = value
    return found


def _check_packages(remote: str | None) -> None:
    from importlib.util import find_spec

    lacking = [each for each in ("pyspark", "pyarrow") if find_spec(each) is None]
    if lacking:
        verb = "are" if len(lacking) > 1 else "is"
        raise ConfigurationError(f"{' and '.join(lacking)} {verb} not installed: {_PACKAGES}.")
    if remote is not None:
        needed = ("grpc", "grpc_status", "pandas", "zstandard")
        lacking = [each for each in needed if find_spec(each) is None]
        if lacking:
            raise ConfigurationError(
                f"Spark Connect needs {', '.join(lacking)}: pip install 'pyspark[connect]'."
            )


def _prepare_environment(job: _PipelineOptions) -> None:
    """For the JVM, and through it for the source's processes: a key on a command line is seen, one
    in the environment is not."""
    from penstock.spark.pipelines.pipeline_file import CONNECTION_VARIABLE

    os.environ[CONNECTION_VARIABLE] = job.wire.connection_string
    if job.wire.data is not None:
        os.environ["PENSTOCK_DATA"] = str(job.wire.data.absolute())
    folder = str(job.file.parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a file's neighbours can be imported, as by python FILE.py
    known = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if folder not in known:
        os.environ["PYTHONPATH"] = os.pathsep.join([folder, *known])


def _conf(job: _PipelineOptions, scratch: Path) -> dict[str, str]:
    found = dict(job.conf)
    if job.checkpoint is not None:
        found.setdefault(_CHECKPOINT, _location(job))
    elif _CHECKPOINT not in found:
        if job.remote is not None and not _NEAR.match(job.remote):
            raise ConfigurationError(
                "--remote needs --checkpoint: a directory that the server can write to, as the "
                "server names it."
            )
        # For this run: a query that is started again goes on where it was.
        found[_CHECKPOINT] = (scratch / "checkpoints").as_uri()
    return found


def _location(job: _PipelineOptions) -> str:
    """A path of this machine is meant from where the command was given."""
    assert job.checkpoint is not None
    if "://" in job.checkpoint or job.remote is not None:
        return job.checkpoint
    return Path(job.checkpoint).absolute().as_uri()


def _log_file(job: _PipelineOptions, scratch: Path) -> Path | None:
    if job.spark_log == "-":
        return None
    return scratch / "spark.log" if job.spark_log is None else Path(job.spark_log)


def _hubs(job: _PipelineOptions) -> Callable[[SparkSession, ShowRows], PipelineHubs]:
    from penstock.client import parse_connection_string
    from penstock.spark.pipelines.pipeline_file import CONNECTION_VARIABLE, PipelineHubs

    wire = job.wire
    is_remote = job.remote is not None
    wired = (
        {"connectionString": wire.connection_string}
        if is_remote
        else {"connectionString.env": CONNECTION_VARIABLE}
    )
    if wire.ca_file is not None and parse_connection_string(wire.connection_string).tls:
        wired["tls.caFile"] = wire.ca_file
    if wire.websocket:
        wired["transport"] = "wss"
    wired["operationTimeout"] = f"{wire.timeout_s:g}s"

    def create_hubs(spark: SparkSession, show: ShowRows) -> PipelineHubs:
        return PipelineHubs(spark, wired, reading=job.reading, show=show, is_remote=is_remote)

    return create_hubs


def _rate(value: object) -> str:
    return f"{float(value):,.0f}" if isinstance(value, int | float) else ""
