"""Which files at a destination belong to a hub, by their names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from penstock.capture.destinations import Destination, DestinationFolder, resolve_destination
from penstock.capture.file_names import NamePattern, check_path
from penstock.capture.storage import FileStore
from penstock.model.capture import FileLocation
from penstock.model.errors import ArgumentError

StoreIdentity = tuple[str, str]


class ListedFile(msgspec.Struct, frozen=True):
    """A captured file and the time in its name, about when its window closed. `place` is the
    index of its `FileLocationFilter`."""

    path: str
    partition: str
    named_s: int
    size: int
    place: int = 0

    @property
    def file_type(self) -> str:
        return self.path.rpartition(".")[2]


class FileLocationFilter(msgspec.Struct, frozen=True, kw_only=True):
    """A location of a hub's files. Files named by `after_s` or earlier belong to a deleted hub of
    the same name, whose sequence numbers began with 0 as well."""

    target: DestinationFolder
    name_format: str
    after_s: int = -1


def resolve_locations(
    places: Iterable[FileLocation], destinations: Sequence[Destination], *, created_ms: int
) -> tuple[list[FileLocationFilter], list[str]]:
    """The locations of a hub that was created at that time, and a warning for each earlier one
    whose destination is not configured any more. Raises ArgumentError where that is so for the
    first, which is the current one."""
    filters: list[FileLocationFilter] = []
    warnings = []
    for place in places:
        if not place.account:
            continue  # of a description without a destination
        try:
            target = resolve_destination(destinations, place.account, place.container)
        except ArgumentError as error:
            if not filters:
                raise
            warnings.append(f"Older files are skipped. {error}")
            continue
        filters.append(
            FileLocationFilter(
                target=target, name_format=place.name_format, after_s=created_ms // 1000
            )
        )
    return filters, warnings


def store_identity(store: FileStore) -> StoreIdentity:
    """Tells two stores apart. The root is not enough: two accounts, or two S3 services, may have a
    container of the same name."""
    return store.url(""), store.target.destination.options.get("endpoint_url", "")


def list_hub_files(
    filters: Sequence[FileLocationFilter], stores: Sequence[FileStore], namespace: str, hub: str
) -> list[ListedFile]:
    """The hub's files at all locations, ordered by partition and time. Raises DestinationError."""
    files: dict[tuple[StoreIdentity, str], ListedFile] = {}
    for index, (location, store) in enumerate(zip(filters, stores, strict=True)):
        identity = store_identity(store)
        pattern = NamePattern(location.name_format, namespace, hub)
        for path, size in store.files(pattern.directory and check_path(pattern.directory)):
            name = pattern.parse(path)
            if name is not None and name[1] > location.after_s:
                # Two settings may name one location: each file counts once.
                files.setdefault((identity, path), ListedFile(path, *name, size, index))
    return sorted(files.values(), key=lambda file: (int(file.partition), file.named_s))
