"""The newest stamps of producers and their file."""

from __future__ import annotations

import pytest

from penstock.log.checksummed_file import add_checksum
from penstock.log.producer_state import ProducerStates, decode_producers
from penstock.model import limits
from penstock.model.events import ProducerStamp


def test_producers_file_is_read_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PRODUCERS_PER_PARTITION_MAX", 3)
    table = ProducerStates()
    for number in (1, 2, 3, 1, 4):
        table.note(ProducerStamp(number, -1, number, number + 1))
    found = decode_producers(table.encode(55))
    assert found is not None
    read, through = found
    assert through == 55
    assert len(read) == len(table) == 3
    read.note(ProducerStamp(9, 0, 0, 0))
    assert read.get(3) is None  # the oldest went first, as it would have before
    assert table.get(3) is not None
    assert decode_producers(b"") is None
    assert decode_producers(add_checksum(b"PNSTKPRD", bytes(9))) is None
