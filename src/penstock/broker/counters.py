"""Counters of a hub since it was opened, for the metrics and, for ingress, for the usage ledger."""

from __future__ import annotations

from penstock.model.metrics import LatencyHistogram


class HubCounters:
    """A request is one publication. Messages and bytes count when acknowledged or delivered.

    A plain class, not a struct: each publication adds to it, and plain attributes are fastest.
    """

    def __init__(self) -> None:
        self.incoming_messages = 0
        self.incoming_bytes = 0
        self.incoming_steps = 0  # 64 KB steps of large events beyond the first of each
        self.outgoing_messages = 0
        self.outgoing_bytes = 0
        self.throttled_requests = 0
        self.user_errors = 0
        self.server_errors = 0
        self.publish_latency = LatencyHistogram()

    @property
    def successful_requests(self) -> int:
        return self.publish_latency.count
