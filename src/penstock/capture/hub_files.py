"""Which files at a destination are a hub's, told by their names alone."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import msgspec

from penstock.capture.destinations import (
    Destination,
    DestinationFolder,
    FileStore,
    resolve_destination,
)
from penstock.capture.file_names import MANIFESTS, check_path
from penstock.capture.runs import FileLocation
from penstock.model.errors import ArgumentError

Identity = tuple[str, str]
_TOKEN = re.compile(r"\{([A-Za-z]+)\}")
_DIGITS = {"Year": 4, "Month": 2, "Day": 2, "Hour": 2, "Minute": 2, "Second": 2}


class ListedFile(msgspec.Struct, frozen=True):
    """A captured file by its name: when its window closed, in seconds. `place` is which of several
    it lies at."""

    path: str
    partition: str
    named_s: int
    size: int
    place: int = 0

    @property
    def kind(self) -> str:
        return self.path.rpartition(".")[2]


def compile_name_pattern(name_format: str, namespace: str, hub: str) -> re.Pattern[str]:
    """What the paths of a hub look like. A token that stands twice has to say the same twice."""
    fixed = {"Namespace": namespace, "EventHub": hub}
    seen: set[str] = set()
    parts = []
    at = 0
    for match in _TOKEN.finditer(name_format):
        parts.append(re.escape(name_format[at : match.start()]))
        at = match.end()
        name = match[1]
        if name in fixed:
            parts.append(re.escape(fixed[name]))
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            parts.append(rf"(?P<{name}>\d{{{_DIGITS.get(name, '1,6')}}})")
        seen.add(name)
    parts.append(re.escape(name_format[at:]))
    return re.compile("".join(parts) + r"\.(?:avro|parquet)")


def common_directory(name_format: str, namespace: str, hub: str) -> str:
    """What all paths of a hub begin with, as far as it is whole directories; empty where the name
    begins with what varies.

    >>> directory("in/{Namespace}/{EventHub}/p{PartitionId}/{Year}", "ns", "events")
    'in/ns/events'
    """
    fixed = {"Namespace": namespace, "EventHub": hub}
    known = _TOKEN.sub(lambda match: fixed.get(match[1], match[0]), name_format)
    return known.partition("{")[0].rpartition("/")[0]


def store_identity(store: FileStore) -> Identity:
    """Where a store's files really lie. Its root is not enough: two accounts may have one container
    each that are called the same, and so may two services that speak the protocol of S3."""
    return store.url(""), store.target.destination.options.get("endpoint_url", "")


class FileLocationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """One place that a hub's files lie at. Files that are named by `after_s` or before are not its
    own: a hub of that name was deleted then, whose sequence numbers began with 0 as well."""

    target: DestinationFolder
    name_format: str
    after_s: int = -1


def file_locations(
    places: Iterable[FileLocation], destinations: Sequence[Destination], *, created_ms: int
) -> tuple[list[FileLocationFilter], list[str]]:
    """Where the files of a hub that was made then lie, and a sentence for each place before that no
    configuration names any more. Raises ArgumentError where that is so of the first, which is the
    present one."""
    shelves: list[FileLocationFilter] = []
    troubles = []
    for place in places:
        if not place.account:
            continue  # of a description that never said where
        try:
            target = resolve_destination(destinations, place.account, place.container)
        except ArgumentError as error:
            if not shelves:
                raise
            troubles.append(f"Files from before are not looked at. {error}")
            continue
        shelves.append(
            FileLocationFilter(
                target=target, name_format=place.name_format, after_s=created_ms // 1000
            )
        )
    return shelves, troubles


def list_hub_files(
    shelves: Sequence[FileLocationFilter], stores: Sequence[FileStore], namespace: str, hub: str
) -> list[ListedFile]:
    """Those of the hub, wherever they lie, in the order of partition and time. Raises
    DestinationError."""
    found: dict[tuple[Identity, str], ListedFile] = {}
    for index, (shelf, store) in enumerate(zip(shelves, stores, strict=True)):
        where = store_identity(store)
        top = common_directory(shelf.name_format, namespace, hub)
        below = store.files(check_path(top) if top else "")
        for file in parse_listing(below, shelf.name_format, namespace, hub):
            if file.named_s <= shelf.after_s:
                continue
            # Two settings may lead to one place.
            found.setdefault((where, file.path), msgspec.structs.replace(file, place=index))
    return sorted(found.values(), key=lambda each: (int(each.partition), each.named_s))


def parse_listing(
    files: Iterable[tuple[str, int]], name_format: str, namespace: str, hub: str
) -> list[ListedFile]:
    """Those of the hub, in the order of partition and time."""
    wanted = compile_name_pattern(name_format, namespace, hub)
    found = []
    for path, size in files:
        match = wanted.fullmatch(path)
        if match is None or path.startswith(f"{MANIFESTS}/"):
            continue
        numbers = [int(match[token]) for token in _DIGITS]
        try:
            at = datetime(*numbers, tzinfo=UTC)  # type: ignore[misc,arg-type]
        except ValueError:
            continue  # no time: not ours
        found.append(ListedFile(path, match["PartitionId"], int(at.timestamp()), size))
    return sorted(found, key=lambda each: (int(each.partition), each.named_s))
