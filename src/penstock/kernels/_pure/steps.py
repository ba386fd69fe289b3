"""How many steps of a size a run of stored events takes: what the ledger counts."""

from __future__ import annotations

from struct import Struct

from penstock.kernels._pure.values import KernelError

_SHORT, _LONG = 0xA0, 0xB0  # an event's length in one byte, or in four
_SHORT_HEAD, _LONG_HEAD = 5, 8
_U32 = Struct(">I").unpack_from


def count_metered_events(sections: bytes, step: int) -> int:
    """Each event of `sections` (penstock.model.events) counts once for each `step` bytes that its
    message began, and an empty one once. Raises KernelError where they are damaged."""
    steps = position = 0
    end = len(sections)
    while position < end:
        left = end - position
        if left >= _SHORT_HEAD and sections[position + 3] == _SHORT:
            size, head = sections[position + 4], _SHORT_HEAD
        elif left >= _LONG_HEAD and sections[position + 3] == _LONG:
            size, head = _U32(sections, position + 4)[0], _LONG_HEAD
        else:
            raise KernelError(f"the stored event at byte {position} is damaged")
        if head + size > left:
            raise KernelError(f"the stored event at byte {position} ends beyond byte {end}")
        position += head + size
        steps += 1 if size <= step else -(-size // step)
    return steps
