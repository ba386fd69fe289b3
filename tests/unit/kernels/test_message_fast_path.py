"""The fast check of usual messages against the general one."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.kernels import KernelError
from penstock.kernels._pure.message_fast_path import inspect_common_message
from penstock.kernels._pure.messages import BARE, Annotations, AnnotationsCache, inspect_message
from penstock.kernels._pure.publications import _plain_events


def raw(*parts: str | bytes) -> bytes:
    """Bytes from hexadecimal text and plain bytes, in the order in which they are written."""
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else part for part in parts)


HELLO = raw("00 53 75 a0 05", b"hello")
KEY = raw("00 53 72 c1 19 02 a3 13", b"x-opt-partition-key", "a1 01", b"a")
PROPERTIES = raw(
    "00 53 73 c0 1c 0a a1 02", b"id", "40 40 40 40 53 07 a3 04", b"json", "40 40 83", bytes(8)
)
APPLICATION = raw(
    "00 53 74 c1 1a 08 a1 01", b"a", "a1 02", "é".encode(), "a1 01", b"b", "56 01",
    "a1 02", "ü".encode(), "40 a1 01", b"d", "70 00 00 00 01",
)  # fmt: skip
USUAL = [
    HELLO,
    raw("00 53 75 b0 00 00 00 05", b"hello"),
    raw("00 53 70 45", HELLO),
    raw("00 53 70 c0 08 05 41 50 04 40 56 01 40", HELLO),
    raw("00 53 73 45", HELLO),
    PROPERTIES + HELLO,
    APPLICATION + HELLO,
    PROPERTIES + APPLICATION + HELLO,
    KEY + HELLO,
    KEY + PROPERTIES + APPLICATION + HELLO,
    raw("00 53 70 45", KEY, PROPERTIES, APPLICATION, HELLO),
]


def general(message: bytes) -> Annotations | None:
    try:
        return inspect_message(message, 0, len(message), AnnotationsCache())
    except KernelError:
        return None


def usual(message: bytes, seen: AnnotationsCache) -> Annotations | None:
    try:
        return inspect_common_message(message, 0, len(message), seen)
    except (IndexError, struct.error, KernelError):
        return None


def seen_key() -> AnnotationsCache:
    seen = AnnotationsCache()
    assert inspect_message(KEY + HELLO, 0, len(KEY + HELLO), seen).key == "a"
    return seen


@pytest.mark.parametrize("message", USUAL)
def test_usual_message_is_taken_by_both(message: bytes) -> None:
    annotations = general(message)

    assert annotations is not None
    assert annotations.canonical
    assert usual(message, seen_key()) == annotations


@pytest.mark.parametrize(
    "message",
    [
        raw("00 53 77 40"),
        raw("00 53 72 c1 01 00", HELLO),
        raw("00 53 71 c1 01 00", HELLO),
        raw("00 53 73 d0 00 00 00 04 00 00 00 00", HELLO),
        raw("00 53 74 d1 00 00 00 04 00 00 00 00", HELLO),
        raw("00 53 74 c1 07 02 a1 01", b"k", "c0 01 00", HELLO),
        HELLO + HELLO,
        HELLO + raw("00 53 78 c1 01 00"),
        PROPERTIES,
        b"",
    ],
)
def test_any_other_message_is_left_to_the_general_check(message: bytes) -> None:
    assert usual(message, seen_key()) is None


def test_plain_events_are_counted_without_being_looked_into() -> None:
    short, long = raw("00 53 75 a0 0a", HELLO), raw("00 53 75 b0 00 00 00 08 00 53 75 b0", bytes(4))

    assert _plain_events(b"\xff" + short * 3, 1, 46) == (46, 3)
    assert _plain_events(long * 2 + short, 0, 47) == (47, 3)
    assert _plain_events(short + raw("00 53 75 a0 04 00 53 77 40"), 0, 24) == (15, 1)


def test_annotations_are_usual_only_when_they_were_seen() -> None:
    assert usual(KEY + HELLO, AnnotationsCache()) is None
    assert usual(HELLO, AnnotationsCache()) is BARE


def test_annotations_with_a_producers_number_are_not_remembered() -> None:
    pairs = raw(
        "a3 19", b"com.microsoft:producer-id", "55 07",
        "a3 1c", b"com.microsoft:producer-epoch", "61 00 02",
        "a3 26", b"com.microsoft:producer-sequence-number", "54 01",
    )  # fmt: skip
    message = raw("00 53 72 c1", bytes((len(pairs) + 1,)), "06", pairs, HELLO)
    seen = AnnotationsCache()

    assert inspect_message(message, 0, len(message), seen).producer == (7, 2, 1)
    assert seen.section == b""


@settings(deadline=None, max_examples=400)
@given(st.sampled_from(USUAL), st.data())
def test_whatever_the_fast_check_takes_the_general_one_takes_alike(
    message: bytes, data: st.DataObject
) -> None:
    buffer = bytearray(message)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(buffer) - 1))
        buffer[at] = data.draw(
            st.one_of(
                st.integers(0, 255),
                st.sampled_from(b"\x00\x40\x45\x53\x56\x70\x73\x74\x75\xa0\xa1\xa3\xc0\xc1"),
                st.just((buffer[at] + 1) % 256),
                st.just((buffer[at] - 1) % 256),
            )
        )
    changed = bytes(buffer)

    try:
        annotations = usual(changed, seen_key())
    except KernelError:
        assert general(changed) is None
        return
    if annotations is not None:
        assert annotations == general(changed)
