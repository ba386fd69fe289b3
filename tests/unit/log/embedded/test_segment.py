"""Names and headers of segment files."""

from __future__ import annotations

from penstock.log.embedded.segment import SegmentHeader, parse_segment_name, segment_name


def test_segment_is_named_by_its_base_offset() -> None:
    assert segment_name(0) == "00000000000000000000.log"
    assert parse_segment_name(segment_name(2**63)) == 2**63
    for name in ("1.log", "00000000000000000000.index", "0000000000000000000x.log", "lock", ".log"):
        assert parse_segment_name(name) is None
    assert parse_segment_name("٠" * 20 + ".log") is None


def test_segment_header_keeps_two_equal_copies() -> None:
    encoded = SegmentHeader(1, 2, -1, 4, 0x1234_5678, 6).encode()
    assert len(encoded) == 128
    assert encoded[:64] == encoded[64:]
