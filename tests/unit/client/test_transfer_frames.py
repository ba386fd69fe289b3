"""Prepared frames: what a peer decodes from them, whichever ids they were given."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.amqp.frames import parse_frame_header
from penstock.amqp.link import Link
from penstock.amqp.performatives import Transfer, decode_performative
from penstock.amqp.transfer_run import scan_transfers
from penstock.client.transfer_frames import (
    BATCH_FORMAT,
    PreparedRun,
    TransferFraming,
    encode_publication,
)
from penstock.kernels import split_batch

WRAP = 2**32


def framing(*, message_format: int = 0, frame_bytes_max: int = 65536) -> TransferFraming:
    session = SimpleNamespace(channel=3, frame_bytes_max=frame_bytes_max)
    link = SimpleNamespace(session=session, handle=7)
    return TransferFraming(cast(Link, link), message_format)


def frames(data: bytes, *, frame_bytes_max: int = 65536) -> list[tuple[Transfer, bytes]]:
    found, position = [], 0
    while position < len(data):
        size, body, frame_type, channel = parse_frame_header(
            data, position, frame_bytes_max=frame_bytes_max
        )
        assert (frame_type, channel) == (0, 3)
        transfer, payload = decode_performative(data, body, position + size)
        assert isinstance(transfer, Transfer)
        found.append((transfer, data[payload : position + size]))
        position += size
    assert position == len(data)
    return found


@pytest.mark.parametrize("first", [0, 1, 255, 256, 65_535, 2**24 - 3, WRAP - 700, WRAP - 1])
def test_prepared_frames_carry_consecutive_ids_also_across_the_wrap(first: int) -> None:
    payload, message_format = encode_publication(100, 1)
    run = PreparedRun(framing(), payload)
    for transfer, number in zip(frames(run.take(first, 1000)), range(1000), strict=True):
        performative, body = transfer
        wanted = (first + number) % WRAP
        assert performative.delivery_id == wanted
        assert performative.delivery_tag == wanted.to_bytes(4, "big")
        assert (performative.handle, performative.message_format) == (7, message_format)
        assert (performative.settled, performative.more) == (False, False)
        assert body == payload


@given(
    first=st.integers(0, WRAP - 1),
    count=st.integers(1, 600),
    size=st.integers(0, 2000),
    batch=st.sampled_from([1, 2, 30]),
    frame_bytes_max=st.sampled_from([512, 4096, 65536]),
)
@settings(max_examples=60, deadline=None)
def test_prepared_frames_join_to_the_payload_whatever_their_size(
    first: int, count: int, size: int, batch: int, frame_bytes_max: int
) -> None:
    payload, message_format = encode_publication(size, batch)
    made = framing(message_format=message_format, frame_bytes_max=frame_bytes_max)
    run = PreparedRun(made, payload)
    count = min(count, 1 + 2_000_000 // len(payload))
    found = frames(run.take(first, count), frame_bytes_max=frame_bytes_max)
    assert len(found) == count * run.pieces == count * made.pieces(len(payload))
    for number in range(count):
        pieces = found[number * run.pieces : (number + 1) * run.pieces]
        assert {piece.delivery_id for piece, _ in pieces} == {(first + number) % WRAP}
        assert [piece.more for piece, _ in pieces] == [True] * (run.pieces - 1) + [False]
        assert b"".join(body for _, body in pieces) == payload


def test_frames_taken_earlier_stay_as_they_were_when_the_block_is_renumbered() -> None:
    run = PreparedRun(framing(), encode_publication(10, 1)[0])
    early = run.take(0, 5)
    run.take(WRAP - 256, 5)
    assert [transfer.delivery_id for transfer, _ in frames(early)] == [0, 1, 2, 3, 4]


def test_scan_kernel_takes_the_frames_as_one_run() -> None:
    data = PreparedRun(framing(), encode_publication(100, 1)[0]).take(WRAP - 100, 1000)
    run = scan_transfers(data, 0, len(data), frame_bytes_max=65536)
    assert run is not None
    assert (run.count, run.first_delivery_id, run.next_position) == (1000, WRAP - 100, len(data))


def test_batch_publication_holds_the_events_asked_for() -> None:
    payload, message_format = encode_publication(100, 30)
    assert message_format == BATCH_FORMAT
    assert split_batch(payload, 0, len(payload), publisher=None).count == 30


@pytest.mark.parametrize(("size", "batch"), [(0, 1), (100, 1), (255, 1), (256, 1), (1024, 100)])
def test_azure_eventhub_decodes_the_frames(size: int, batch: int) -> None:
    oracle: Any = pytest.importorskip("azure.eventhub._pyamqp._decode")
    payload, message_format = encode_publication(size, batch)
    run = PreparedRun(framing(message_format=message_format), payload)
    data = run.take(WRAP - 1, 1)
    body, position = b"", 0
    while position < len(data):
        size_of_frame = int.from_bytes(data[position : position + 4], "big")
        frame = memoryview(data)[position + 8 : position + size_of_frame]
        code, fields = oracle.decode_frame(frame)
        assert code == 20
        assert fields[0:5] == [7, WRAP - 1, b"\xff\xff\xff\xff", message_format, False]
        position += size_of_frame
        assert fields[5] is (position < len(data))
        body += bytes(fields[11])
    message = oracle.decode_payload(memoryview(body))
    assert len(message.data if isinstance(message.data, list) else [message.data]) == batch
