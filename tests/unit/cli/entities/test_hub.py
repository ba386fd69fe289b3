"""What `penstock hub` says of partitions."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli.entities.hub import _partition_row, count_retained


def partition(begin: int, last: int) -> dict[str, Any]:
    """As the management API describes one."""
    return {
        "id": "0",
        "begin_sequence": begin,
        "last_sequence": last,
        "last_offset": -1 if last < 0 else 435,
        "last_enqueued_ms": -1 if last < 0 else 1_794_812_715_255,
        "size_bytes": 0,
        "failed": None,
    }


@pytest.mark.parametrize(
    ("begin", "last", "events", "first_shown", "last_shown"),
    [
        (-1, -1, 0, None, None),  # never published
        (-1, 4, 0, None, 4),  # emptied by retention
        (0, 4, 5, 0, 4),
        (3, 4, 2, 3, 4),
    ],
)
def test_partition_is_counted_by_what_it_retains(
    begin: int, last: int, events: int, first_shown: int | None, last_shown: int | None
) -> None:
    found = partition(begin, last)
    assert count_retained(found) == events
    row = _partition_row(found)
    assert (row["events"], row["first_sequence_number"], row["last_sequence_number"]) == (
        events,
        first_shown,
        last_shown,
    )
