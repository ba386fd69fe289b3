"""`penstock capture verify`: log and files are the same, event by event.

Each file's records are compared, byte by byte, with those that the log gives now for the same
sequence numbers; where the log has dropped them, the file's own numbers are checked. Then every
event that a run should have captured stands in exactly one file. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from penstock.capture.captured_file import format_time
from penstock.capture.destinations import FileStore
from penstock.capture.file_names import MANIFESTS
from penstock.capture.hub_files import (
    FileLocationFilter,
    Identity,
    ListedFile,
    list_hub_files,
    store_identity,
)
from penstock.client.ranges import RangeSettings
from penstock.spark.capture.file_check import (
    PROBLEMS_MAX,
    FileCheckResult,
    RetainedRanges,
    check_file,
)


class CaptureVerification(msgspec.Struct, kw_only=True):
    """What was found. `unretained` events stand in files and no longer in the log; `waiting` ones
    stand in no file, and nobody said yet that they do."""

    files: int = 0
    empty_files: int = 0
    events: int = 0  # that files hold
    bytes: int = 0
    compared: int = 0  # with the log
    unretained: int = 0
    waiting: int = 0
    missing: int = 0
    double: int = 0
    different: int = 0
    damaged_files: int = 0
    manifests: int = 0
    unlike_manifest: int = 0  # files that a manifest lists and that are not there as it says
    problems: list[str] = []

    @property
    def is_fine(self) -> bool:
        return not (
            self.missing
            or self.double
            or self.different
            or self.damaged_files
            or self.unlike_manifest
        )

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "problems"}

    def add(self, file: ListedFile, one: FileCheckResult) -> None:
        self.files += 1
        self.bytes += file.size
        self.empty_files += not (one.events or one.is_damaged)
        self.events += one.events
        self.compared += one.compared
        self.unretained += one.unretained
        self.different += one.different
        self.damaged_files += one.is_damaged
        for text in one.problems:
            self.note(text)

    def note(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def verify(
    shelves: Sequence[FileLocationFilter],
    *,
    namespace: str,
    hub: str,
    runs: Sequence[Mapping[str, Any]],
    ranges: RangeSettings,
) -> CaptureVerification:
    """`shelves` are where the files lie; `runs` are what was captured: `starts` and `captured`, the
    first event that was and the first that was not, by partition, and `stops`, the first that is
    not wanted, of runs that are over. Raises PenstockError when log or files cannot be read."""
    stores = [FileStore(shelf.target) for shelf in shelves]
    found = CaptureVerification()
    # In this order: the log and the job go on. What a manifest lists is there when files are
    # listed, and what a file holds was in the log before.
    after_s = min((shelf.after_s for shelf in shelves), default=-1)
    claims = [
        claim
        for where, store in {store_identity(store): store for store in stores}.items()
        for claim in _claims(store, where, namespace, hub, found, after_s=after_s)
    ]
    files = list_hub_files(shelves, stores, namespace, hub)
    retained = RetainedRanges(ranges)
    held: dict[str, list[tuple[int, int, str]]] = {}
    digests: dict[tuple[Identity, str], str] = {}
    for file in files:
        one = check_file(stores[file.place], file, retained)
        found.add(file, one)
        spans = held.setdefault(file.partition, [])
        spans += [(first, end, file.path) for first, end in one.spans]
        digests[store_identity(stores[file.place]), file.path] = one.sha256
    for partition, all_spans in held.items():
        _check_double(partition, all_spans, found)
    _check_missing(runs, held, retained.ends(), found)
    for claim in claims:
        _check_claim(claim, digests.get((claim.where, claim.path)), found)
    return found


class _ManifestClaim(msgspec.Struct, frozen=True):
    """What a manifest says of a file: that it is there, with these bytes."""

    where: Identity
    manifest: str
    path: str
    sha256: str


class _ManifestFile(msgspec.Struct):
    path: str
    sha256: str
    closedAt: str


class _ManifestBody(msgspec.Struct):
    namespace: str
    eventHub: str
    files: list[_ManifestFile]


def _claims(
    store: FileStore,
    where: Identity,
    namespace: str,
    hub: str,
    found: CaptureVerification,
    *,
    after_s: int,
) -> Iterator[_ManifestClaim]:
    """Of every file that a manifest of the hub lists. Not those of a hub that was deleted."""
    after = format_time(after_s * 1000) if after_s >= 0 else ""
    folder = f"{MANIFESTS}/{hub}"
    for path, _ in store.files(folder):
        if path.rpartition("/")[0] != folder:
            continue  # of a hub that is called orders/eu where this one is called orders
        with store.open(path) as opened:
            content = opened.read()
        try:
            document = msgspec.json.decode(content, type=_ManifestBody)
        except msgspec.MsgspecError as error:
            found.damaged_files += 1
            found.note(f"{path} is no manifest: {error}.")
            continue
        if (document.namespace, document.eventHub) != (namespace, hub):
            continue  # of a hub that is called the same in another one
        own = [file for file in document.files if file.closedAt > after]
        if document.files and not own:
            continue
        found.manifests += 1
        for file in own:
            yield _ManifestClaim(where, path, file.path, file.sha256)


def _check_claim(claim: _ManifestClaim, digest: str | None, found: CaptureVerification) -> None:
    """Also where the log has dropped the events long since."""
    if digest != claim.sha256:
        found.unlike_manifest += 1
        now = "is not there" if digest is None else "has other bytes"
        found.note(f"{claim.path}, which {claim.manifest} lists, {now}.")


def _check_double(
    partition: str, spans: Sequence[tuple[int, int, str]], found: CaptureVerification
) -> None:
    reached, before = -1, ""
    for first, end, path in sorted(spans):
        if first < reached:
            twice = min(end, reached) - first
            found.double += twice
            found.note(
                f"Partition {partition}: {twice} events from {first} on stand in {before} and "
                f"in {path}."
            )
        if end > reached:
            reached, before = end, path


def _check_missing(
    runs: Sequence[Mapping[str, Any]],
    held: Mapping[str, Sequence[tuple[int, int, str]]],
    ends: Mapping[str, int],
    found: CaptureVerification,
) -> None:
    """What the job says that it captured is there; what it says nothing of yet may wait."""
    for each in runs:
        for partition, first in each["starts"].items():
            spans = sorted(held.get(partition, ()))
            captured = max(first, each["captured"].get(partition, first))
            for start, end in _gaps(first, captured, spans):
                found.missing += end - start
                found.note(f"Partition {partition}: events {start} to {end - 1} are in no file.")
            wanted = (each.get("stops") or ends).get(partition, captured)
            found.waiting += sum(end - start for start, end in _gaps(captured, wanted, spans))


def _gaps(first: int, end: int, spans: Sequence[tuple[int, int, str]]) -> Iterator[tuple[int, int]]:
    """What of a range is in none of the spans, which are sorted."""
    at = first
    for start, behind, _ in spans:
        if behind <= at or at >= end:
            continue
        if start > at:
            yield at, min(start, end)
        at = max(at, behind)
    if at < end:
        yield at, end
