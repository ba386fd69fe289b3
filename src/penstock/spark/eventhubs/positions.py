"""Positions at which a query begins and ends: startingPosition(s), endingPosition(s).

A position is `earliest`, `latest`, an ISO time, a sequence number, or the JSON of the old
connector's EventPosition. Positions of single partitions are `{"0": 100}`, Kafka's
`{"hub": {"0": 100}}`, or have the old connector's keys, which are JSON texts themselves:
`{"ehName": "hub", "partitionId": 0}`, quoted.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from penstock.formats.positions import StartKind, parse_start_time
from penstock.formats.positions import parse_position as parse_start
from penstock.model.errors import ArgumentError

_SHOWN_MAX = 80
_FIELDS = {"offset", "seqno", "enqueuedtime", "isinclusive"}


class Position(NamedTuple):
    """`number` is a sequence number or milliseconds since 1970, `offset` the service's text."""

    kind: StartKind
    number: int = 0
    offset: str = ""
    inclusive: bool = True


EARLIEST = Position(StartKind.EARLIEST)
LATEST = Position(StartKind.LATEST)
_SPECIAL_OFFSETS = {"-1": EARLIEST, "@latest": LATEST}


def parse_position(option: str, text: str) -> Position:
    """Parse one position for every partition. Raises ArgumentError, which names the option."""
    stripped = text.strip()
    if stripped.startswith("{"):
        return _from_json(option, _load_json(option, stripped))
    if (special := _SPECIAL_OFFSETS.get(stripped.lower())) is not None:
        return special
    try:
        start = parse_start(stripped, now_ms=None)
    except ArgumentError:
        raise _no_position_error(option, text) from None
    return {EARLIEST.kind: EARLIEST, LATEST.kind: LATEST}.get(start.kind) or Position(*start)


def parse_positions(option: str, text: str, hub: str) -> dict[str, Position]:
    """Parse positions by partition id. Raises ArgumentError."""
    loaded = _load_json(option, text)
    inner = loaded.get(hub) if len(loaded) == 1 else None
    if isinstance(inner, dict) and all(str(key).isdigit() for key in inner):
        loaded = inner
    positions: dict[str, Position] = {}
    for key, value in loaded.items():
        partition_id = _partition_id(option, key, hub)
        positions[partition_id] = _from_value(f"{option} of partition {partition_id}", value)
    return positions


def parse_time(option: str, text: str) -> Position:
    """Parse a time: ISO, or milliseconds since 1970 as in Kafka's source."""
    stripped = text.strip()
    if stripped.isascii() and stripped.isdigit():
        return Position(StartKind.TIME, int(stripped))
    try:
        return Position(StartKind.TIME, parse_start_time(stripped, now_ms=None))
    except ArgumentError:
        raise _no_position_error(option, text) from None


def has_partitions(text: str) -> bool:
    """Whether an option that takes both (`startingOffsets`) holds positions by partition."""
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(loaded, dict) and not {str(key).lower() for key in loaded} <= _FIELDS


def _load_json(option: str, text: str) -> dict[str, Any]:
    try:
        loaded = json.loads(text)
    except (ValueError, RecursionError):
        raise ArgumentError(f"{option} is not valid JSON: {quote_value(text)}.") from None
    if not isinstance(loaded, dict):
        raise ArgumentError(f"{option} is {quote_value(text)}: a JSON object is expected.")
    return loaded


def _partition_id(option: str, key: str, hub: str) -> str:
    if not key.strip().startswith("{"):
        if key.isascii() and key.isdigit():
            return str(int(key))
        raise ArgumentError(
            f'{option} has the key {quote_value(key)}: a partition id such as "0", or the old '
            'connector\'s {"ehName": ..., "partitionId": 0} as text, is expected.'
        )
    fields = {name.lower(): value for name, value in _load_json(option, key).items()}
    partition = fields.get("partitionid")
    if isinstance(partition, bool) or not str(partition).isdigit():
        raise ArgumentError(f"{option} has a key without a partitionId: {quote_value(key)}.")
    name = fields.get("ehname")
    if name is not None and str(name).casefold() != hub.casefold():
        raise ArgumentError(
            f"{option} is for the hub {quote_value(str(name))}, but this query reads {hub!r}."
        )
    return str(partition)


def _from_value(option: str, value: object) -> Position:
    if isinstance(value, dict):
        return _from_json(option, value)
    if isinstance(value, int) and not isinstance(value, bool):
        # Kafka's source: -2 is the beginning, -1 the end.
        if value in (-2, -1):
            return EARLIEST if value == -2 else LATEST
        return Position(StartKind.SEQUENCE_NUMBER, _natural(option, value))
    if isinstance(value, str):
        return parse_position(option, value)
    raise ArgumentError(
        f"{option} is {quote_value(value)}: a sequence number, a text or an EventPosition "
        "is expected."
    )


def _from_json(option: str, fields: dict[str, Any]) -> Position:
    """Parse the old connector's EventPosition: one of offset, seqNo, enqueuedTime is in use, the
    others are null or, for seqNo, -1."""
    values = {str(name).lower(): value for name, value in fields.items()}
    for name in sorted(values.keys() - _FIELDS):
        raise ArgumentError(
            f"{option} has the field {quote_value(name)}: allowed are offset, seqNo, enqueuedTime "
            "and isInclusive."
        )
    offset, number, time = values.get("offset"), values.get("seqno"), values.get("enqueuedtime")
    number = None if number == -1 else number
    inclusive = values.get("isinclusive")
    inclusive = True if inclusive is None else inclusive
    used = [value for value in (offset, number, time) if value is not None]
    if len(used) != 1 or not isinstance(inclusive, bool):
        raise ArgumentError(
            f"{option} must use one of offset, seqNo and enqueuedTime, not {len(used)} "
            "(null, and -1 for seqNo, mean unused); isInclusive is true or false."
        )
    if offset is not None:
        if (special := _SPECIAL_OFFSETS.get(str(offset))) is not None:
            return special
        return Position(StartKind.OFFSET, offset=str(offset), inclusive=inclusive)
    if number is not None:
        return Position(StartKind.SEQUENCE_NUMBER, _natural(option, number), inclusive=inclusive)
    return parse_time(option, str(time))._replace(inclusive=inclusive)


def _natural(option: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**63:
        raise ArgumentError(f"{option} has the sequence number {quote_value(value)}: 0 or more.")
    return value


def _no_position_error(option: str, text: str) -> ArgumentError:
    return ArgumentError(
        f"{option} is {quote_value(text)}: earliest, latest, a sequence number, a time such "
        'as 2026-11-16T12:00:00Z or an EventPosition such as {"seqNo": 100} is expected.'
    )


def quote_value(value: object) -> str:
    """The value for an error message, truncated."""
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else text[:_SHOWN_MAX] + "..."
