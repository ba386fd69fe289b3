"""Where a reader starts: the selector of `source.filter` (protocol.md 5.3)."""

from __future__ import annotations

import re

from penstock.amqp.types import Described
from penstock.model import limits, names
from penstock.model.errors import ArgumentError
from penstock.model.positions import EARLIEST, LATEST, Position, PositionKind

SELECTOR = "apache.org:selector-filter:string"
# Keys and descriptors that clients use: the symbol, Proton's short key, the registered code, and
# the code of .NET.
_KEYS = frozenset({SELECTOR, "selector"})
_DESCRIPTORS: frozenset[object] = frozenset({SELECTOR, 0x0000468C00000004, 0x000000137000000A})
_FIELDS = {
    "amqp.annotation.x-opt-offset": PositionKind.OFFSET,
    "amqp.annotation.x-opt-sequence-number": PositionKind.SEQUENCE,
    "amqp.annotation.x-opt-enqueued-time": PositionKind.ENQUEUED_TIME,
    "amqp.annotation.x-opt-enqueuedtimeutc": PositionKind.ENQUEUED_TIME,  # first .NET clients
}
_EXPRESSION = re.compile(r"\s*([A-Za-z.\-]+)\s*(>=|>)\s*(?:'([^']*)'|(\S+))\s*")
_NUMBER = re.compile(r"-?[0-9]{1,19}")
_INT64_MAX = 2**63 - 1


def start_position(filters: dict[str, object] | None) -> Position:
    """Without a filter, the oldest event. Raises ArgumentError for an invalid filter."""
    for key, value in (filters or {}).items():
        descriptor = value.descriptor if isinstance(value, Described) else None
        if str(key) in _KEYS or _is_selector(descriptor):
            expression = value.value if isinstance(value, Described) else value
            if not isinstance(expression, str):
                raise ArgumentError("The selector filter is not a string.")
            return parse_expression(expression)
    return EARLIEST


def parse_expression(expression: str) -> Position:
    if len(expression) > limits.FILTER_EXPRESSION_MAX:
        raise ArgumentError(
            f"The filter has {len(expression)} characters: "
            f"at most {limits.FILTER_EXPRESSION_MAX} are allowed."
        )
    match = _EXPRESSION.fullmatch(expression)
    kind = _FIELDS.get(match.group(1)) if match else None
    if match is None or kind is None:
        raise ArgumentError(
            f"The filter '{names.quote_text(expression)}' is invalid: expected one of "
            f"{', '.join(_FIELDS)}, then > or >=, then a value."
        )
    value = match.group(3) if match.group(3) is not None else match.group(4)
    return _position(kind, value.strip(), inclusive=match.group(2) == ">=")


def _position(kind: PositionKind, value: str, *, inclusive: bool) -> Position:
    if kind is PositionKind.OFFSET and value.casefold() == "@latest":
        return LATEST
    malformed = _NUMBER.fullmatch(value) is None or int(value) > _INT64_MAX
    if malformed or (kind is PositionKind.OFFSET and int(value) < -1):
        what = {
            PositionKind.OFFSET: "offset",
            PositionKind.SEQUENCE: "sequence number",
            PositionKind.ENQUEUED_TIME: "enqueued time",
        }[kind]
        raise ArgumentError(f"The supplied {what} '{names.quote_text(value)}' is invalid.")
    number = int(value)
    if number < 0:  # '-1' is before the first retained event
        return EARLIEST
    return Position(kind, number, inclusive)


def _is_selector(descriptor: object) -> bool:
    if isinstance(descriptor, str):
        return str(descriptor) == SELECTOR
    return isinstance(descriptor, int) and int(descriptor) in _DESCRIPTORS
