"""Batches of idempotent producers: the compiled kernel compares bytes, the pure one decodes."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from penstock.client.event_data import EventData, EventDataBatch
from penstock.client.idempotence import ProducerState
from penstock.kernels import KernelError
from penstock.kernels._pure.publications import Publication
from penstock.kernels._pure.publications import split_batch as pure_split

compiled = pytest.importorskip(
    "penstock.kernels._publications", reason="the kernels are not compiled"
)

Split = Callable[[bytes, int, int], Publication]
NUMBER_AT = 116  # in an event's annotations, as the client writes them
KEYS = [None, "a", "b", "c" * 100, "ключ"]


def batch(
    count: int, *, published: int = 0, keys: list[str | None] | None = None, producer: int = 7
) -> EventDataBatch:
    made = EventDataBatch(1 << 20, partition_id="0", stamped=True)
    for number in range(count):
        key = None if keys is None else keys[number % len(keys)]
        event = EventData(
            b"x" * (number * 37 % 700), properties={"n": number} if number % 3 else None
        )
        assert made.try_add(event, partition_key=key)
    made.stamp(ProducerState(producer, 2, published))
    return made


def both(data: bytes) -> Publication | str:
    results: list[Publication | str] = []
    for split in (pure_split, compiled.split_batch):
        try:
            results.append(split(data, 0, len(data)))
        except KernelError as error:
            results.append(str(error))
    assert results[0] == results[1]
    return results[0]


@pytest.mark.parametrize("keys", [None, ["a"], KEYS], ids=["no key", "one key", "many keys"])
@pytest.mark.parametrize("published", [0, 41, 2**31 - 4], ids=["new", "later", "begins again"])
def test_a_run_is_told_with_its_first_and_last_number(
    keys: list[str | None] | None, published: int
) -> None:
    found = both(batch(9, published=published, keys=keys).payload())
    assert isinstance(found, Publication)
    assert found.count == 9
    assert found.producer == (7, 2, (published + 1) % 2**31, (published + 9) % 2**31)


def test_an_event_that_does_not_follow_ends_the_run() -> None:
    made = batch(9)
    gap = bytearray(made.payload())
    start = made._starts[5] + NUMBER_AT
    gap[start : start + 4] = (99).to_bytes(4)
    found = both(bytes(gap))
    assert isinstance(found, Publication)
    assert (found.count, found.producer) == (9, None)


def test_another_producer_or_no_stamp_in_between_ends_the_run() -> None:
    first, other = batch(4), batch(4, published=4, producer=8)
    envelope = first._envelope_size
    joined = first.payload() + other.payload()[envelope:]
    found = both(joined)
    assert isinstance(found, Publication) and found.producer is None
    plain = EventDataBatch(1 << 20, partition_id="0")
    plain.add(EventData(b"no stamp"))
    joined = first.payload() + plain.payload()[plain._envelope_size :]
    joined += batch(2, published=5).payload()[envelope:]
    found = both(joined)
    assert isinstance(found, Publication)
    assert (found.count, found.producer) == (7, None)


def test_implementations_agree_on_every_damaged_byte() -> None:
    made = batch(4, keys=["a", None])
    data = made.payload()
    chance = random.Random(11)
    for place in range(len(data)):
        damaged = bytearray(data)
        damaged[place] ^= 1 << chance.randrange(8)
        both(bytes(damaged))
        both(data[:place])
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(chance.randrange(1, 5)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        both(bytes(damaged))
