"""What a socket wrote into an intake's room comes out behind what was left over."""

from __future__ import annotations

import random

import pytest

from penstock.kernels import ReceiveBuffer

SIZE = 64


def read(intake: ReceiveBuffer, front: bytes, data: bytes) -> bytes:
    room = intake.room(front)
    room[: len(data)] = data
    return intake.take(len(data))


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 63, 64])
@pytest.mark.parametrize("front", [b"", b"f", b"front" * 40])
def test_read_stands_behind_its_front(count: int, front: bytes) -> None:
    assert read(ReceiveBuffer(SIZE), front, bytes(range(count))) == front + bytes(range(count))


def test_room_is_of_the_largest_read_and_can_be_written() -> None:
    room = ReceiveBuffer(SIZE).room(b"left over")
    assert (len(room), room.readonly) == (SIZE, False)
    assert len(room[10:]) == SIZE - 10  # TLS fills it piece by piece


def test_what_was_taken_stays_as_it_was() -> None:
    chance = random.Random(4)
    intake, taken, expected = ReceiveBuffer(SIZE), [], []
    for _ in range(500):
        front, data = chance.randbytes(chance.randrange(40)), chance.randbytes(chance.randrange(65))
        taken.append(read(intake, front, data))
        expected.append(front + data)
    assert taken == expected


def test_room_can_be_asked_for_again_when_nothing_was_read() -> None:
    intake = ReceiveBuffer(SIZE)
    intake.room(b"first")[:3] = b"abc"
    assert read(intake, b"another", b"xyz") == b"anotherxyz"


def test_bytes_are_a_value_of_their_own() -> None:
    """They can be a key, and the memory behind them is nobody else's."""
    intake = ReceiveBuffer(SIZE)
    first, again = read(intake, b"", b"a" * SIZE), read(intake, b"", b"a" * SIZE)
    assert first is not again
    assert {first: 1}[again] == 1
    read(intake, b"", b"b" * SIZE)
    assert first == again == b"a" * SIZE


def test_view_outlives_its_intake() -> None:
    room = ReceiveBuffer(SIZE).room(b"")
    room[:4] = b"here"
    assert bytes(room[:4]) == b"here"


@pytest.mark.parametrize("count", [-1, SIZE + 1, 2**40])
def test_more_than_was_read_cannot_be_taken(count: int) -> None:
    intake = ReceiveBuffer(SIZE)
    intake.room(b"")
    with pytest.raises(ValueError, match=str(count)):
        intake.take(count)


@pytest.mark.parametrize("size", [0, -5])
def test_intake_has_a_size(size: int) -> None:
    with pytest.raises(ValueError, match="at least one"):
        ReceiveBuffer(size)


def test_nothing_is_there_without_a_room() -> None:
    assert ReceiveBuffer(SIZE).take(0) == b""
