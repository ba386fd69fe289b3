"""What `verify` says of files, manifests and a log that goes on meanwhile."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import fastavro
import pytest

from penstock.capture import captured_file, file_names
from penstock.capture.container import SCHEMA, AvroFile
from penstock.capture.description import NAME_FORMAT_DEFAULT
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.hub_files import FileLocationFilter, store_identity
from penstock.capture.storage import FileStore
from penstock.client.errors import EventsLost
from penstock.client.ranges import RangeSettings
from penstock.spark.capture import verify as verification
from penstock.spark.capture.blocks import CaptureBlock
from penstock.spark.capture.parquet_file import PARQUET_SCHEMA, ParquetFile
from penstock.spark.capture.verify import CaptureVerification, verify

PARSED: Any = fastavro.parse_schema(json.loads(SCHEMA))
AT_S = 1_700_000_040
A_BLOCK = 10  # events
TIMES = {False: "11/14/2023 10:14:00 PM", True: "2023-11-14T22:14:00.0000000Z"}


def avro(number: int, body: bytes, *, iso: bool) -> bytes:
    out = io.BytesIO()
    event = {
        "SequenceNumber": number,
        "Offset": str(number * 100),
        "EnqueuedTimeUtc": TIMES[iso],
        "SystemProperties": {"x-opt-enqueued-time": AT_S * 1000},
        "Properties": {},
        "Body": body,
    }
    fastavro.schemaless_writer(out, PARSED, event)
    return out.getvalue()


def columns(numbers: range, body: bytes) -> bytes:
    import pyarrow as pa

    rows = [
        {
            "SequenceNumber": number,
            "Offset": str(number * 100),
            "EnqueuedTimeUtc": AT_S * 1_000_000,
            "SystemProperties": [],
            "Properties": [("a", "b")],
            "Body": body,
        }
        for number in numbers
    ]
    table = pa.Table.from_pylist(rows, schema=PARQUET_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


class Log:
    """Partition 0 of a hub. `drops_to` is where it begins once somebody reads; `gap` breaks off
    the reading of a range."""

    def __init__(self, end: int) -> None:
        self.begin, self.end = 0, end
        self.drops_to = 0
        self.gap: tuple[int, int] | None = None

    def __enter__(self) -> Log:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def partitions(self) -> dict[str, dict[str, Any]]:
        told = {
            "beginning_sequence_number": self.begin,
            "last_enqueued_sequence_number": self.end - 1,
            "is_empty": self.begin == self.end,
        }
        return {"0": told}

    def blocks(
        self, _: object, partition: str, first: int, last: int, *, encoding: str, iso_time: bool
    ) -> Iterator[CaptureBlock]:
        self.begin = max(self.begin, self.drops_to)
        first, end = max(first, self.begin), min(last + 1, self.end)
        for start in range(first, end, A_BLOCK):
            numbers = range(start, min(start + A_BLOCK, end))
            if self.gap is not None and self.gap[0] in numbers:
                (expected, found), self.gap = self.gap, None
                self.begin = found
                raise EventsLost(partition, expected, found)
            if encoding == "Parquet":
                data = columns(numbers, b"body")
            else:
                data = b"".join(avro(number, b"body", iso=iso_time) for number in numbers)
            yield CaptureBlock(len(numbers), data, 0, 0)


class Scene:
    def __init__(self, folder: Path, log: Log) -> None:
        self.folder = folder
        self.log = log

    def file(self, first: int, end: int, at_s: int, **changes: Any) -> captured_file.CapturedFile:
        """One of the hub's, with the events that the log has, or others."""
        hub, kind = changes.get("hub", "orders"), changes.get("kind", "avro")
        path = file_names.format_file_path(
            NAME_FORMAT_DEFAULT, namespace="ns", hub=hub, partition="0", at_s=at_s, file_type=kind
        )
        place = self.folder / "box" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        iso, body = changes.get("iso", False), changes.get("body", b"body")
        made: AvroFile | ParquetFile
        if kind == "parquet":
            made = ParquetFile(place)
        else:
            made = AvroFile(place, name=path, deflate=False)
        for start in range(first, end, 7):
            numbers = range(start, min(start + 7, end))
            one = b"".join(avro(number, body, iso=iso) for number in numbers)
            made.add(len(numbers), columns(numbers, body) if kind == "parquet" else one)
        size, digest = made.close()
        return captured_file.CapturedFile(
            path=path,
            url="",
            partition="0",
            window=0,
            first_sequence=first,
            last_sequence=end - 1,
            count=end - first,
            bytes=size,
            sha256=digest,
            named_s=at_s,
        )

    def manifest(
        self, slot_s: int, *listed: captured_file.CapturedFile, hub: str = "orders"
    ) -> Path:
        place = self.folder / "box" / file_names.manifest_path(hub, slot_s)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(captured_file.build_manifest("ns", hub, slot_s, 60, listed).encode())
        return place

    def verify(self, hub: str = "orders", **destination: Any) -> CaptureVerification:
        given = Destination(name="d", url=self.folder.as_uri(), **destination)
        return verify(
            [
                FileLocationFilter(
                    target=resolve_destination([given], "d", "box"), name_format=NAME_FORMAT_DEFAULT
                )
            ],
            namespace="ns",
            hub=hub,
            expected=[],
            ranges=RangeSettings("none"),
        )


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    log = Log(100)
    monkeypatch.setattr(verification, "HubReader", lambda _: log)
    monkeypatch.setattr(verification, "read_blocks", log.blocks)
    return Scene(tmp_path, log)


BOTH = pytest.mark.parametrize("kind", ["avro", "parquet"])


def test_a_slot_that_completes_meanwhile_is_no_fault(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.manifest(AT_S, scene.file(0, 10, AT_S + 5))
    before = verification.check_file

    def busy(*given: Any) -> verification.FileCheckResult:
        scene.manifest(AT_S + 60, scene.file(10, 20, AT_S + 65))
        return before(*given)

    monkeypatch.setattr("penstock.spark.capture.verify.check_file", busy)
    found = scene.verify()
    assert (found.is_fine, found.manifests, found.files) == (True, 1, 1), found.problems


def test_manifests_of_a_hub_below_are_not_those_of_this_one(scene: Scene) -> None:
    scene.manifest(AT_S, scene.file(0, 10, AT_S + 5))
    scene.manifest(AT_S, scene.file(0, 9, AT_S + 6, hub="orders/eu"), hub="orders/eu")
    for hub, events in (("orders", 10), ("orders/eu", 9)):
        found = scene.verify(hub)
        assert (found.is_fine, found.manifests, found.events) == (True, 1, events)


def test_a_manifest_of_another_hub_in_this_one_s_place_is_left_alone(scene: Scene) -> None:
    place = scene.manifest(AT_S, scene.file(0, 10, AT_S + 5))
    place.write_text(place.read_text().replace('"eventHub": "orders"', '"eventHub": "Orders"'))
    assert scene.verify().manifests == 0


@pytest.mark.parametrize(
    "content", ["[]", "7", "null", "{}", "{", '{"namespace":"ns","eventHub":"orders","files":{}}']
)
def test_what_is_no_manifest_is_a_damaged_file(scene: Scene, content: str) -> None:
    place = scene.manifest(AT_S, scene.file(0, 10, AT_S + 5))
    place.write_text(content)
    found = scene.verify()
    assert (found.damaged_files, found.events) == (1, 10)
    assert "is not a manifest" in found.problems[0]


def test_a_file_that_is_not_as_its_manifest_says_is_told(scene: Scene) -> None:
    gone, other = scene.file(0, 10, AT_S + 5), scene.file(10, 20, AT_S + 6)
    scene.manifest(AT_S, gone, other)
    assert scene.verify().is_fine
    (scene.folder / "box" / gone.path).unlink()
    (scene.folder / "box" / other.path).write_bytes(b"")
    found = scene.verify()
    assert found.unlike_manifest == 2
    assert any("is missing" in text for text in found.problems)
    assert any("has other bytes" in text for text in found.problems)


@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("told", [False, True])
def test_which_form_times_have_is_told_by_the_file(scene: Scene, written: bool, told: bool) -> None:
    scene.file(0, 30, AT_S + 5, iso=written)
    found = scene.verify(iso_time=told)
    assert (found.is_fine, found.compared) == (True, 30), found.problems


@BOTH
def test_each_event_that_differs_is_named(scene: Scene, kind: str) -> None:
    scene.file(0, 35, AT_S + 5, kind=kind)
    scene.file(35, 37, AT_S + 6, kind=kind, body=b"other")
    found = scene.verify()
    assert (found.compared, found.different, found.events) == (37, 2, 37)
    assert [text.rpartition(": ")[2] for text in found.problems] == [
        "event 35 is not what the log has.",
        "event 36 is not what the log has.",
    ]


@BOTH
@pytest.mark.parametrize("begin", [5, 33, 40, 100])
def test_what_retention_drops_meanwhile_is_not_different(
    scene: Scene, kind: str, begin: int
) -> None:
    scene.file(0, 40, AT_S + 5, kind=kind)
    scene.log.drops_to = begin
    found = scene.verify()
    assert found.is_fine, found.problems
    assert (found.events, found.unretained) == (40, min(begin, 40))
    assert found.compared == 40 - found.unretained


@BOTH
def test_a_gap_that_retention_makes_while_the_log_is_read_is_not_different(
    scene: Scene, kind: str
) -> None:
    scene.file(0, 40, AT_S + 5, kind=kind)
    scene.log.gap = (22, 31)
    found = scene.verify()
    assert (found.is_fine, found.events) == (True, 40), found.problems
    assert found.compared + found.unretained == 40


@BOTH
def test_events_that_the_log_never_had_are_different(scene: Scene, kind: str) -> None:
    scene.file(95, 104, AT_S + 5, kind=kind)
    found = scene.verify()
    assert (found.compared, found.different) == (9, 4)


@BOTH
def test_a_file_without_events_is_counted(scene: Scene, kind: str) -> None:
    scene.file(0, 0, AT_S + 5, kind=kind)
    found = scene.verify()
    assert (found.is_fine, found.files, found.empty_files, found.events) == (True, 1, 1, 0)


@BOTH
def test_a_file_that_is_cut_off_is_damaged(scene: Scene, kind: str) -> None:
    place = scene.folder / "box" / scene.file(0, 10, AT_S + 5, kind=kind).path
    place.write_bytes(place.read_bytes()[:-9])
    found = scene.verify()
    assert (found.damaged_files, found.events, found.empty_files) == (1, 0, 0)


def test_stores_of_two_accounts_with_one_root_are_two() -> None:
    def store(**options: str) -> FileStore:
        given = Destination(name="d", url="abfs://", options=options)
        return FileStore(resolve_destination([given], "d", "box"))

    one, other = store(account_name="one"), store(account_name="other")
    assert one.root == other.root and store_identity(one) != store_identity(other)
