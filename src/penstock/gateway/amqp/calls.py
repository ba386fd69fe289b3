"""How often `$management` may be asked: 50 times a second for one namespace (protocol.md 3.3)."""

from __future__ import annotations

from penstock.broker import error_messages
from penstock.model import limits
from penstock.model.entities import Namespace, Tier
from penstock.model.names import fold_name

_CALL_MS = 1000 // limits.MANAGEMENT_CALLS_PER_S
_BURST_MS = 1000  # a second's worth may come at once


class ManagementRateLimit:
    """Calls by namespace; times are monotonic milliseconds. Refused ones cost nothing."""

    def __init__(self) -> None:
        self._paid_ms: dict[str, int] = {}  # until when calls so far are paid for

    def admit(self, namespace: Namespace, now_ms: int) -> None:
        """Count a call, or raise ServerBusy. Where units are not enforced, neither is this."""
        if namespace.throughput_units is None or namespace.tier is Tier.DEDICATED:
            return
        name = fold_name(namespace.name)
        paid_ms = max(self._paid_ms.get(name, now_ms), now_ms) + _CALL_MS
        if paid_ms > now_ms + _BURST_MS:
            raise error_messages.server_busy_error()
        self._paid_ms[name] = paid_ms
