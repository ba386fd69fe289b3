"""Metered events: one for each 64 KB that a stored event has begun, whatever its body is."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.kernels import KernelError, count_metered_events
from penstock.kernels._pure import publications as pure

KB = 1024
STEP = 64 * KB


def section(size: int, fill: bytes = b"x", *, long: bool = False) -> bytes:
    message = (fill * (size // len(fill) + 1))[:size]
    if size < 256 and not long:
        return b"\x00\x53\x75\xa0" + bytes([size]) + message
    return b"\x00\x53\x75\xb0" + size.to_bytes(4, "big") + message


@pytest.mark.parametrize(
    ("sizes", "steps"),
    [
        ((), 0),
        ((0,), 1),
        ((255, 256), 2),
        ((STEP,), 1),
        ((STEP + 1,), 2),
        ((2 * STEP,), 2),
        ((1024 * KB,), 16),
        ((10, 100 * KB, 20, 70 * KB, 300), 7),
        ((176,) * 1000, 1000),  # the length 0xb0
    ],
)
@pytest.mark.parametrize("fill", [b"x", b"\xb0", b"\x00\x53\x75\xb0\x00\x01\xff\xff"])
@pytest.mark.parametrize("long", [False, True])
def test_each_event_counts_its_own_steps(
    sizes: tuple[int, ...], steps: int, fill: bytes, long: bool
) -> None:
    sections = b"".join(section(size, fill, long=long) for size in sizes)
    assert count_metered_events(sections, STEP) == steps


@pytest.mark.parametrize("step", [1, 3, 255, 256])
def test_any_step_may_be_asked_for(step: int) -> None:
    sections = b"".join(map(section, (0, 1, 254, 255, 256, 1000)))
    expected = sum(max(1, -(-size // step)) for size in (0, 1, 254, 255, 256, 1000))
    assert count_metered_events(sections, step) == expected


def test_sections_cut_anywhere_are_damaged_unless_between_events() -> None:
    sizes = (3, 300, 0)
    sections = b"".join(map(section, sizes))
    whole = {0, 8, 8 + 308, len(sections)}
    for cut in range(len(sections) + 1):
        if cut in whole:
            assert count_metered_events(sections[:cut], STEP) == sorted(whole).index(cut)
        else:
            with pytest.raises(KernelError, match="at byte"):
                count_metered_events(sections[:cut], STEP)


def test_other_codes_are_damage() -> None:
    with pytest.raises(KernelError, match="byte 6 is damaged"):
        count_metered_events(section(1) + b"\x00\x53\x75\x40" + b"x" * 20, STEP)


@given(st.binary(max_size=60), st.lists(st.integers(0, 400), max_size=5))
def test_implementations_agree_on_any_bytes(tail: bytes, sizes: list[int]) -> None:
    sections = b"".join(map(section, sizes)) + tail
    try:
        expected = pure.count_metered_events(sections, 100)
    except KernelError as error:
        with pytest.raises(KernelError) as raised:
            count_metered_events(sections, 100)
        assert str(raised.value) == str(error)
    else:
        assert count_metered_events(sections, 100) == expected
