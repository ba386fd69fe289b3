"""What Capture's files are called: the name format of the hub, filled in (protocol.md 9)."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime

from penstock.model import names
from penstock.model.errors import ArgumentError

MANIFESTS = "_manifests"
SUFFIXES = {"avro": ".avro", "parquet": ".parquet"}
_SECONDS_BACK = 60  # that are looked at: the time in a name is about when the window closed
_TOKEN = re.compile(r"\{([A-Za-z]+)\}")


def format_file_path(
    name_format: str, *, namespace: str, hub: str, partition: str, at_s: int, kind: str = "avro"
) -> str:
    """The path below the destination, `.avro` and all. A hub that is named like a path
    (`orders/eu`) is one there too.

    >>> from penstock.capture.description import NAME_FORMAT_DEFAULT
    >>> file_path(NAME_FORMAT_DEFAULT, namespace="ns", hub="events", partition="0", at_s=0)
    'ns/events/0/1970/01/01/00/00/00.avro'
    """
    at = datetime.fromtimestamp(at_s, UTC)
    values = {
        "Namespace": namespace,
        "EventHub": hub,
        "PartitionId": partition,
        "Year": f"{at.year:04}",
        "Month": f"{at.month:02}",
        "Day": f"{at.day:02}",
        "Hour": f"{at.hour:02}",
        "Minute": f"{at.minute:02}",
        "Second": f"{at.second:02}",
    }
    path = _TOKEN.sub(lambda match: values[match.group(1)], name_format) + SUFFIXES[kind]
    return check_path(path)


def check_path(path: str) -> str:
    """Relative, and leading nowhere else. Raises ArgumentError."""
    parts = path.split("/")
    if any(part in ("", ".", "..") for part in parts) or "\\" in path or not path.isprintable():
        raise ArgumentError(f"The path '{names.quote_text(path)}' leads out of its destination.")
    return path


def next_free_second(wanted_s: int, *, after_s: int, is_taken: Callable[[int], bool]) -> int:
    """The second that a file is named by, where files of others have names in between: the next
    free one before `wanted_s`, or behind it; always later than `after_s`.

    >>> free_second(9, after_s=5, is_taken={9, 8}.__contains__)
    7
    >>> free_second(9, after_s=8, is_taken={9, 10}.__contains__)
    11
    """
    for second in range(wanted_s, max(after_s, wanted_s - _SECONDS_BACK), -1):
        if not is_taken(second):
            return second
    second = max(wanted_s, after_s) + 1
    while is_taken(second):
        second += 1
    return second


def slot_start(at_s: int, interval_s: int) -> int:
    """When the slot began, in seconds: slots are counted from midnight UTC of 1970."""
    return at_s - at_s % interval_s


def slot_name(slot_s: int) -> str:
    """
    >>> slot_name(0)
    '1970-01-01T00-00-00Z'
    """
    return datetime.fromtimestamp(slot_s, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def manifest_path(hub: str, slot_s: int) -> str:
    return check_path(f"{MANIFESTS}/{hub}/{slot_name(slot_s)}.json")
