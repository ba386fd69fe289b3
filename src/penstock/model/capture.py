"""Capture state of an event hub, as the catalog stores it in the hub's metadata.

`HubCapture` and `entities.Hub` are the only places that know the stored keys (`capture`,
`captureRuns`, `capturePast`, `capturePlaces`). Field names of the other records are stored names
too.
"""

from __future__ import annotations

from typing import Any

import msgspec

SequenceRange = tuple[int, int]  # first sequence number, and the one after the last


class FileLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a hub's files are stored under some settings, and how they are named there."""

    account: str  # the name of a destination
    container: str
    name_format: str


class CaptureDescription(msgspec.Struct, frozen=True, kw_only=True):
    """A checked captureDescription (`capture.description.parse_description`)."""

    encoding: str
    interval_s: int
    size_bytes: int
    skip_empty: bool
    account: str
    container: str
    name_format: str

    @property
    def location(self) -> FileLocation:
        return FileLocation(
            account=self.account, container=self.container, name_format=self.name_format
        )

    @property
    def file_type(self) -> str:
        """avro or parquet: also the ending of a file's name."""
        return "parquet" if self.encoding == "Parquet" else "avro"


class RunProgress(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How far a run is in one partition, as the capture job reported. A job that has lost its own
    state continues from here and closes the same windows (`capture.windows.start_after`)."""

    sequence: int
    opened_ms: int
    named_s: int
    window: int


class CaptureRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """From switching Capture on to switching it off. `starts` has the first event of each
    partition that belongs to the run, `stops` the first that does not. Names of its files are later
    than `named_s`. `description` is the captureDescription of a run that is over; a run that goes
    on has the hub's."""

    id: str
    on_ms: int
    starts: dict[str, int]
    named_s: int = 0
    off_ms: int | None = None
    stops: dict[str, int] | None = None
    is_backfill: bool = False
    description: dict[str, Any] | None = None
    reached: dict[str, RunProgress] = {}

    @property
    def is_over(self) -> bool:
        return self.stops is not None


class CaptureHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All finished runs: what they wrote, and which events are in their files."""

    files: int = 0
    events: int = 0
    lost: int = 0
    last_file: str = ""
    last_file_ms: int = 0
    covered: dict[str, list[SequenceRange]] = {}


class HubCapture(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All that the catalog stores about Capture of one hub. `description` is the
    captureDescription as the management API shows it. `past` is None until a run is finished.
    `places` are the locations before settings were changed, the oldest first."""

    description: dict[str, Any] | None = msgspec.field(name="capture", default=None)
    runs: list[CaptureRun] = msgspec.field(name="captureRuns", default_factory=list)
    past: CaptureHistory | None = msgspec.field(name="capturePast", default=None)
    places: list[FileLocation] = msgspec.field(name="capturePlaces", default_factory=list)

    @property
    def is_enabled(self) -> bool:
        return bool((self.description or {}).get("enabled"))

    def description_of(self, run: CaptureRun) -> dict[str, Any]:
        return run.description or self.description or {}
