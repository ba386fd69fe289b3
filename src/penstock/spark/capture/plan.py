"""What a capture query is told: written by the job into a file that only its user can read, so
that no key stands in a query's options, in its plan or in Spark's pages."""

from __future__ import annotations

from pathlib import Path

import msgspec

from penstock.capture.description import CaptureDescription
from penstock.capture.destinations import Destination
from penstock.capture.runs import RunProgress
from penstock.capture.windows import CaptureStop
from penstock.client.ranges import RangeSettings
from penstock.io.files import write_file_atomically
from penstock.model.errors import ConfigurationError

OPTION = "capturePlan"
SOURCE = "eventhubs"
SINK = "penstock-capture-files"


class CapturePlan(msgspec.Struct, frozen=True, kw_only=True):
    """One hub's capture from one switching on to the next switching off."""

    namespace: str
    hub: str
    settings: CaptureDescription
    destinations: list[Destination]
    connection_string: str
    state: str  # a directory of this run's: ledger, spool, checkpoint
    hub_id: str = ""
    starts: dict[str, int]  # the first event that is wanted, by partition
    named_s: int = 0  # names of files are later than that
    reached: dict[str, RunProgress] = {}  # how far the service knows us to be
    stops: dict[str, int] | None = None
    stopped_ms: int = 0
    is_backfill: bool = False
    consumer_group: str = "$Default"
    ca_file: str | None = None
    timeout_s: float = 60.0

    def __repr__(self) -> str:
        return f"CapturePlan({self.namespace}/{self.hub})"

    @property
    def ranges(self) -> RangeSettings:
        return RangeSettings(
            self.connection_string,
            self.hub,
            self.consumer_group,
            ca_file=self.ca_file,
            timeout_s=self.timeout_s,
        )

    def stop(self, partition: str) -> CaptureStop | None:
        if self.stops is None:
            return None
        return CaptureStop(self.stops.get(partition, 0), self.stopped_ms)

    @property
    def ledger(self) -> Path:
        return Path(self.state, "ledger.sqlite")

    @property
    def run(self) -> str:
        return Path(self.state).name

    @property
    def names_file(self) -> Path:
        """Names of files that this run or another one of the hub has taken."""
        return Path(self.state).parent / f"{self.hub_id or self.run}.names.sqlite"

    @property
    def spool(self) -> Path:
        return Path(self.state, "spool")

    @property
    def checkpoint(self) -> Path:
        return Path(self.state, "checkpoint")


def window_name(plan: CapturePlan, partition: str, window: int, first: int) -> str:
    """What a window's file gets the mark between its blocks of: the same whenever it is written."""
    return f"{plan.namespace}/{plan.hub}/{partition}/{window}/{first}"


def write_plan(plan: CapturePlan) -> Path:
    """Raises OSError."""
    directory = Path(plan.state)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = directory / "plan.json"
    write_file_atomically(file, msgspec.json.encode(plan))
    return file


def read_plan(file: str | None) -> CapturePlan:
    """Raises ConfigurationError; what the file holds is never shown."""
    if not file:
        raise ConfigurationError(f"The format {SINK} needs the option '{OPTION}'.")
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=CapturePlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"The plan of Capture cannot be read ({type(error).__name__}): {file}."
        ) from None
