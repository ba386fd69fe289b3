"""Which readers may read a partition at the same time: epoch (exclusive) and shared readers
(protocol.md 5.6).

A registry covers one partition in one consumer group. Only attached readers count: an epoch is
forgotten when its reader closes.
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
    """The receiver name that the client chose, and the epoch of an exclusive reader."""

    name: str | None
    epoch: int | None


class RegisteredReaders(IntEnum):
    """The readers that are registered already."""

    NONE = 0
    SHARED = 1  # at least one, fewer than allowed
    SHARED_FULL = 2  # as many as allowed
    EPOCH = 3


class NewReaderKind(IntEnum):
    """The new reader, compared with a registered epoch reader."""

    SHARED = 0
    EPOCH_LOWER = 1
    EPOCH_NOT_LOWER = 2  # equal or higher, or there is no epoch reader


class RegistrationDecision(IntEnum):
    ADMIT = 0
    ADMIT_AND_DISPLACE = 1
    REFUSE_FULL = 2
    REFUSE_SHARED = 3
    REFUSE_LOWER = 4


# (row, registered readers, new reader, decision). There is no row for an epoch that is lower than
# that of no epoch reader: it cannot occur.
DECISIONS = (
    ("A1", RegisteredReaders.NONE, NewReaderKind.SHARED, RegistrationDecision.ADMIT),
    ("A2", RegisteredReaders.NONE, NewReaderKind.EPOCH_NOT_LOWER, RegistrationDecision.ADMIT),
    # Shared readers each get all events; Azure allows five.
    ("B1", RegisteredReaders.SHARED, NewReaderKind.SHARED, RegistrationDecision.ADMIT),
    ("B2", RegisteredReaders.SHARED_FULL, NewReaderKind.SHARED, RegistrationDecision.REFUSE_FULL),
    # An epoch reader is exclusive: it displaces all shared readers.
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
    # Event processors attach with epoch 0: if an equal epoch did not win, none could take over.
    (
        "D1",
        RegisteredReaders.EPOCH,
        NewReaderKind.EPOCH_NOT_LOWER,
        RegistrationDecision.ADMIT_AND_DISPLACE,
    ),
    ("D2", RegisteredReaders.EPOCH, NewReaderKind.EPOCH_LOWER, RegistrationDecision.REFUSE_LOWER),
    ("D3", RegisteredReaders.EPOCH, NewReaderKind.SHARED, RegistrationDecision.REFUSE_SHARED),
)

_TABLE: list[list[RegistrationDecision | None]] = [
    [None] * len(NewReaderKind) for _ in RegisteredReaders
]
for _row, _registered, _new, _decision in DECISIONS:
    assert _TABLE[_registered][_new] is None, _row
    _TABLE[_registered][_new] = _decision


class DisplacedReader(msgspec.Struct, Generic[R], frozen=True):
    """A reader that lost its registration, and the error for its link."""

    reader: R
    error: LinkStolen


class Registration(msgspec.Struct, Generic[R], frozen=True):
    """The new reader is registered; `displaced` readers no longer are."""

    displaced: list[DisplacedReader[R]]


class ReaderRegistry(Generic[R]):
    """The readers of one partition in one consumer group."""

    __slots__ = ("_readers",)

    def __init__(self) -> None:
        # In order of registration: up to SHARED_READERS_MAX shared readers, or one epoch reader
        # alone, never both. `_epoch_reader` relies on it.
        self._readers: list[tuple[ReaderIdentity, R]] = []

    def __len__(self) -> int:
        return len(self._readers)

    def readers(self) -> list[tuple[ReaderIdentity, R]]:
        """The registered readers, in order of registration."""
        return list(self._readers)

    def admit(self, new: ReaderIdentity, reader: R) -> Registration[R]:
        """Register the new reader and return the displaced ones, whose links the caller ends.
        Raises QuotaExceeded or LinkStolen; the registry is then unchanged."""
        current = self._epoch_reader()
        decision = _TABLE[self._registered_readers(current)][_new_reader_kind(new, current)]
        assert decision is not None
        if decision is RegistrationDecision.REFUSE_FULL:
            names = [identity.name for identity, _ in self._readers]
            raise error_messages.too_many_readers_error(names)
        if decision is RegistrationDecision.REFUSE_SHARED:
            assert current is not None
            raise error_messages.epoch_reader_exists_error(current.epoch)
        if decision is RegistrationDecision.REFUSE_LOWER:
            assert current is not None
            raise error_messages.lower_epoch_error(
                new_name=new.name, new_epoch=new.epoch, name=current.name, epoch=current.epoch
            )
        displaced: list[DisplacedReader[R]] = []
        if decision is RegistrationDecision.ADMIT_AND_DISPLACE:
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
        """Remove the reader. Does nothing for one that was displaced."""
        self._readers = [entry for entry in self._readers if entry[1] is not reader]

    def _registered_readers(self, current: ReaderIdentity | None) -> RegisteredReaders:
        if current is not None:
            return RegisteredReaders.EPOCH
        if not self._readers:
            return RegisteredReaders.NONE
        if len(self._readers) < limits.SHARED_READERS_MAX:
            return RegisteredReaders.SHARED
        return RegisteredReaders.SHARED_FULL

    def _epoch_reader(self) -> ReaderIdentity | None:
        """The registered epoch reader, which is then the only reader."""
        if self._readers and self._readers[0][0].epoch is not None:
            assert len(self._readers) == 1
            return self._readers[0][0]
        return None


def _new_reader_kind(new: ReaderIdentity, current: ReaderIdentity | None) -> NewReaderKind:
    if new.epoch is None:
        return NewReaderKind.SHARED
    if current is not None and current.epoch is not None and new.epoch < current.epoch:
        return NewReaderKind.EPOCH_LOWER
    return NewReaderKind.EPOCH_NOT_LOWER
