"""Names of Capture files and manifests: fill in the name format, parse a name, next free second
(protocol.md 9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.model import names
from penstock.model.errors import ArgumentError

MANIFESTS = "_manifests"
_SECONDS_BACK = 60  # the time in a name is about when the window closed
_TOKEN = re.compile(r"\{([A-Za-z]+)\}")
_TIME_DIGITS = {"Year": 4, "Month": 2, "Day": 2, "Hour": 2, "Minute": 2, "Second": 2}


def format_file_path(
    name_format: str,
    *,
    namespace: str,
    hub: str,
    partition: str,
    at_s: int,
    file_type: str = "avro",
) -> str:
    """The path below the destination. A hub whose name is a path (`orders/eu`) is one there too.
    Raises ArgumentError.

    >>> from penstock.capture.description import NAME_FORMAT_DEFAULT
    >>> format_file_path(NAME_FORMAT_DEFAULT, namespace="ns", hub="h", partition="0", at_s=0)
    'ns/h/0/1970/01/01/00/00/00.avro'
    """
    at = datetime.fromtimestamp(at_s, UTC)
    values = {"Namespace": namespace, "EventHub": hub, "PartitionId": partition}
    values |= {
        token: f"{getattr(at, token.lower()):0{digits}}" for token, digits in _TIME_DIGITS.items()
    }
    path = _TOKEN.sub(lambda match: values[match[1]], name_format)
    return check_path(f"{path}.{file_type}")


class NamePattern:
    """Recognizes the paths that `format_file_path` makes of one hub."""

    def __init__(self, name_format: str, namespace: str, hub: str) -> None:
        fixed = {"Namespace": namespace, "EventHub": hub}
        seen: set[str] = set()
        parts = []
        for index, part in enumerate(_TOKEN.split(name_format)):
            if index % 2 == 0:  # text between tokens
                parts.append(re.escape(part))
            elif part in fixed:
                parts.append(re.escape(fixed[part]))
            elif part in seen:
                parts.append(f"(?P={part})")  # a token that occurs twice has one value
            else:
                parts.append(rf"(?P<{part}>\d{{{_TIME_DIGITS.get(part, '1,6')}}})")
                seen.add(part)
        self._pattern = re.compile("".join(parts) + r"\.(?:avro|parquet)")
        filled_in = _TOKEN.sub(lambda match: fixed.get(match[1], match[0]), name_format)
        self.directory = filled_in.partition("{")[0].rpartition("/")[0]
        """What all paths begin with, as far as it is whole directories; may be empty."""

    def parse(self, path: str) -> tuple[str, int] | None:
        """Partition and second of a file; None for a path that is not of the hub."""
        match = self._pattern.fullmatch(path)
        if match is None or path.startswith(f"{MANIFESTS}/"):
            return None
        numbers = [int(match[token]) for token in _TIME_DIGITS]
        try:
            at = datetime(*numbers, tzinfo=UTC)  # type: ignore[misc,arg-type]
        except ValueError:
            return None  # not a time
        return match["PartitionId"], int(at.timestamp())


def check_path(path: str) -> str:
    """Require a relative path that stays in its destination. Raises ArgumentError."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path or not path.isprintable():
        raise ArgumentError(f"The path '{names.quote_text(path)}' leads out of its destination.")
    return path


def next_free_second(
    wanted_s: int, *, after_s: int, is_taken: Callable[[int], bool], may_be_early: bool
) -> int:
    """The free second nearest to `wanted_s` and later than `after_s`: up to a minute before it
    where that is allowed, else after it.

    >>> next_free_second(9, after_s=5, is_taken={9, 8}.__contains__, may_be_early=True)
    7
    >>> next_free_second(9, after_s=8, is_taken={9, 10}.__contains__, may_be_early=True)
    11
    """
    seconds_back = _SECONDS_BACK if may_be_early else 1
    for second in range(wanted_s, max(after_s, wanted_s - seconds_back), -1):
        if not is_taken(second):
            return second
    second = max(wanted_s, after_s) + 1
    while is_taken(second):
        second += 1
    return second


def slot_start(at_s: int, interval_s: int) -> int:
    """Slots are aligned to midnight UTC of 1970-01-01."""
    return at_s - at_s % interval_s


def slot_name(slot_s: int) -> str:
    """
    >>> slot_name(0)
    '1970-01-01T00-00-00Z'
    """
    return datetime.fromtimestamp(slot_s, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def manifest_path(hub: str, slot_s: int) -> str:
    return check_path(f"{MANIFESTS}/{hub}/{slot_name(slot_s)}.json")


def partition_order(partition: str) -> tuple[int, str]:
    """Sort key: partition ids in numeric order."""
    return (int(partition), "") if partition.isdecimal() else (-1, partition)
