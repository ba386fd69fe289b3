"""Who may read a partition beside whom: exclusive (epoch) and shared readers (protocol.md 5.6).

The scope of one `Ownership` is (hub, consumer group, partition). Only readers that are attached
count: an epoch is forgotten with its reader.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Generic, TypeVar

import msgspec

from penstock.broker import error_messages
from penstock.model import limits
from penstock.model.errors import LinkStolen

R = TypeVar("R")


class ReaderIdentity(msgspec.Struct, frozen=True, gc=False):
    """What a reader says of itself: its receiver name, and an epoch if it wants to be alone."""

    name: str | None
    epoch: int | None


class RegisteredReaders(IntEnum):
    """Who reads already."""

    NOBODY = 0
    SHARED = 1  # one shared reader or more, and room for another
    SHARED_FULL = 2  # as many shared readers as are allowed
    EPOCH = 3


class NewReaderKind(IntEnum):
    """What the new reader is, measured against an epoch reader that is there."""

    SHARED = 0
    EPOCH_LOWER = 1
    EPOCH_NOT_LOWER = 2  # equal, higher, or nobody there to compare with


class RegistrationDecision(IntEnum):
    ADMIT = 0
    ADMIT_AND_DISPLACE = 1
    REFUSE_FULL = 2
    REFUSE_SHARED = 3
    REFUSE_LOWER = 4


# (row, who is there, who asks, what happens). One reader is never both; (nobody or shared, lower)
# cannot arise, since there is no epoch to be lower than.
DECISIONS = (
    ("A1", RegisteredReaders.NOBODY, NewReaderKind.SHARED, RegistrationDecision.ADMIT),
    ("A2", RegisteredReaders.NOBODY, NewReaderKind.EPOCH_NOT_LOWER, RegistrationDecision.ADMIT),
    # Shared readers are competing consumers; the documents bound them at five.
    ("B1", RegisteredReaders.SHARED, NewReaderKind.SHARED, RegistrationDecision.ADMIT),
    ("B2", RegisteredReaders.SHARED_FULL, NewReaderKind.SHARED, RegistrationDecision.REFUSE_FULL),
    # An epoch reader wants the partition for itself, so all the shared ones leave.
    (
        "C1",
        RegisteredReaders.SHARED,
        NewReaderKind.EPOCH_NOT_LOWER,
        RegistrationDecision.ADMIT_AND_DISPLACE,
    ),
    (
        "C2",
        RegisteredReaders.SHARED_FULL,
        NewReaderKind.EPOCH_NOT_LOWER,
        RegistrationDecision.ADMIT_AND_DISPLACE,
    ),
    # Event processors all attach with epoch 0: an equal epoch must win or none could take over.
    (
        "D1",
        RegisteredReaders.EPOCH,
        NewReaderKind.EPOCH_NOT_LOWER,
        RegistrationDecision.ADMIT_AND_DISPLACE,
    ),
    ("D2", RegisteredReaders.EPOCH, NewReaderKind.EPOCH_LOWER, RegistrationDecision.REFUSE_LOWER),
    ("D3", RegisteredReaders.EPOCH, NewReaderKind.SHARED, RegistrationDecision.REFUSE_SHARED),
)

_RULINGS: list[list[RegistrationDecision | None]] = [
    [None] * len(NewReaderKind) for _ in RegisteredReaders
]
for _row, _existing, _asking, _ruling in DECISIONS:
    assert _RULINGS[_existing][_asking] is None, _row
    _RULINGS[_existing][_asking] = _ruling


class DisplacedReader(msgspec.Struct, Generic[R], frozen=True):
    """A reader that lost its place, and what it is to be told."""

    reader: R
    error: LinkStolen


class Registration(msgspec.Struct, Generic[R], frozen=True):
    """The new reader is in; these are out."""

    displaced: list[DisplacedReader[R]]


class ReaderRegistry(Generic[R]):
    """The readers of one partition in one consumer group."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        self._readers: list[tuple[ReaderIdentity, R]] = []

    def __len__(self) -> int:
        return len(self._readers)

    def readers(self) -> list[tuple[ReaderIdentity, R]]:
        """Who reads now, in the order of arrival."""
        return list(self._readers)

    def admit(self, new: ReaderIdentity, reader: R) -> Registration[R]:
        """Seat the new reader and say who loses its seat to it; or raise QuotaExceeded or
        LinkStolen, and nothing has changed."""
        current = self._epoch_reader()
        ruling = _RULINGS[self._registered_readers(current)][_asking_of(new, current)]
        assert ruling is not None
        if ruling is RegistrationDecision.REFUSE_FULL:
            names = [identity.name for identity, _ in self._readers]
            raise error_messages.too_many_readers_error(names)
        if ruling is RegistrationDecision.REFUSE_SHARED:
            assert current is not None
            raise error_messages.epoch_reader_exists_error(current.epoch)
        if ruling is RegistrationDecision.REFUSE_LOWER:
            assert current is not None
            raise error_messages.lower_epoch_error(
                new_name=new.name, new_epoch=new.epoch, name=current.name, epoch=current.epoch
            )
        displaced: list[DisplacedReader[R]] = []
        if ruling is RegistrationDecision.ADMIT_AND_DISPLACE:
            displaced = [
                DisplacedReader(
                    old,
                    error_messages.displaced_error(
                        new_name=new.name,
                        new_epoch=new.epoch,
                        name=identity.name,
                        epoch=identity.epoch,
                    ),
                )
                for identity, old in self._readers
            ]
            self._readers.clear()
        self._readers.append((new, reader))
        return Registration(displaced)

    def release(self, reader: R) -> None:
        """The reader has gone; one that was displaced before is not here any more."""
        self._readers = [seat for seat in self._readers if seat[1] is not reader]

    def _registered_readers(self, current: ReaderIdentity | None) -> RegisteredReaders:
        if current is not None:
            return RegisteredReaders.EPOCH
        if not self._readers:
            return RegisteredReaders.NOBODY
        if len(self._readers) < limits.SHARED_READERS_MAX:
            return RegisteredReaders.SHARED
        return RegisteredReaders.SHARED_FULL

    def _epoch_reader(self) -> ReaderIdentity | None:
        """An epoch reader is alone, so looking at the first is enough."""
        if self._readers and self._readers[0][0].epoch is not None:
            assert len(self._readers) == 1
            return self._readers[0][0]
        return None


def _asking_of(new: ReaderIdentity, current: ReaderIdentity | None) -> NewReaderKind:
    if new.epoch is None:
        return NewReaderKind.SHARED
    if current is not None and current.epoch is not None and new.epoch < current.epoch:
        return NewReaderKind.EPOCH_LOWER
    return NewReaderKind.EPOCH_NOT_LOWER
