"""Log directories and the catalog: names in the directories, unclaimed ones, finished deletions.

A log directory is named by its hub's id, which only the catalog can resolve. `hub.json` in it names
the namespace and the hub, so that events remain attributable when the catalog has lost the hub: the
directory is reported, and no new hub takes its name.
"""

from __future__ import annotations

import logging
import re
import zlib
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from penstock.broker.hub import HubRuntime
from penstock.catalog.api import Catalog
from penstock.io.files import fsync_directory
from penstock.log.api import LogStore
from penstock.model.entities import Hub, Namespace
from penstock.model.names import fold_name
from penstock.service.periodic_tasks import TurnBudget

NAME_FILE = "hub.json"
_NAME_BYTES_MAX = 4096
_HUB_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")

_logger = logging.getLogger(__name__)


class HubNames(msgspec.Struct, frozen=True):
    """The content of `hub.json`."""

    namespace: str
    name: str
    crc32: int | None = None  # commits between 0.1 and this one wrote none

    @staticmethod
    def of(namespace: str, name: str) -> HubNames:
        """With the checksum."""
        return HubNames(namespace, name, zlib.crc32(msgspec.json.encode([namespace, name])))


class UnclaimedLog(msgspec.Struct, frozen=True):
    """A log directory with events whose id no hub of the catalog has. `names` is None where
    `hub.json` is missing (version 0.1 wrote none) or damaged."""

    directory: Path
    names: HubNames | None

    @property
    def key(self) -> tuple[str, str] | None:
        """The folded names of namespace and hub."""
        names = self.names
        return None if names is None else (fold_name(names.namespace), fold_name(names.name))

    @property
    def owner(self) -> str:
        return (
            f"'{self.names.namespace}/{self.names.name}'" if self.names else "an unknown event hub"
        )

    def may_belong_to(self, namespace: str, hub: str) -> bool:
        return self.key in (None, (fold_name(namespace), fold_name(hub)))

    def warning(self) -> str:
        owner = self.owner
        consequence = (
            "Event hubs of the configuration that do not exist yet are not created, since it may "
            "be theirs."
        )
        if self.names is not None:
            owner = f"the event hub {owner}"
            consequence = "No event hub of that name is created."
        return (
            f"{self.directory} has events of {owner}, which is not in the catalog. {consequence} "
            "Restore the catalog from a backup, or move the directory away; then restart."
        )


def compare_logs(directory: Path, catalog: Catalog, logs: LogStore) -> list[UnclaimedLog]:
    """Finish deletions that a crash interrupted; find the logs of which the catalog knows nothing
    and reserve their names. To be called before a hub is created."""
    for hub_id in catalog.deleted_hubs():
        if (directory / hub_id).exists():
            _logger.info("deletion of an event hub completed: id=%s", hub_id)
            logs.drop(hub_id)
    hubs = [hub for each in catalog.namespaces() for hub in catalog.hubs(each.name)]
    unclaimed = find_unclaimed_logs(directory, {hub.id for hub in hubs})
    catalog.reserve_hubs({log.key: log.warning() for log in unclaimed if log.key is not None})
    return unclaimed


def find_unclaimed_logs(directory: Path, claimed: Collection[str]) -> list[UnclaimedLog]:
    """The logs with events below `directory` whose hub id is not `claimed`; each is logged."""
    found = [
        UnclaimedLog(folder, _read_names(folder))
        for folder in sorted(directory.iterdir())
        if _HUB_ID.fullmatch(folder.name)
        and folder.name not in claimed
        and next(folder.glob("*/*.log"), None) is not None
    ]
    for log in found:
        _logger.warning("unclaimed log: %s", log.warning())
    return found


async def forget_deletions(directory: Path, catalog: Catalog) -> None:
    """Forget the deleted hubs whose logs are gone, a bounded number per event-loop turn."""
    budget = TurnBudget()
    gone = []
    for hub_id in catalog.deleted_hubs():
        if not (directory / hub_id).exists():
            gone.append(hub_id)
        await budget.spend()
    if gone:
        fsync_directory(directory)  # otherwise a power cut could bring a log back, without an owner
        catalog.forget_deleted_hubs(gone)


def hubs_with_name_files(directory: Path) -> Callable[..., HubRuntime]:
    """A factory for `Broker(new_hub=...)`: before a hub can take its first event, its log
    directory names it."""

    def new_hub(namespace: Namespace, hub: Hub, **parts: Any) -> HubRuntime:
        _write_names(directory / hub.id, HubNames.of(namespace.name, hub.name))
        return HubRuntime(namespace, hub, **parts)

    return new_hub


def _read_names(folder: Path) -> HubNames | None:
    """Damage is logged, with the file's name."""
    path = folder / NAME_FILE
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_NAME_BYTES_MAX), type=HubNames)
        names = HubNames.of(found.namespace, found.name)
        if found.crc32 not in (None, names.crc32):
            raise ValueError("it does not match its checksum")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _logger.warning("name file unusable: file=%s reason=%s", path, error)
        return None
    return names


def _write_names(folder: Path, names: HubNames) -> None:
    """Not flushed: it is written again at every start at which the catalog knows the hub. A full
    disk is no reason not to start."""
    if _read_names(folder) == names:
        return
    aside = folder / f"{NAME_FILE}.new"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        aside.touch(mode=0o600)
        aside.write_bytes(msgspec.json.encode(names) + b"\n")
        aside.replace(folder / NAME_FILE)
    except OSError as error:
        _logger.warning("log directory not named: directory=%s reason=%s", folder, error)
