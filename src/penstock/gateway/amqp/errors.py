"""Errors as the wire carries them: condition, the service's text, tracking (protocol.md 6.1)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from penstock.amqp.performatives import Error
from penstock.model import names
from penstock.model.errors import PenstockError

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

_SERVER_FAULT = 500  # and above: not the client's
_RING = 32767  # a partition's number is its upper bound on a 15-bit ring (protocol.md 13)


def timestamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def add_tracking(text: str, *, tracking_id: str, tracker: str, now_ms: int) -> str:
    """The text with what a user quotes to the operator, who finds it in the log."""
    return (
        f"{text} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{timestamp(now_ms)}"
    )


def amqp_error(error: PenstockError, *, tracking_id: str, tracker: str, now_ms: int) -> Error:
    text = add_tracking(str(error), tracking_id=tracking_id, tracker=tracker, now_ms=now_ms)
    return Error(condition=error.condition, description=text)


def log_refusal(
    connection: AmqpConnection,
    operation: str,
    error: PenstockError,
    path: Sequence[str] = (),
    policy: str = "",
) -> None:
    """One line in the log, with the id that the client sees. The service's own faults are logged
    where they happen. Without `policy`, those of the tokens that the connection holds are named."""
    if error.http_status < _SERVER_FAULT:
        connection.context.refusal_log.record(
            operation,
            error,
            address=connection.slot.address,
            peer=connection.transport.peer,
            tracking_id=connection.id,
            policy=policy or connection.grants.policy_names(),
            path=path,
        )


def system_tracker(
    namespace: str, hub: str, *, partition: tuple[int, int] | None = None, group: str | None = None
) -> str:
    """`partition` is its index and how many there are. Names may be a peer's: shown escaped."""
    ring = "" if partition is None else f"~{_RING // partition[1] * (partition[0] + 1)}"
    reader = "" if group is None else f"|{names.quote_text(names.fold_name(group))}"
    return f"{namespace}:eventhub:{names.quote_text(hub)}{ring}{reader}"
