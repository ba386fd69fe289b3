"""Small derived files with a checksum."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.checksummed_file import add_checksum, remove_checksum


@given(st.binary(max_size=100), st.integers(0, 115), st.integers(0, 7))
def test_file_with_a_flipped_bit_is_ignored(body: bytes, position: int, bit: int) -> None:
    content = bytearray(add_checksum(b"PNSTKXYZ", body))
    assert remove_checksum(b"PNSTKXYZ", bytes(content)) == body
    assert remove_checksum(b"PNSTKXYA", bytes(content)) is None
    content[position % len(content)] ^= 1 << bit
    assert remove_checksum(b"PNSTKXYZ", bytes(content)) is None
    assert remove_checksum(b"PNSTKXYZ", bytes(content[:15])) is None
