"""Usage of a namespace per clock hour, and its cost by the configured price list."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

import msgspec

from penstock.model.names import NamespaceName

HOUR_MS = 3_600_000
_MILLION = 1_000_000
_GB = 1 << 30


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Usage of a namespace in one clock hour (UTC), which begins at `hour_ms`.

    Each process that counts has its own `run`. The usage of an hour is the sum over the runs, with
    the highest `units` of them; `run` is empty in such a sum.
    """

    namespace: NamespaceName
    hour_ms: int
    run: str = ""
    units: int = 0  # the most held; the most needed where units are not enforced
    ingress_events: int = 0  # metered: an event counts once per 64 KB
    ingress_messages: int = 0  # events, whatever their size
    ingress_bytes: int = 0
    egress_bytes: int = 0
    capture_hours: int = 0


def hour_of(now_ms: int) -> int:
    """Start of the clock hour that contains `now_ms`."""
    return now_ms - now_ms % HOUR_MS


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """`[prices]` of the configuration: price per unit of usage; what is not listed is free."""

    currency: Annotated[str, msgspec.Meta(max_length=16)] = ""
    throughput_unit_hour: Decimal = Decimal(0)
    million_ingress_events: Decimal = Decimal(0)
    ingress_gb: Decimal = Decimal(0)
    egress_gb: Decimal = Decimal(0)
    capture_hour: Decimal = Decimal(0)

    def cost(self, usage: Usage) -> Decimal:
        """The cost of one hour of one namespace, not rounded."""
        return (
            self.throughput_unit_hour * usage.units
            + self.million_ingress_events * usage.ingress_events / _MILLION
            + self.ingress_gb * usage.ingress_bytes / _GB
            + self.egress_gb * usage.egress_bytes / _GB
            + self.capture_hour * usage.capture_hours
        )
