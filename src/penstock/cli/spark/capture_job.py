"""`penstock capture run`: the capture job, as `serve` starts it or on a machine of its own."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.cli.output import print_message
from penstock.cli.spark.pipeline import StopSignals
from penstock.io.files import lock_file, make_private
from penstock.model.clock import SystemClock
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.cli.service_options import AdminSession

STATE = "PENSTOCK_CAPTURE_STATE"
AMQP = "PENSTOCK_CAPTURE_AMQP"
_STATE_DEFAULT = "penstock-capture"


def run_job(
    service: AdminSession, *, config: Path | None, state: Path | None, master: str | None
) -> None:
    """Run until SIGTERM or Ctrl-C. Raises PenstockError when it cannot start."""
    from penstock.service import logging_setup
    from penstock.service.config.loader import load_settings
    from penstock.service.config.settings import destinations_of
    from penstock.spark.capture.announcements import NotificationTarget
    from penstock.spark.capture.job import CaptureJob
    from penstock.spark.capture.run_query import CaptureJobSettings

    settings = load_settings(flags={"config": config}, environ=os.environ)
    logging_setup.set_up(settings.log_level, SystemClock().monotonic_ms)
    for logger in ("azure", "adlfs", "py4j", "botocore"):
        logging.getLogger(logger).setLevel(logging.WARNING)
    directory = (state or Path(os.environ.get(STATE) or _STATE_DEFAULT)).resolve()
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    capture = settings.capture
    notify = capture.notify
    job_settings = CaptureJobSettings(
        state=directory,
        destinations=destinations_of(capture, settings.data),
        notify=None
        if notify is None
        else NotificationTarget(url=notify.url, hub=notify.hub, format=notify.format),
        amqp=os.environ.get(AMQP),
        ca_file=service.admin.ca_file,
        master=master or capture.master,
    )
    with (
        _stop_on_signal() as stopping,
        _lock_state(directory),
        _capture_spark(job_settings.master, capture.spark, directory) as start_session,
    ):
        CaptureJob(job_settings, service.client, start_session).run(stopping.wait)


@contextlib.contextmanager
def _stop_on_signal() -> Iterator[threading.Event]:
    """An event that SIGTERM or Ctrl-C sets."""
    stopping = threading.Event()

    def ask_to_stop() -> bool:
        stopping.set()
        return False

    with StopSignals(print_message) as signals:
        signals.forward(ask_to_stop)
        yield stopping


@contextlib.contextmanager
def _capture_spark(
    master: str, own_conf: dict[str, str], state: Path
) -> Iterator[Callable[[], Any]]:
    """A function that starts a session at its first call, with Spark's log in a file."""
    log = state / "spark.log"
    make_private(log)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start_session() -> Any:
            from penstock.spark.capture.job import SPARK_CONF
            from penstock.spark.idle_daemon import forget_pandas, write_python
            from penstock.spark.launcher import JvmLauncher

            forget_pandas()
            if master.startswith("local"):  # machines of a cluster have no such file
                script = str(write_python(state))
                for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
                    os.environ.setdefault(name, script)
            conf = {"spark.local.dir": str(state / "local"), **SPARK_CONF, **own_conf}
            logging.getLogger("penstock.capture").info("capture_spark_starting master=%s", master)
            launcher = JvmLauncher(app_name="penstock-capture", master=master, conf=conf, log=log)
            return stack.enter_context(launcher).start()

        yield start_session


@contextlib.contextmanager
def _lock_state(state: Path) -> Iterator[None]:
    """One job per state directory: two would write the same checkpoint."""
    make_private(state / "lock")
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(lock_file(state / "lock"))
        except BlockingIOError:
            raise ConfigurationError(
                f"Another capture job uses {state}: stop it, or give another directory with "
                "--state."
            ) from None
        yield
