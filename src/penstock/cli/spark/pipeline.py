"""`penstock pipeline run|list`: Structured Streaming jobs that read event hubs."""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.events_options import EventsEndpoint, with_events
from penstock.cli.output import Format, OutputFormat, format_seconds, print_message, print_rows
from penstock.cli.service_options import AdminSession, with_whole_service
from penstock.cli.units import parse_seconds
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from penstock.cli.spark.pipeline_display import PipelineDisplay
    from penstock.spark.pipelines.pipeline_file import PipelineFile, PipelineHubs, ShowRows
    from penstock.spark.pipelines.runner import PipelineRun, RunSettings

app = CommandGroup("Structured Streaming jobs that read event hubs.")

_PACKAGES = "pip install 'penstock[spark]'"
_SETTING = re.compile(r"spark\.[A-Za-z0-9_.\-]+")
_RESTARTS_MAX = 1_000_000
_CHECKPOINT = "spark.sql.streaming.checkpointLocation"
_LOCAL = re.compile(r"local|sc://(localhost|127\.0\.0\.1|\[::1\])(?![^:/;])")
_SPARK = "Spark"  # section of the help
_COLUMNS = ("name", "kind", "state", "rows_per_second", "lag_events", "batch_seconds", "master")

Parameters = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A parameter of pipeline(); repeatable"),
]
JobName = Annotated[
    str | None, typer.Option("--name", help="Name of the job and its queries [default: the file's]")
]
Checkpoint = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Stores progress, so that the next run continues there"),
]
From = Annotated[
    str,
    typer.Option("--from", metavar="POSITION", help="Where a new query begins: earliest, latest"),
]
Group = Annotated[str, typer.Option("--group", "-g", help="Consumer group")]
Trigger = Annotated[
    str | None, typer.Option(metavar="TIME", help="Time between two batches [default: 1s]")
]
AvailableNow = Annotated[
    bool, typer.Option("--available-now", help="Process the events that are there, then end")
]
Restart = Annotated[
    str, typer.Option(metavar="N|always", help="How often to restart after a failure")
]
StopTimeout = Annotated[
    str, typer.Option(metavar="TIME", help="How long a stop waits for the current batch")
]
Master = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="local[*] (default), spark://, yarn, k8s://", rich_help_panel=_SPARK
    ),
]
Remote = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="A Spark Connect server: sc://HOST:PORT", rich_help_panel=_SPARK
    ),
]
Conf = Annotated[
    list[str] | None,
    typer.Option(
        metavar="spark.NAME=VALUE", help="A setting of Spark; repeatable", rich_help_panel=_SPARK
    ),
]
SparkLog = Annotated[
    str | None,
    typer.Option(
        metavar="FILE|-", help="File for Spark's log lines; - is stderr", rich_help_panel=_SPARK
    ),
]
Every = Annotated[
    str, typer.Option(metavar="TIME", help="Time between two lines, without a terminal")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only rows and errors")]


class _PipelineOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The validated options of `pipeline run`."""

    endpoint: EventsEndpoint
    file: PipelineFile
    path: Path
    checkpoint: str | None
    reading: dict[str, str]
    settings: RunSettings
    master: str | None
    remote: str | None
    conf: dict[str, str]
    spark_log: str | None

    @property
    def cluster(self) -> str:
        return self.master or self.remote or "local[*]"


@app.verb()
@with_events
def run(
    endpoint: EventsEndpoint,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Python file with pipeline()")],
    set_: Parameters = None,
    name: JobName = None,
    checkpoint: Checkpoint = None,
    from_: From = "latest",
    group: Group = "$Default",
    trigger: Trigger = None,
    available_now: AvailableNow = False,
    restart: Restart = "0",
    stop_timeout: StopTimeout = "60s",
    master: Master = None,
    remote: Remote = None,
    conf: Conf = None,
    spark_log: SparkLog = None,
    every: Every = "10s",
    output: Format = OutputFormat.TABLE,
    quiet: Quiet = False,
) -> None:
    """Run a Structured Streaming job with a ready session and source.

    The file defines `def pipeline(spark, hubs)` and returns the queries to run: docs/pipelines.md.
    Ctrl-C and SIGTERM end the job after its current batch; a second one ends it at once.

    Examples:
        penstock pipeline run windows.py --checkpoint checkpoints/windows
        penstock pipeline run windows.py --set device=a --from earliest --available-now
    """
    from penstock.cli.spark.pipeline_display import display
    from penstock.spark.pipelines.pipeline_file import PipelineFile
    from penstock.spark.pipelines.runner import RunSettings

    if master is not None and remote is not None:
        raise typer.BadParameter("--master and --remote exclude each other.")
    if available_now and trigger is not None:
        raise typer.BadParameter("--trigger and --available-now exclude each other.")
    every_s = parse_seconds(every, option="--every")
    between_ms = round(parse_seconds(trigger or "1s", option="--trigger") * 1000)
    settings_of_spark = _parse_pairs(conf, "--conf", form="spark.NAME=VALUE", names=_SETTING)
    parameters = _parse_pairs(set_, "--set", form="NAME=VALUE")
    restarts_max = _parse_restarts(restart)
    stop_s = parse_seconds(stop_timeout, option="--stop-timeout")
    if not file.is_file():
        raise FileNotFoundError(2, "No such file", str(file))
    pipeline_file = PipelineFile(file)
    pipeline_file.check_names(parameters)
    job = _PipelineOptions(
        endpoint=endpoint,
        file=pipeline_file,
        path=file.resolve(),
        checkpoint=checkpoint,
        reading={"startingPosition": from_, "consumerGroup": group},
        settings=RunSettings(
            name=name or pipeline_file.name,
            arguments=parameters,
            trigger={"availableNow": True}
            if available_now
            else {"processingTime": f"{between_ms} milliseconds"},
            is_trigger_forced=available_now or trigger is not None,
            restarts_max=restarts_max,
            stop_s=stop_s,
        ),
        master=master or settings_of_spark.get("spark.master"),
        remote=remote,
        conf=settings_of_spark,
        spark_log=spark_log,
    )
    with display(output, every_s=every_s, is_quiet=quiet) as view:
        _run(job, view)


@app.verb("list")
@with_whole_service
def list_(service: AdminSession, output: Format = OutputFormat.TABLE) -> None:
    """List the jobs that report to the service: pipelines and Capture.

    Examples:
        penstock pipeline list
    """
    shown = {"batch_seconds": format_seconds, "rows_per_second": _format_rate}
    print_rows(service.client.jobs(), output, title="Jobs", columns=_COLUMNS, shown=shown)


def _run(job: _PipelineOptions, view: PipelineDisplay) -> None:
    """Run the job to its end. What it opens is closed in reverse order."""
    _check_packages(job.remote)
    from penstock.cli.spark.job_reporter import report_job
    from penstock.cli.spark.stop_signals import stop_signals
    from penstock.spark.launcher import JvmLauncher
    from penstock.spark.pipelines.runner import PipelineRun

    with ExitStack() as stack:
        signals = stack.enter_context(stop_signals(view.note))
        scratch = Path(tempfile.mkdtemp(prefix="penstock-pipeline-"))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        log = None if job.spark_log == "-" else Path(job.spark_log or scratch / "spark.log")
        reporter = stack.enter_context(
            report_job(job.settings.name, job.cluster, job.endpoint, view)
        )
        _prepare_environment(job)
        view.show_starting(job.settings.name, job.cluster)
        launcher = stack.enter_context(
            JvmLauncher(
                app_name=f"penstock {job.settings.name}",
                master=job.master,
                remote=job.remote,
                conf=_spark_settings(job, scratch),
                log=log,
            )
        )

        def start() -> SparkSession:
            spark = launcher.start()
            ui_url = None if job.remote is not None else spark.sparkContext.uiWebUrl
            reporter.ui_url = ui_url or ""
            signals.claim()  # Spark's own handler would cancel the batch
            view.show_started(ui_url, job.checkpoint)
            return spark

        running = PipelineRun(
            start(),
            job.file,
            job.settings,
            reporter,
            hubs=_hubs_factory(job),
            renew=start if job.remote is None else None,
        )
        signals.answer(running)
        _run_to_end(running, log, scratch)
    view.show_ended()


def _run_to_end(running: PipelineRun, log: Path | None, scratch: Path) -> None:
    """Run, and after a failure say where Spark's log is; over Spark Connect the server has it."""
    try:
        running.run()
    except BaseException:
        if log is not None and log.exists():
            if log.is_relative_to(scratch):  # which is deleted
                copy = Path(tempfile.mkdtemp(prefix="penstock-spark-log-")) / "spark.log"
                log = Path(shutil.copy(log, copy))
            print_message(f"Spark's log: {log}")
        raise


# --- options --------------------------------------------------------------------------------------


def _parse_restarts(text: str) -> int | None:
    """The number of restarts; None for always."""
    if text == "always":
        return None
    if text.isascii() and text.isdigit() and int(text[:8]) <= _RESTARTS_MAX:
        return int(text)
    raise typer.BadParameter(f"'{text}' is neither a number nor 'always'.", param_hint="--restart")


def _parse_pairs(
    texts: list[str] | None, option: str, *, form: str, names: re.Pattern[str] | None = None
) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not equals or not name or (names is not None and not names.fullmatch(name)):
            shown = name if equals else text  # the value may be a secret
            raise typer.BadParameter(f"'{shown}' is not {form}.", param_hint=option)
        pairs[name] = value
    return pairs


def _check_packages(remote: str | None) -> None:
    from importlib.util import find_spec

    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if missing:
        raise ConfigurationError(f"Pipelines need {' and '.join(missing)}: {_PACKAGES}.")
    if remote is not None:
        needed = ("grpc", "grpc_status", "pandas", "zstandard")
        missing = [name for name in needed if find_spec(name) is None]
        if missing:
            raise ConfigurationError(
                f"Spark Connect needs {', '.join(missing)}: pip install 'pyspark[connect]'."
            )


def _prepare_environment(job: _PipelineOptions) -> None:
    """The environment of the JVM, and through it of the source's processes. The key is passed here
    because other users can see command-line arguments."""
    from penstock.spark.pipelines.pipeline_file import CONNECTION_VARIABLE

    os.environ[CONNECTION_VARIABLE] = job.endpoint.connection_string
    if job.endpoint.data is not None:
        os.environ["PENSTOCK_DATA"] = str(job.endpoint.data.absolute())
    directory = str(job.path.parent)
    if directory not in sys.path:
        sys.path.insert(0, directory)  # modules beside the file are importable, as in `python FILE`
    parts = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    if directory not in parts:
        os.environ["PYTHONPATH"] = os.pathsep.join([directory, *parts])


def _spark_settings(job: _PipelineOptions, scratch: Path) -> dict[str, str]:
    location = job.checkpoint
    if location is None:
        if _CHECKPOINT not in job.conf and job.remote is not None and not _LOCAL.match(job.remote):
            raise ConfigurationError(
                "--remote needs --checkpoint: a directory that the server can write to, as the "
                "server names it."
            )
        # For this run only: a query that is restarted continues there.
        location = (scratch / "checkpoints").as_uri()
    elif "://" not in location and job.remote is None:
        location = Path(location).absolute().as_uri()
    return {_CHECKPOINT: location} | job.conf


def _hubs_factory(job: _PipelineOptions) -> Callable[[SparkSession, ShowRows], PipelineHubs]:
    from penstock.client import parse_connection_string
    from penstock.spark.pipelines.pipeline_file import CONNECTION_VARIABLE, PipelineHubs

    endpoint = job.endpoint
    is_remote = job.remote is not None
    options = {"connectionString.env": CONNECTION_VARIABLE}
    if is_remote:
        options = {"connectionString": endpoint.connection_string}
    if endpoint.ca_file is not None and parse_connection_string(endpoint.connection_string).tls:
        options["tls.caFile"] = endpoint.ca_file
    if endpoint.websocket:
        options["transport"] = "wss"
    options["operationTimeout"] = f"{endpoint.timeout_s:g}s"

    def create(spark: SparkSession, show: ShowRows) -> PipelineHubs:
        return PipelineHubs(spark, options, reading=job.reading, show=show, is_remote=is_remote)

    return create


def _format_rate(value: object) -> str:
    return f"{float(value):,.0f}" if isinstance(value, int | float) else ""
