"""`penstock capture run`: the capture job, as `serve` starts it or on a machine of its own."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any

from penstock.io.files import lock_file, make_private
from penstock.model.clock import SystemClock
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

STATE = "PENSTOCK_CAPTURE_STATE"
AMQP = "PENSTOCK_CAPTURE_AMQP"
_STATE_DEFAULT = "penstock-capture"


def run_job(
    client: ManagementClient,
    *,
    ca_file: str | None,
    config: Path | None,
    state: Path | None,
    master: str | None,
) -> None:
    """Run until SIGTERM or Ctrl-C. Raises PenstockError when it cannot start."""
    from penstock.service import logging_setup
    from penstock.service.config.loader import load_settings
    from penstock.service.config.settings import Settings, destinations_of
    from penstock.spark.capture.announcements import NotificationTarget
    from penstock.spark.capture.job import CaptureJob
    from penstock.spark.capture.run_query import CaptureJobSettings

    settings: Settings = load_settings(flags={"config": config}, environ=os.environ)
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
        ca_file=ca_file,
        master=master or capture.master,
    )
    stopping = StopSignals()
    stopping.claim()
    with (
        _lock_state(directory),
        _CaptureSpark(job_settings.master, capture.spark, directory) as spark,
    ):
        CaptureJob(job_settings, client, spark.session).run(stopping.wait)


class StopSignals:
    """The job's stop request: SIGTERM or Ctrl-C. A handler interrupts the main thread anywhere,
    also while it holds the lock of an Event; a SimpleQueue is reentrant."""

    def __init__(self) -> None:
        self._signals: SimpleQueue[int] = SimpleQueue()
        self._is_set = False

    def claim(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.put(number)

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds. Returns whether a signal came."""
        if not self._is_set:
            with contextlib.suppress(Empty):
                self._signals.get(timeout=timeout)
                self._is_set = True
        return self._is_set


class _CaptureSpark:
    """A session that starts at the first request, with Spark's log in a file."""

    def __init__(self, master: str, conf: dict[str, str], state: Path) -> None:
        self._master = master
        self._conf = conf
        self._log = state / "spark.log"
        make_private(self._log)
        self._local = state / "local"
        self._stack = contextlib.ExitStack()
        self._session: Any = None

    def __enter__(self) -> _CaptureSpark:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def session(self) -> Any:
        from penstock.spark.capture.job import SPARK_CONF
        from penstock.spark.idle_daemon import forget_pandas, write_python
        from penstock.spark.launcher import JvmLauncher

        if self._session is None:
            forget_pandas()
            if self._master.startswith("local"):  # machines of a cluster have no such file
                script = str(write_python(self._log.parent))
                for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
                    os.environ.setdefault(name, script)
            conf = {"spark.local.dir": str(self._local), **SPARK_CONF, **self._conf}
            logging.getLogger("penstock.capture").info(
                "capture_spark_starting master=%s", self._master
            )
            launcher = JvmLauncher(
                app_name="penstock-capture", master=self._master, conf=conf, log=self._log
            )
            self._session = self._stack.enter_context(launcher).start()
        return self._session


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
