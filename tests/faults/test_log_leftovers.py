"""Segment files that could not be created completely: none stays behind, and those that an earlier
version left behind are recognized (docs/explanation/durability.md, rows "leftover", "overlap",
"emptied")."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.faults.test_log_every_call import (
    PASSING,
    Play,
    check_after_restart,
    read_every_way,
)
from tests.faults.test_log_faults import NOW, FaultyFiles, failing

from penstock.log.embedded.record import RECORD_HEADER_BYTES
from penstock.log.embedded.segment import SegmentHeader, decode_header, segment_name
from penstock.log.embedded.verify import LogFinding, verify_directory
from penstock.model.errors import LogFailed
from penstock.model.events import EventBatch, Receipt

STEPS = ("open", "truncate", "pwritev", "fdatasync", "fsync_directory")


def small(number: int) -> EventBatch:
    body = f"small {number}".encode()
    return EventBatch(b"\x00\x53\x75\xa0" + bytes([len(body)]) + body, 1)


LARGE_BYTES = 1100  # one fits into a segment, two do not
SMALL_BYTES = RECORD_HEADER_BYTES + len(small(0).sections)


def large(number: int) -> EventBatch:
    body = f"large {number}".encode().ljust(LARGE_BYTES, b".")
    return EventBatch(b"\x00\x53\x75\xb0" + len(body).to_bytes(4, "big") + body, 1)


class Life(Play):
    """A partition whose records the test chooses one by one."""

    def send(self, item: EventBatch) -> Receipt | LogFailed:
        [outcome] = self.bench.append(item)
        self._settle(outcome, item.sections)
        assert isinstance(outcome, Receipt | LogFailed)
        return outcome


def failing_for(call: str, base: int, code: int) -> Callable[[str, str], int | None]:
    """Fail one step of creating the segment at `base`; the directory's flush has no file name."""
    name = "/hub/0" if call == "fsync_directory" else segment_name(base)

    def fault(called: str, path: str) -> int | None:
        return code if called == call and path.endswith(name) else None

    return fault


def files_of(directory: Path) -> list[str]:
    return sorted(path.name for path in (directory / "hub" / "0").glob("*.log"))


# --- a segment that cannot be created leaves nothing behind ---------------------------------------


@pytest.mark.parametrize("code", sorted(PASSING))
@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("is_by_retention", [False, True], ids=["round", "retention"])
def test_segment_that_could_not_be_created_leaves_no_file_and_the_log_continues(
    tmp_path: Path, call: str, code: int, is_by_retention: bool
) -> None:
    """Cases A1, A2, A3 and A5 of the finding: smaller records go on in the old segment."""
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.send(large(0))
    base = RECORD_HEADER_BYTES + 8 + LARGE_BYTES
    files.fault = failing_for(call, base, code)
    if is_by_retention:
        life.roll()
    else:
        assert isinstance(life.send(large(1)), LogFailed)
    assert files_of(tmp_path) == [segment_name(0)]
    for number in range(2):
        assert isinstance(life.send(small(number)), Receipt)
    files.fault = lambda call, path: None
    assert isinstance(life.send(large(2)), Receipt)
    life.roll()
    assert isinstance(life.send(small(3)), Receipt)
    assert life.bench.partition().status().failed is None
    assert read_every_way(life.bench.partition()) == life.acknowledged
    life.bench.store.close()
    check_after_restart(tmp_path, life.acknowledged)


@pytest.mark.parametrize("call", STEPS)
@pytest.mark.parametrize("is_by_retention", [False, True], ids=["round", "retention"])
def test_input_output_error_while_a_segment_is_created_is_final(
    tmp_path: Path, call: str, is_by_retention: bool
) -> None:
    """Case A4: one EIO stops the partition, also when retention began the segment."""
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.send(large(0))
    files.fault = failing_for(call, RECORD_HEADER_BYTES + 8 + LARGE_BYTES, errno.EIO)
    if is_by_retention:
        life.roll()
    else:
        assert isinstance(life.send(large(1)), LogFailed)
    files.fault = lambda call, path: None
    failed = life.bench.partition().status().failed
    assert failed is not None
    assert "restart" in failed
    assert isinstance(life.send(small(1)), LogFailed)
    assert read_every_way(life.bench.partition()) == life.acknowledged
    assert files_of(tmp_path) == [segment_name(0)]
    life.bench.store.close()
    check_after_restart(tmp_path, life.acknowledged)


def test_input_output_error_of_the_producers_file_is_final_too(tmp_path: Path) -> None:
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.send(large(0))
    files.fault = lambda call, path: (
        errno.EIO if call == "fdatasync" and ".producers" in path else None
    )
    life.roll()
    files.fault = lambda call, path: None
    assert isinstance(life.send(small(1)), LogFailed)
    life.bench.store.close()
    check_after_restart(tmp_path, life.acknowledged)


@pytest.mark.parametrize("is_by_retention", [False, True], ids=["round", "retention"])
def test_file_that_cannot_be_removed_stops_the_partition_and_is_named(
    tmp_path: Path, is_by_retention: bool
) -> None:
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.send(large(0))
    base = RECORD_HEADER_BYTES + 8 + LARGE_BYTES
    failing = {"fdatasync": errno.ENOSPC, "unlink": errno.ENOSPC}
    files.fault = lambda call, path: (
        failing.get(call) if path.endswith(segment_name(base)) else None
    )
    if is_by_retention:
        life.roll()
    else:
        assert isinstance(life.send(large(1)), LogFailed)
    files.fault = lambda call, path: None
    failed = life.bench.partition().status().failed
    assert failed is not None
    assert segment_name(base) in failed
    assert "could not be removed" in failed
    assert isinstance(life.send(small(1)), LogFailed)
    assert files_of(tmp_path) == [segment_name(0), segment_name(base)]
    life.bench.store.close()
    check_after_restart(tmp_path, life.acknowledged)


def test_cut_back_is_flushed_before_the_next_segment_begins(tmp_path: Path) -> None:
    """Else a power cut could bring back a refused record behind the next segment's base."""
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.send(small(0))
    files.fault = failing_for("fdatasync", 0, errno.ENOSPC)
    assert isinstance(life.send(small(1)), LogFailed)
    files.fault = lambda call, path: None
    before = files.count("fdatasync", f"/hub/0/{segment_name(0)}")
    life.roll()
    assert files.count("fdatasync", f"/hub/0/{segment_name(0)}") == before + 1
    life.bench.store.close()


# --- data directories of earlier versions ---------------------------------------------------------


def header_at(directory: Path, base: int, first_sequence: int) -> bytes:
    """As the earlier version wrote it into the file that it left behind."""
    path = directory / "hub" / "0" / segment_name(0)
    found = decode_header(path.read_bytes(), path)
    assert found is not None
    return SegmentHeader(base, first_sequence, base - 10, NOW, found.salt, 0).encode()


def written(directory: Path, *, is_rolled: bool) -> Life:
    """Ten small records in the first segment; then three in the next one, if rolled."""
    life = Life(directory, FaultyFiles())
    for number in range(10):
        life.send(small(number))
    if is_rolled:
        life.roll()
        for number in range(10, 13):
            life.send(small(number))
    life.bench.store.close()
    return life


def losses(directory: Path) -> list[str]:
    found = [item for item in verify_directory(directory) if isinstance(item, LogFinding)]
    return [item.text for item in found if item.is_loss]


@pytest.mark.parametrize("is_rolled", [False, True], ids=["newest", "between"])
@pytest.mark.parametrize("has_header", [False, True], ids=["empty", "whole header"])
@pytest.mark.parametrize("bases", [(4,), (4, 5, 8)], ids=["one", "three"])
def test_leftover_of_an_earlier_version_is_removed_and_nothing_is_lost(
    tmp_path: Path, is_rolled: bool, has_header: bool, bases: tuple[int, ...]
) -> None:
    """Cases A1 to A5 and E2E as commit 2ffc782 left them on disk."""
    life = written(tmp_path, is_rolled=is_rolled)
    before = files_of(tmp_path)
    folder = tmp_path / "hub" / "0"
    for number in bases:
        base = number * SMALL_BYTES
        content = header_at(tmp_path, base, number) if has_header else b""
        (folder / segment_name(base)).write_bytes(content)
        (folder / segment_name(base)).with_suffix(".producers").write_bytes(b"stamps")
    assert len(losses(tmp_path)) == (len(bases) if has_header else 0)
    again = Life(tmp_path, FaultyFiles())
    assert again.bench.partition().damage == ()
    assert files_of(tmp_path) == before
    assert read_every_way(again.bench.partition()) == life.acknowledged
    again.bench.store.close()
    assert losses(tmp_path) == []
    check_after_restart(tmp_path, life.acknowledged)


def test_leftover_that_an_earlier_version_wrote_to_is_served_and_the_hidden_range_reported(
    tmp_path: Path,
) -> None:
    """Numbers were given twice there; both files are kept."""
    written(tmp_path, is_rolled=False)
    folder = tmp_path / "hub" / "0"
    hidden = (folder / segment_name(0)).read_bytes()
    base = 4 * SMALL_BYTES
    (folder / segment_name(0)).write_bytes(hidden[: len(hidden) - 6 * SMALL_BYTES])
    (folder / segment_name(base)).write_bytes(header_at(tmp_path, base, 4))
    life = Life(tmp_path, FaultyFiles())
    life.send(small(99))
    life.bench.store.close()
    (folder / segment_name(0)).write_bytes(hidden)
    assert any("hides 6 events" in text for text in losses(tmp_path))
    again = Life(tmp_path, FaultyFiles())
    [damage] = again.bench.partition().damage
    assert "events up to number 9" in damage
    found = read_every_way(again.bench.partition())
    assert [sequence for sequence, _ in found] == [0, 1, 2, 3, 4]
    assert found[4][1] == small(99).sections
    outcome = again.send(small(100))
    assert isinstance(outcome, Receipt)
    assert outcome.first_sequence == 5
    again.bench.store.close()
    assert (folder / segment_name(0)).read_bytes() == hidden


@pytest.mark.parametrize("is_first", [False, True])
def test_closed_segment_that_was_emptied_is_reported_and_the_rest_is_served(
    tmp_path: Path, is_first: bool
) -> None:
    life = Life(tmp_path, FaultyFiles())
    for number in range(3):
        life.send(large(number))
    life.bench.store.close()
    names = files_of(tmp_path)
    assert len(names) == 3
    victim = tmp_path / "hub" / "0" / names[0 if is_first else 1]
    victim.write_bytes(b"")
    assert len(losses(tmp_path)) >= 1
    again = Life(tmp_path, FaultyFiles())
    assert victim.name in again.bench.partition().damage[0]
    last = again.bench.partition().read(2, bytes_max=1 << 20)
    assert [item.first_sequence for item in last] == [2]
    outcome = again.send(small(9))
    assert isinstance(outcome, Receipt)
    assert outcome.first_sequence == 3
    again.bench.store.close()
    assert victim.read_bytes() == b""


@pytest.mark.parametrize("is_by_retention", [False, True])
@pytest.mark.parametrize("call", ["open", "pwritev", "rename", "truncate"])
def test_input_output_error_while_a_segment_is_closed_is_final(
    tmp_path: Path, call: str, is_by_retention: bool
) -> None:
    """The next segment is there already, so nothing is lost; the disk is not trusted any more."""
    files = FaultyFiles()
    life = Life(tmp_path, files)
    life.send(large(0))
    path = f"/hub/0/{segment_name(0)}"
    files.fault = failing(call, path if call == "truncate" else ".index", errno.EIO)
    if is_by_retention:
        life.roll()
    else:
        assert isinstance(life.send(large(1)), LogFailed)
    files.fault = lambda call, path: None
    failed = life.bench.partition().status().failed
    assert failed is not None
    assert "restart" in failed
    assert isinstance(life.send(small(1)), LogFailed)
    assert read_every_way(life.bench.partition()) == life.acknowledged
    life.bench.store.close()
    check_after_restart(tmp_path, life.acknowledged)
