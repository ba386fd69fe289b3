"""What usage costs, by the price list of the configuration (`[prices]`)."""

from __future__ import annotations

from decimal import Decimal

import msgspec

from penstock.model.usage import Usage

_MILLION = 1_000_000
_GB = 1 << 30


class PriceList(msgspec.Struct, frozen=True, kw_only=True):
    """Each for one of its unit; what stands not in the list costs nothing."""

    currency: str = ""
    throughput_unit_hour: Decimal = Decimal(0)
    million_ingress_events: Decimal = Decimal(0)
    ingress_gb: Decimal = Decimal(0)
    egress_gb: Decimal = Decimal(0)
    capture_hour: Decimal = Decimal(0)

    def of(self, usage: Usage) -> Decimal:
        """One hour of one namespace, not rounded."""
        return (
            self.throughput_unit_hour * usage.units
            + self.million_ingress_events * usage.ingress_events / _MILLION
            + self.ingress_gb * usage.ingress_bytes / _GB
            + self.egress_gb * usage.egress_bytes / _GB
            + self.capture_hour * usage.capture_hours
        )


PRICE_FIELDS = tuple(name for name in PriceList.__struct_fields__ if name != "currency")
