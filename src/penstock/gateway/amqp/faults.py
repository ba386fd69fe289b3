"""Errors as the wire carries them: condition, the service's text, tracking (protocol.md 6.1)."""

from __future__ import annotations

from datetime import UTC, datetime

from penstock.amqp.performatives import Error, Rejected
from penstock.model.errors import PenstockError


def timestamp(now_ms: int) -> str:
    return datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def tracked(text: str, *, tracking_id: str, tracker: str, now_ms: int) -> str:
    """The text with what a user quotes to the operator, who finds it in the log."""
    return (
        f"{text} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{timestamp(now_ms)}"
    )


def amqp_error(error: PenstockError, *, tracking_id: str, tracker: str, now_ms: int) -> Error:
    text = tracked(str(error), tracking_id=tracking_id, tracker=tracker, now_ms=now_ms)
    return Error(condition=error.condition, description=text)


def rejected(error: Error) -> Rejected:
    return Rejected(error=error)
