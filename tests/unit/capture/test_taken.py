"""Names of files, when several runs of a hub are at work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.capture.taken import FileNameRegistry
from penstock.capture.windows import ClosedRange


def cuts(*named_s: int, window: int = 0) -> list[ClosedRange]:
    return [ClosedRange(window + n, 0, 1, second) for n, second in enumerate(named_s)]


def seconds(found: list[ClosedRange]) -> list[int]:
    return [cut.named_s for cut in found]


@pytest.fixture
def taken(tmp_path: Path) -> Iterator[FileNameRegistry]:
    made = FileNameRegistry(tmp_path / "state" / "hub.names.sqlite")
    yield made
    made.close()


def test_two_runs_never_have_the_same_name(taken: FileNameRegistry) -> None:
    """Switched off and on within a second, or with names that ran ahead of the clock."""
    assert seconds(taken.take("a", "0", cuts(31, 32, 33), after_s=30)) == [31, 32, 33]
    assert seconds(taken.take("b", "0", cuts(31, 40), after_s=30)) == [34, 40]
    assert seconds(taken.take("a", "0", cuts(34, window=3), after_s=33)) == [35]
    assert seconds(taken.take("b", "1", cuts(31), after_s=30)) == [31], "another partition"


def test_a_window_that_is_cut_again_has_the_same_name(taken: FileNameRegistry) -> None:
    taken.take("a", "0", cuts(31), after_s=30)
    first = taken.take("b", "0", cuts(31, 31), after_s=30)
    assert seconds(first) == [32, 33]
    assert taken.take("b", "0", cuts(31, 31), after_s=30) == first
    # A place that is later than the name that it had (the log went back): another name.
    assert seconds(taken.take("b", "0", cuts(31), after_s=50)) == [51]
    assert seconds(taken.take("c", "0", cuts(32), after_s=30)) == [32], "and the old one is free"


def test_events_from_before_go_between_files_that_are_there(taken: FileNameRegistry) -> None:
    taken.take("a", "0", cuts(31), after_s=30)
    found = taken.take("h", "0", cuts(31, 45), after_s=5, is_there={30, 45}.__contains__)
    assert seconds(found) == [29, 44]
    assert seconds(taken.take("a", "0", cuts(44, window=1), after_s=31)) == [45]


def test_names_of_long_ago_are_forgotten(taken: FileNameRegistry) -> None:
    taken.take("a", "0", cuts(31), after_s=30)
    later = 31 + 9 * 24 * 3600
    taken.take("a", "0", cuts(later, window=1000), after_s=31)
    assert seconds(taken.take("b", "0", cuts(31), after_s=30)) == [31]
