"""The decisions of protocol.md 5.6, in every combination, with the service's own words."""

from __future__ import annotations

from typing import cast

import pytest

from penstock.broker.reader import Reader
from penstock.broker.reader_registry import register_reader
from penstock.model.errors import LinkStolen, PenstockError, QuotaExceeded


class FakeReader:
    def __init__(self, name: str | None, epoch: int | None) -> None:
        self.name = name
        self.epoch = epoch
        self.error: PenstockError | None = None

    def end(self, error: PenstockError) -> None:
        self.error = error


class Registry:
    """The readers of one partition in one consumer group."""

    def __init__(self, *readers: FakeReader) -> None:
        self.readers: list[FakeReader] = []
        for reader in readers:
            assert self.admit(reader) == []

    def admit(self, new: FakeReader) -> list[FakeReader]:
        """Register the reader; return the displaced ones."""
        before = self.readers.copy()
        register_reader(cast("list[Reader]", self.readers), cast("Reader", new))
        return [reader for reader in before if reader.error is not None]


def shared(name: str | None = None) -> FakeReader:
    return FakeReader(name, None)


def with_epoch(epoch: int, name: str | None = None) -> FakeReader:
    return FakeReader(name, epoch)


@pytest.mark.parametrize("epoch", [None, 0, 6, 7, 8])
@pytest.mark.parametrize("registered", [[], *([None] * count for count in range(1, 6)), [7]])
def test_admit_keeps_every_row_of_the_protocol(
    registered: list[int | None], epoch: int | None
) -> None:
    registry = Registry(*(FakeReader(None, epoch) for epoch in registered))
    before = registry.readers.copy()
    there = registered[0] if registered else None
    refusal: type[PenstockError] | None = None
    if epoch is None:
        if there is not None:
            refusal = LinkStolen
        elif len(registered) == 5:
            refusal = QuotaExceeded
    elif there is not None and epoch < there:
        refusal = LinkStolen

    new = FakeReader(None, epoch)
    if refusal is not None:
        with pytest.raises(refusal):
            registry.admit(new)
        assert registry.readers == before
        assert all(reader.error is None for reader in before)
        return

    assert registry.admit(new) == ([] if epoch is None else before)
    assert registry.readers == [*(before if epoch is None else []), new]


def test_sixth_shared_reader_is_refused_with_the_names_of_the_five() -> None:
    registry = Registry(shared("a"), shared("b"), shared(), shared("d"), shared("e"))
    with pytest.raises(QuotaExceeded) as refusal:
        registry.admit(shared("f"))
    assert str(refusal.value) == (
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which "
        "is 5. List of connected receivers - a, b, nil, d, e."
    )


def test_shared_reader_beside_an_epoch_reader_is_refused_in_the_services_words() -> None:
    with pytest.raises(LinkStolen) as refusal:
        Registry(with_epoch(3, "owner")).admit(shared("n"))
    assert str(refusal.value) == (
        "At least one receiver for the endpoint is created with epoch of '3', and so non-epoch "
        "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch "
        "receivers are closed or disconnected."
    )


def test_lower_epoch_is_refused_in_the_services_words() -> None:
    with pytest.raises(LinkStolen) as refusal:
        Registry(with_epoch(3, "old")).admit(with_epoch(2))
    assert str(refusal.value) == (
        "Receiver 'old' with a higher epoch '3' already exists. Receiver 'nil' with epoch 2 cannot "
        "be created. Make sure you are creating receiver with increasing epoch value to ensure "
        "connectivity, or ensure all old epoch receivers are closed or disconnected."
    )


def test_displaced_epoch_reader_is_told_in_the_services_words() -> None:
    (loser,) = Registry(with_epoch(0, "m")).admit(with_epoch(0, "n"))
    assert str(loser.error) == (
        "New receiver 'n' with higher epoch of '0' is created hence current receiver 'm' with "
        "epoch '0' is getting disconnected. If you are recreating the receiver, make sure a higher "
        "epoch is used."
    )


def test_displaced_shared_reader_is_told_with_an_empty_epoch() -> None:
    """Word for word what was recorded on the real service (protocol.md 13)."""
    (loser,) = Registry(shared()).admit(with_epoch(1))
    assert str(loser.error) == (
        "New receiver 'nil' with higher epoch of '1' is created hence current receiver 'nil' with "
        "epoch '' is getting disconnected. If you are recreating the receiver, make sure a higher "
        "epoch is used."
    )


def test_epoch_is_forgotten_with_its_reader() -> None:
    registry = Registry(with_epoch(9))
    registry.readers.clear()
    assert registry.admit(with_epoch(0)) == []


def test_hostile_receiver_name_is_shown_escaped() -> None:
    (loser,) = Registry(with_epoch(0, "a\r\nb")).admit(with_epoch(0))
    assert "\n" not in str(loser.error)
    assert "a\\x0d\\x0ab" in str(loser.error)
