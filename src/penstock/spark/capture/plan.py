"""Plan file handed to a capture query. The job writes it for its own user, so that no key is in a
query's options, in its plan or on Spark's pages. Field names are stored names."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.file_names import format_file_path
from penstock.capture.state import CaptureStateFile
from penstock.capture.storage import FileStore
from penstock.capture.windows import CaptureStop
from penstock.client.ranges import RangeSettings
from penstock.io.files import write_file_atomically
from penstock.model.capture import CaptureDescription, CaptureRun
from penstock.model.errors import ConfigurationError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient
    from penstock.management.resources import AuthorizationRuleResource

OPTION = "capturePlan"
SOURCE = "eventhubs"
SINK = "penstock-capture-files"


class CapturePlan(CaptureRun, frozen=True, kw_only=True):
    """One capture run, and what its query needs."""

    namespace: str
    hub: str
    settings: CaptureDescription
    destinations: list[Destination]
    connection_string: str
    state: str  # the run's directory: plan, spool, query checkpoint
    hub_id: str = ""
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

    @property
    def spool(self) -> Path:
        return Path(self.state, "spool")

    @property
    def checkpoint(self) -> Path:
        return Path(self.state, "checkpoint")

    def stop(self, partition: str) -> CaptureStop | None:
        if self.stops is None:
            return None
        return CaptureStop(self.stops.get(partition, 0), self.off_ms or 0)

    def open_state(self) -> CaptureStateFile:
        """The caller closes it. Raises sqlite3.Error, OSError."""
        return open_run_state(Path(self.state), self.hub_id)

    def open_store(self, settings: CaptureDescription) -> FileStore:
        """Raises ArgumentError."""
        return FileStore(
            resolve_destination(self.destinations, settings.account, settings.container)
        )

    def file_path(self, settings: CaptureDescription, partition: str, named_s: int) -> str:
        """The path of the window with that name."""
        return format_file_path(
            settings.name_format,
            namespace=self.namespace,
            hub=self.hub,
            partition=partition,
            at_s=named_s,
            file_type=settings.file_type,
        )


def find_reading_rule(
    client: ManagementClient, namespace: str, *, preferred: str
) -> AuthorizationRuleResource | None:
    """A policy whose key may read: one with the preferred right if there is one."""
    rules = [rule for rule in client.rules(namespace) if {"Listen", "Manage"} & set(rule.rights)]
    return min(rules, key=lambda rule: (preferred not in rule.rights, rule.name), default=None)


def open_run_state(directory: Path, hub_id: str, *, check: bool = False) -> CaptureStateFile:
    """The state of the run whose directory this is."""
    file = directory.parent / f"{hub_id or directory.name}.sqlite"
    return CaptureStateFile(file, directory.name, check=check)


def write_plan(plan: CapturePlan) -> Path:
    """Raises OSError."""
    directory = Path(plan.state)
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    file = directory / "plan.json"
    write_file_atomically(file, msgspec.json.encode(plan))
    return file


def read_plan(file: str | None) -> CapturePlan:
    """Raises ConfigurationError, which shows nothing of the file's content."""
    if not file:
        raise ConfigurationError(f"The format {SINK} needs the option '{OPTION}'.")
    try:
        return msgspec.json.decode(Path(file).read_bytes(), type=CapturePlan)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"The capture plan {file} cannot be read ({type(error).__name__})."
        ) from None
