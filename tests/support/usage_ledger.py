"""A usage ledger in memory."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from penstock.catalog.usage_ledger import COLUMNS, TIME_MS_MAX, sum_usage
from penstock.model.names import fold_name
from penstock.model.usage import Usage


class MemoryUsageLedger:
    """`catalog.api.UsageLedger` without durability."""

    def __init__(self) -> None:
        self._counts: dict[tuple[int, str, str], Usage] = {}

    def record(self, counts: Sequence[Usage]) -> None:
        for count in counts:
            key = (count.hour_ms, fold_name(count.namespace), count.run)
            stored = self._counts.get(key, count)
            largest = {name: max(getattr(stored, name), getattr(count, name)) for name in COLUMNS}
            self._counts[key] = msgspec.structs.replace(stored, **largest)

    def usage(self, *, since_ms: int = 0, until_ms: int = TIME_MS_MAX) -> list[Usage]:
        keys = sorted(key for key in self._counts if since_ms <= key[0] < until_ms)
        return sum_usage(self._counts[key] for key in keys)

    def close(self) -> None:
        pass
