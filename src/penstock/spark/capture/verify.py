"""`penstock capture verify`: compare log and files, event by event.

Each file's records are compared, byte by byte, with those that the log gives now for the same
sequence numbers; where retention has removed them, the file's own numbers are checked. Then every
event that a run should have captured must be in exactly one file. Needs no Spark.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from penstock.capture import hub_files
from penstock.capture.captured_file import ManifestFile, decode_manifest
from penstock.capture.file_names import MANIFESTS
from penstock.capture.hub_files import FileLocationFilter, ListedFile, StoreIdentity
from penstock.capture.runs import find_gaps, merge_ranges
from penstock.capture.storage import FileStore
from penstock.client.ranges import RangeSettings
from penstock.formats.quantities import format_time
from penstock.spark.capture.file_check import (
    PROBLEMS_MAX,
    FileCheckResult,
    RetainedRanges,
    check_file,
)

_FileKey = tuple[StoreIdentity, str]  # store and path


class ExpectedRange(msgspec.Struct, frozen=True):
    """Events of one partition that a run captures: from `first` to before `captured` they are in
    files by the job's report; to before `end` they will be (None: to the end of the log)."""

    partition: str
    first: int
    captured: int
    end: int | None = None


class CaptureVerification(msgspec.Struct, kw_only=True):
    """The result. `unretained` events are in files and no longer in the log; `waiting` ones are in
    no file, and no report says that they are."""

    files: int = 0
    empty_files: int = 0
    events: int = 0  # in files
    bytes: int = 0
    compared: int = 0  # with the log
    unretained: int = 0
    waiting: int = 0
    missing: int = 0
    double: int = 0
    different: int = 0
    damaged_files: int = 0
    manifests: int = 0
    unlike_manifest: int = 0  # files that a manifest lists and that are missing or different
    problems: list[str] = []

    @property
    def is_fine(self) -> bool:
        lost = self.missing or self.double or self.different
        return not (lost or self.damaged_files or self.unlike_manifest)

    def row(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__struct_fields__ if name != "problems"}

    def add(self, file: ListedFile, check: FileCheckResult) -> None:
        self.files += 1
        self.bytes += file.size
        self.empty_files += not (check.events or check.is_damaged)
        self.events += check.events
        self.compared += check.compared
        self.unretained += check.unretained
        self.different += check.different
        self.damaged_files += check.is_damaged
        for text in check.problems:
            self.note(text)

    def note(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


def verify(
    locations: Sequence[FileLocationFilter],
    *,
    namespace: str,
    hub: str,
    expected: Sequence[ExpectedRange],
    ranges: RangeSettings,
) -> CaptureVerification:
    """Compare the files at all locations with the log, with what runs should have captured, and
    with the manifests. Raises PenstockError when log or files cannot be read."""
    stores = [FileStore(location.target) for location in locations]
    result = CaptureVerification()
    # The order matters, since log and job go on: a file that a manifest lists exists when files
    # are listed, and the events of a file were in the log before.
    after_s = min((location.after_s for location in locations), default=-1)
    listed: dict[_FileKey, tuple[str, str]] = {}
    for identity, store in {hub_files.store_identity(store): store for store in stores}.items():
        for manifest, entry in _read_manifests(store, namespace, hub, after_s, result):
            listed[identity, entry.path] = (manifest, entry.sha256)
    files = hub_files.list_hub_files(locations, stores, namespace, hub)
    retained = RetainedRanges(ranges)
    held: dict[str, list[tuple[int, int, str]]] = {}
    digests: dict[_FileKey, str] = {}
    for file in files:
        check = check_file(stores[file.place], file, retained)
        result.add(file, check)
        in_file = [(first, end, file.path) for first, end in check.ranges]
        held.setdefault(file.partition, []).extend(in_file)
        digests[hub_files.store_identity(stores[file.place]), file.path] = check.sha256
    for partition, in_files in held.items():
        _check_double(partition, in_files, result)
    _check_missing(expected, held, retained.ends(), result)
    for key, (manifest, sha256) in listed.items():
        if digests.get(key) != sha256:
            result.unlike_manifest += 1
            problem = "has other bytes" if key in digests else "is missing"
            result.note(f"{key[1]}, which {manifest} lists, {problem}.")
    return result


def _read_manifests(
    store: FileStore, namespace: str, hub: str, after_s: int, result: CaptureVerification
) -> Iterator[tuple[str, ManifestFile]]:
    """Each file that a manifest of the hub lists, and the manifest. Without those of a deleted hub
    of the same name."""
    after = format_time(after_s * 1000) if after_s >= 0 else ""
    folder = f"{MANIFESTS}/{hub}"
    for path, _ in store.files(folder):
        if path.rpartition("/")[0] != folder:
            continue  # of the hub orders/eu, where this one is orders
        with store.open(path) as opened:
            content = opened.read()
        try:
            manifest = decode_manifest(content)
        except msgspec.MsgspecError as error:
            result.damaged_files += 1
            result.note(f"{path} is not a manifest: {error}.")
            continue
        if (manifest.namespace, manifest.event_hub) != (namespace, hub):
            continue  # of another namespace
        own = [file for file in manifest.files if file.closed_at > after]
        if manifest.files and not own:
            continue
        result.manifests += 1
        yield from ((path, file) for file in own)


def _check_double(
    partition: str, in_files: Sequence[tuple[int, int, str]], result: CaptureVerification
) -> None:
    reached, before = -1, ""
    for first, end, path in sorted(in_files):
        if first < reached:
            twice = min(end, reached) - first
            result.double += twice
            result.note(
                f"Partition {partition}: {twice} events from {first} on are in {before} and "
                f"in {path}."
            )
        if end > reached:
            reached, before = end, path


def _check_missing(
    expected: Sequence[ExpectedRange],
    held: Mapping[str, Sequence[tuple[int, int, str]]],
    ends: Mapping[str, int],
    result: CaptureVerification,
) -> None:
    """Events that the job reported as captured are in files; others may still wait."""
    merged = {
        partition: merge_ranges((first, end) for first, end, _ in ranges)
        for partition, ranges in held.items()
    }
    for run in expected:
        in_files = merged.get(run.partition, [])
        for first, end in find_gaps(run.first, run.captured, in_files):
            result.missing += end - first
            result.note(f"Partition {run.partition}: events {first} to {end - 1} are in no file.")
        stop = ends.get(run.partition, run.captured) if run.end is None else run.end
        result.waiting += sum(end - first for first, end in find_gaps(run.captured, stop, in_files))
