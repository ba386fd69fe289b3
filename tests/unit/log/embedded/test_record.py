"""Records and their headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.embedded.record import (
    RECORD_HEADER_BYTES,
    RECORD_MAGIC,
    decode_batch,
    decode_record_header,
    encode_record_header,
    is_intact,
    record_bytes,
)
from penstock.model import limits
from penstock.model.events import EventBatch, ProducerStamp, StoredBatch

SALT = 0x1234_5678
producers = st.none() | st.builds(
    ProducerStamp,
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-(2**15), 2**15 - 1),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(-(2**31), 2**31 - 1),
)


def section(message: bytes, *, long: bool = False) -> bytes:
    if len(message) < 256 and not long:
        return b"\x00\x53\x75\xa0" + bytes([len(message)]) + message
    return b"\x00\x53\x75\xb0" + len(message).to_bytes(4, "big") + message


def record(batch: EventBatch, *, first: int = 5, base: int = 1000, flushed: int = 900) -> bytes:
    header = encode_record_header(
        StoredBatch(first, base, 77, batch.count, batch.sections),
        batch.producer,
        flushed_offset=flushed,
        salt=SALT,
    )
    return header + batch.sections


@given(st.binary(max_size=300), st.integers(1, 65536), producers, st.integers(0, 2**62))
def test_record_is_decoded_as_it_was_encoded(
    sections: bytes, count: int, producer: ProducerStamp | None, base: int
) -> None:
    written = record(EventBatch(sections, count, producer=producer), base=base, flushed=0)
    header = decode_record_header(b"before" + written, 6, base_offset=base)
    assert header is not None
    assert is_intact(b"before" + written, 6, header, SALT)
    assert header.producer == producer
    assert decode_batch(b"before" + written, 6, header) == StoredBatch(5, base, 77, count, sections)
    assert header.next_offset == base + len(written) == base + record_bytes(sections)
    assert header.next_sequence == 5 + count


@pytest.mark.parametrize(("base", "flushed"), [(0, 0), (10, 0), (10, 10), (2**40, 2**40 - 5)])
def test_record_stores_what_was_flushed_before_it(base: int, flushed: int) -> None:
    header = decode_record_header(
        record(EventBatch(b"", 1), base=base, flushed=flushed), 0, base_offset=base
    )
    assert header is not None
    assert header.flushed_offset == flushed


def test_record_whose_flush_lies_far_back_claims_no_more_than_it_knows() -> None:
    base = 2**40
    header = decode_record_header(
        record(EventBatch(b"", 1), base=base, flushed=7), 0, base_offset=base
    )
    assert header is not None
    assert header.flushed_offset == base - 0xFFFF_FFFF


def test_header_is_not_taken_where_it_cannot_be_one() -> None:
    whole = record(EventBatch(section(b"x"), 1))
    assert decode_record_header(whole, 0, base_offset=1000) is not None
    assert decode_record_header(whole, 0, base_offset=1001) is None
    assert decode_record_header(whole[:63], 0, base_offset=1000) is None
    assert decode_record_header(b"PnRx" + whole[4:], 0, base_offset=1000) is None
    too_long = (limits.RECORD_PAYLOAD_BYTES_MAX + 1).to_bytes(4, "little")
    assert decode_record_header(whole[:8] + too_long + whole[12:], 0, base_offset=1000) is None
    for count in (0, limits.BATCH_EVENTS_MAX + 1):
        changed = whole[:12] + count.to_bytes(4, "little") + whole[16:]
        assert decode_record_header(changed, 0, base_offset=1000) is None


def test_record_cut_anywhere_is_not_intact() -> None:
    whole = record(EventBatch(section(b"hello"), 1))
    header = decode_record_header(whole, 0, base_offset=1000)
    assert header is not None
    for cut in range(RECORD_HEADER_BYTES, len(whole)):
        assert not is_intact(whole[:cut], 0, header, SALT)
    assert not is_intact(whole, 0, header, SALT + 1)


def test_record_has_the_documented_layout() -> None:
    batch = EventBatch(section(b"x"), 1, producer=ProducerStamp(-1, 2, 3, 4))
    written = record(batch)
    assert written[:4] == RECORD_MAGIC
    assert written[8:12] == (6).to_bytes(4, "little")
    assert written[12:16] == (1).to_bytes(4, "little")
    assert written[16:24] == (1000).to_bytes(8, "little")
    assert written[24:32] == (5).to_bytes(8, "little")
    assert written[32:40] == (77).to_bytes(8, "little")
    assert written[40:48] == b"\xff" * 8
    assert written[48:52] == (3).to_bytes(4, "little")
    assert written[52:56] == (4).to_bytes(4, "little")
    assert written[56:58] == (2).to_bytes(2, "little")
    assert written[58:60] == (1).to_bytes(2, "little")
    assert written[60:64] == (100).to_bytes(4, "little")
    assert written[64:] == batch.sections
