"""What is looked for in events: a text, and conditions in a small language of their own.

    key == d7 and size > 100        json.temperature >= 30       properties.kind != "a b"
    body contains error             partition == 0               time >= 2026-01-01T00:00:00

Conditions are joined by `and`. What an event does not have is unequal to everything.
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from penstock.client import EventData
from penstock.client.values import display_value, encode_json, to_readable
from penstock.model.errors import ArgumentError
from penstock.portal.bodies import SEARCHED_MAX, read_body

_TEXT_MAX = 1000
_CONDITIONS_MAX = 10
_CONDITION = re.compile(
    r"\s*(?P<name>[A-Za-z_][\w.$-]*)\s*(?P<sign>==|=|!=|>=|<=|>|<|\bcontains\b)\s*"
    r"(?P<value>\"(?:[^\"\\]|\\.)*\"|'[^']*'|\S+)\s*"
)
_AND = re.compile(r"and\b", re.IGNORECASE)
_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "==": operator.eq,
    "=": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_NAMES = ("body", "json", "key", "offset", "partition", "properties", "sequence", "size", "time")

Wanted = Callable[[str, EventData], bool]


def compile_search(text: str, expression: str) -> Wanted | None:
    """What tells whether an event (and the partition that it is of) is wanted; None: each is.
    Raises ArgumentError, which says what is wrong with the expression."""
    if len(text) > _TEXT_MAX or len(expression) > _TEXT_MAX:
        raise ArgumentError(f"A search has at most {_TEXT_MAX} characters.")
    tests: list[Wanted] = []
    if text:
        tests.append(_match_text(text))
    if expression.strip():
        tests += _conditions(expression)
    if not tests:
        return None
    return lambda partition, event: all(test(partition, event) for test in tests)


def _match_text(text: str) -> Wanted:
    """Anywhere that people would look: body, key, names and values of properties; in any case."""
    wanted = text.casefold()
    plain = text.encode()

    def test(partition: str, event: EventData) -> bool:
        body = _searchable_body(event)
        if plain in body or wanted in body.decode("utf-8", "replace").casefold():
            return True
        if event.partition_key is not None and wanted in event.partition_key.casefold():
            return True
        return any(
            wanted in str(name).casefold() or wanted in format_value(value).casefold()
            for name, value in event.properties.items()
        )

    return test


def _conditions(expression: str) -> list[Wanted]:
    tests: list[Wanted] = []
    at = 0
    while at < len(expression):
        found = _CONDITION.match(expression, at)
        if found is None:
            raise ArgumentError(
                f"'{expression[at : at + 40]}' is no condition: write NAME SIGN VALUE, such as "
                "json.temperature >= 30, joined by 'and'."
            )
        tests.append(_condition(found["name"], found["sign"], found["value"]))
        if len(tests) > _CONDITIONS_MAX:
            raise ArgumentError(f"At most {_CONDITIONS_MAX} conditions are allowed.")
        at = found.end()
        if at < len(expression):
            joint = _AND.match(expression, at)
            if joint is None:
                raise ArgumentError(
                    f"'{expression[at : at + 40]}': conditions are joined by 'and'."
                )
            at = joint.end()
    return tests


def _condition(name: str, sign: str, raw: str) -> Wanted:
    head, _, rest = name.partition(".")
    if head not in _NAMES or (rest and head not in ("json", "properties")):
        raise ArgumentError(f"There is no '{name}'; there are {', '.join(_NAMES)}.")
    value = raw[1:-1] if raw[0] in "\"'" and raw[-1] == raw[0] and len(raw) > 1 else raw

    def test(partition: str, event: EventData) -> bool:
        found = _looked_up(head, rest, partition, event)
        if sign == "contains":
            return found is not None and value.casefold() in format_value(found).casefold()
        if found is None:
            return sign == "!="
        return _compare_values(sign, found, value)

    return test


def _looked_up(head: str, rest: str, partition: str, event: EventData) -> Any:
    match head:
        case "body":
            return _searchable_body(event).decode("utf-8", "replace")
        case "key":
            return event.partition_key
        case "offset":
            return event.offset
        case "partition":
            return partition
        case "sequence":
            return event.sequence_number
        case "size":
            return len(event.body)
        case "time":
            return event.enqueued_time
        case "properties":
            if rest:
                return to_readable(event.properties.get(rest))
            return encode_json(event.properties)
        case _:
            return _inside(_searchable_body(event), rest)


def _searchable_body(event: EventData) -> bytes:
    return read_body(event, most=SEARCHED_MAX)[0]


def _inside(body: bytes, rest: str) -> Any:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    for word in rest.split(".") if rest else ():
        if isinstance(value, list) and word.isdigit() and int(word) < len(value):
            value = value[int(word)]
        elif isinstance(value, dict):
            value = value.get(word)
        else:
            return None
    return value


def _compare_values(sign: str, found: Any, value: str) -> bool:
    """As numbers where both are, as times where the event's is one, else as text."""
    compare = _SIGNS[sign]
    try:
        if isinstance(found, bool):
            return compare(found, value.casefold() == "true")
        if isinstance(found, datetime):
            when = datetime.fromisoformat(value)
            return compare(found, when if when.tzinfo else when.replace(tzinfo=UTC))
        if isinstance(found, int | float | Decimal):
            return compare(float(found), float(value))
    except (ValueError, TypeError):
        return sign == "!="
    return compare(format_value(found), value)


def format_value(value: object) -> str:
    """A property's value as text."""
    return value.decode("utf-8", "replace") if type(value) is bytes else display_value(value)
