"""Errors as AMQP carries them: the service's text with tracking information (protocol.md 6.1)."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.model import names

_RING = 32767  # a partition's number is its upper bound on a 15-bit ring (protocol.md 13)


def add_tracking(text: str, *, tracking_id: str, tracker: str, now_ms: int) -> str:
    """The text with what a user quotes to the operator, who finds the id in the log lines."""
    time = datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{text} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{time}"


def system_tracker(
    namespace: str, hub: str, *, partition: tuple[int, int] | None = None, group: str | None = None
) -> str:
    """`partition` is its index and the number of partitions. Names that a peer sent are escaped."""
    ring = "" if partition is None else f"~{_RING // partition[1] * (partition[0] + 1)}"
    reader = "" if group is None else f"|{names.quote_text(names.fold_name(group))}"
    return f"{namespace}:eventhub:{names.quote_text(hub)}{ring}{reader}"
