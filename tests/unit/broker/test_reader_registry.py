"""The decision table of protocol.md 5.6, walked whole, with the service's own words."""

from __future__ import annotations

import itertools

import pytest

from penstock.broker.reader_registry import (
    DECISIONS,
    NewReaderKind,
    ReaderIdentity,
    ReaderRegistry,
    RegisteredReaders,
)
from penstock.model.errors import LinkStolen, PenstockError, QuotaExceeded


def shared(name: str | None = None) -> ReaderIdentity:
    return ReaderIdentity(name, None)


def with_epoch(epoch: int, name: str | None = None) -> ReaderIdentity:
    return ReaderIdentity(name, epoch)


def owned_by(*readers: ReaderIdentity) -> ReaderRegistry[str]:
    ownership: ReaderRegistry[str] = ReaderRegistry()
    for number, reader in enumerate(readers):
        assert ownership.admit(reader, f"old{number}").displaced == []
    return ownership


def test_table_has_one_row_for_every_pair_that_can_arise() -> None:
    labels = [row[0] for row in DECISIONS]
    assert len(set(labels)) == len(labels)
    no_epoch_there = (
        RegisteredReaders.NONE,
        RegisteredReaders.SHARED,
        RegisteredReaders.SHARED_FULL,
    )
    impossible = {(existing, NewReaderKind.EPOCH_LOWER) for existing in no_epoch_there}
    pairs = set(itertools.product(RegisteredReaders, NewReaderKind)) - impossible
    assert {(existing, asking) for _, existing, asking, _ in DECISIONS} == pairs


CROWDS = [
    (),
    *[tuple([shared()] * count) for count in (1, 2, 3, 4, 5)],
    (with_epoch(7),),
]
NEWCOMERS = [shared(), with_epoch(0), with_epoch(6), with_epoch(7), with_epoch(8)]


@pytest.mark.parametrize("new", NEWCOMERS)
@pytest.mark.parametrize("crowd", CROWDS)
def test_admit_keeps_every_row_of_the_protocol(
    crowd: tuple[ReaderIdentity, ...], new: ReaderIdentity
) -> None:
    """The outcome is written here a second time, from the protocol and not from the table."""
    ownership = owned_by(*crowd)
    before = ownership.readers()
    there = crowd[0].epoch if crowd else None
    refusal: type[PenstockError] | None = None
    if new.epoch is None:
        if there is not None:
            refusal = LinkStolen
        elif len(crowd) == 5:
            refusal = QuotaExceeded
    elif there is not None and new.epoch < there:
        refusal = LinkStolen

    if refusal is not None:
        with pytest.raises(refusal):
            ownership.admit(new, "new")
        assert ownership.readers() == before
        return

    displaced = ownership.admit(new, "new").displaced
    expected_out = [] if new.epoch is None else [reader for _, reader in before]
    assert [loser.reader for loser in displaced] == expected_out
    stay = before if new.epoch is None else []
    assert ownership.readers() == [*stay, (new, "new")]


def test_sixth_shared_reader_is_refused_with_the_names_of_the_five() -> None:
    ownership = owned_by(shared("a"), shared("b"), shared(), shared("d"), shared("e"))
    with pytest.raises(QuotaExceeded) as refusal:
        ownership.admit(shared("f"), "new")
    assert str(refusal.value) == (
        "Exceeded the maximum number of allowed receivers per partition in a consumer group which "
        "is 5. List of connected receivers - a, b, nil, d, e."
    )


def test_shared_reader_beside_an_epoch_reader_is_refused_in_the_services_words() -> None:
    with pytest.raises(LinkStolen) as refusal:
        owned_by(with_epoch(3, "owner")).admit(shared("n"), "new")
    assert str(refusal.value) == (
        "At least one receiver for the endpoint is created with epoch of '3', and so non-epoch "
        "receiver is not allowed. Either reconnect with a higher epoch, or make sure all epoch "
        "receivers are closed or disconnected."
    )


def test_lower_epoch_is_refused_in_the_services_words() -> None:
    with pytest.raises(LinkStolen) as refusal:
        owned_by(with_epoch(3, "old")).admit(with_epoch(2), "new")
    assert str(refusal.value) == (
        "Receiver 'old' with a higher epoch '3' already exists. Receiver 'nil' with epoch 2 cannot "
        "be created. Make sure you are creating receiver with increasing epoch value to ensure "
        "connectivity, or ensure all old epoch receivers are closed or disconnected."
    )


def test_displaced_epoch_reader_is_told_in_the_services_words() -> None:
    (loser,) = owned_by(with_epoch(0, "m")).admit(with_epoch(0, "n"), "new").displaced
    assert str(loser.error) == (
        "New receiver 'n' with higher epoch of '0' is created hence current receiver 'm' with "
        "epoch '0' is getting disconnected. If you are recreating the receiver, make sure a higher "
        "epoch is used."
    )


def test_displaced_shared_reader_is_told_with_an_empty_epoch() -> None:
    """Word for word what was recorded on the real service (protocol.md 13)."""
    (loser,) = owned_by(shared()).admit(with_epoch(1), "new").displaced
    assert str(loser.error) == (
        "New receiver 'nil' with higher epoch of '1' is created hence current receiver 'nil' with "
        "epoch '' is getting disconnected. If you are recreating the receiver, make sure a higher "
        "epoch is used."
    )


def test_epoch_is_forgotten_with_its_reader() -> None:
    ownership = owned_by(with_epoch(9))
    ownership.release(ownership.readers()[0][1])
    assert len(ownership) == 0
    assert ownership.admit(with_epoch(0), "new").displaced == []


def test_release_of_a_displaced_reader_leaves_its_successor_alone() -> None:
    ownership = owned_by(with_epoch(1))
    (loser,) = ownership.admit(with_epoch(2), "new").displaced
    ownership.release(loser.reader)
    assert ownership.readers() == [(with_epoch(2), "new")]


def test_hostile_receiver_name_is_shown_escaped() -> None:
    (loser,) = owned_by(with_epoch(0, "a\r\nb")).admit(with_epoch(0), "new").displaced
    assert "\n" not in str(loser.error)
    assert "a\\x0d\\x0ab" in str(loser.error)
