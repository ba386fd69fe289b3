"""From transfers to publications."""

from __future__ import annotations

import msgspec

from penstock.kernels._pure.values import KernelError


class Publication(msgspec.Struct, frozen=True, gc=False):
    """Events for one partition, canonical and ready to be stored.

    `producer` is (producer id, epoch, first number, last number) of protocol.md 4.7.
    """

    sections: bytes
    count: int
    partition_key: str | None
    producer: tuple[int, int, int, int] | None


class Refusal(msgspec.Struct, frozen=True):
    """Messages that cannot be taken, in the place where they stood."""

    count: int
    error: KernelError


def split_batch(
    data: bytes, start: int, end: int, *, publisher: str | None = None, events_max: int = 65536
) -> Publication:
    """Split one message of format 0x80013700 into its events."""
    raise NotImplementedError


def split_singles(
    data: bytes, bounds: list[int], *, publisher: str | None = None
) -> list[Publication | Refusal]:
    """Coalesce ordinary messages of one socket read into as few publications as possible."""
    raise NotImplementedError
