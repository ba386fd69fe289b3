"""Names of files and slots, and the way back from a name to its hub."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from penstock.capture.description import NAME_FORMAT_DEFAULT, TOKENS, check_name_format
from penstock.capture.destinations import Destination, resolve_destination
from penstock.capture.file_names import (
    NamePattern,
    check_path,
    format_file_path,
    manifest_path,
    slot_name,
    slot_start,
)
from penstock.capture.hub_files import (
    FileLocationFilter,
    list_hub_files,
    resolve_locations,
)
from penstock.capture.storage import FileStore
from penstock.model.capture import FileLocation
from penstock.model.errors import ArgumentError

ORDERS = list(itertools.islice(itertools.permutations(TOKENS), 0, None, 36287))
AT_S = 1_763_327_127  # 2025-11-16T21:05:27Z


def test_default_is_the_documented_path() -> None:
    path = format_file_path(
        NAME_FORMAT_DEFAULT, namespace="ns", hub="events", partition="3", at_s=AT_S
    )
    assert path == "ns/events/3/2025/11/16/21/05/27.avro"


@pytest.mark.parametrize("order", ORDERS)
def test_tokens_stand_in_any_order_and_lead_back(order: tuple[str, ...]) -> None:
    name_format = check_name_format("_".join(f"{{{token}}}" for token in order))
    path = format_file_path(name_format, namespace="ns", hub="events", partition="12", at_s=AT_S)
    assert NamePattern(name_format, "ns", "events").parse(path) == ("12", AT_S)


def test_files_of_a_hub_that_was_deleted_are_not_those_of_its_heir(tmp_path: Path) -> None:
    target = resolve_destination([Destination(name="here", url=tmp_path.as_uri())], "here", "box")
    store = FileStore(target)
    for second in (AT_S, AT_S + 1):
        path = format_file_path(
            NAME_FORMAT_DEFAULT, namespace="ns", hub="events", partition="0", at_s=second
        )
        store.put_bytes(b"x", path, tmp_path / "spool")
    place = FileLocation(account="here", container="box", name_format=NAME_FORMAT_DEFAULT)
    for created_ms, count in ((0, 2), (AT_S * 1000 + 999, 1), (AT_S * 1000 + 1000, 0)):
        shelves, troubles = resolve_locations([place], [target.destination], created_ms=created_ms)
        assert troubles == []
        assert len(list_hub_files(shelves, [store], "ns", "events")) == count


@pytest.mark.parametrize(
    ("name_format", "below"),
    [
        (NAME_FORMAT_DEFAULT, "ns/events"),
        ("a/b{Namespace}/x-{EventHub}-{Year}/{PartitionId}", "a/bns"),
        ("{Year}/{Namespace}/{EventHub}", ""),
        ("{EventHub}{Year}", ""),
    ],
)
def test_files_are_looked_for_where_all_names_of_the_hub_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name_format: str, below: str
) -> None:
    assert NamePattern(name_format, "ns", "events").directory == below
    asked: list[str] = []

    def nothing(_: FileStore, prefix: str = "") -> list[tuple[str, int]]:
        asked.append(prefix)
        return []

    monkeypatch.setattr(FileStore, "files", nothing)
    target = resolve_destination([Destination(name="here", url=tmp_path.as_uri())], "here", "box")
    shelf = FileLocationFilter(target=target, name_format=name_format)
    assert list_hub_files([shelf], [FileStore(target)], "ns", "events") == []
    assert asked == [below]


def test_hive_style_paths_work() -> None:
    name_format = (
        "{Namespace}/{EventHub}/year={Year}/month={Month}/day={Day}/hour={Hour}/"
        "{Minute}-{Second}-p{PartitionId}"
    )
    path = format_file_path(
        name_format, namespace="n-s", hub="a", partition="0", at_s=AT_S, file_type="parquet"
    )
    assert path == "n-s/a/year=2025/month=11/day=16/hour=21/05-27-p0.parquet"
    assert NamePattern(name_format, "n-s", "a").parse(path) == ("0", AT_S)


def test_text_of_a_name_format_may_look_like_a_token() -> None:
    name_format = check_name_format("EventHub/Year/" + NAME_FORMAT_DEFAULT)
    path = format_file_path(name_format, namespace="ns", hub="h", partition="3", at_s=AT_S)
    assert path == "EventHub/Year/ns/h/3/2025/11/16/21/05/27.avro"
    assert NamePattern(name_format, "ns", "h").parse(path) == ("3", AT_S)


def test_only_a_hub_s_own_files_are_listed_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [
        format_file_path(
            NAME_FORMAT_DEFAULT, namespace="ns", hub=hub, partition=partition, at_s=at_s
        )
        for hub, partition, at_s in [("a", "10", 5), ("a", "2", 9), ("a", "2", 7), ("ab", "0", 1)]
    ]
    others = [
        "_manifests/a/x.json",
        "ns/a/0/2025/11/16/21/05/27.tmp",
        "ns/a/0/9999/99/99/1/1/1.avro",
    ]
    monkeypatch.setattr(FileStore, "files", lambda *_: [(path, 1) for path in [*paths, *others]])
    target = resolve_destination([Destination(name="here", url=tmp_path.as_uri())], "here", "box")
    location = FileLocationFilter(target=target, name_format=NAME_FORMAT_DEFAULT)
    found = list_hub_files([location], [FileStore(target)], "ns", "a")
    assert [(each.partition, each.named_s) for each in found] == [("2", 7), ("2", 9), ("10", 5)]


@pytest.mark.parametrize("path", ["../x", "a/../b", "/a", "a//b", "a/./b", "a\\b", "a\nb", ""])
def test_no_path_leads_out(path: str) -> None:
    with pytest.raises(ArgumentError):
        check_path(path)


def test_slots_are_aligned_to_the_clock_of_the_world() -> None:
    assert slot_start(AT_S, 300) % 300 == 0
    assert slot_name(slot_start(AT_S, 300)) == "2025-11-16T21-05-00Z"
    assert (
        manifest_path("events", slot_start(AT_S, 60))
        == "_manifests/events/2025-11-16T21-05-00Z.json"
    )
