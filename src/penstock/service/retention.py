"""One pass of retention over every hub; a hub that fails is logged and the others go on."""

from __future__ import annotations

import logging

from penstock.broker.broker import Broker
from penstock.service.periodic_tasks import TurnBudget

INTERVAL_S = 60.0
PARTITIONS_PER_TURN = 16  # each takes about 0.3 ms: its directory is read

_log = logging.getLogger("penstock.service")


async def enforce_retention(broker: Broker) -> str | None:
    """Return None, or which hubs failed. The pass handles up to `PARTITIONS_PER_TURN` partitions,
    or one hub, per event-loop turn."""
    failures: list[str] = []
    budget = TurnBudget(PARTITIONS_PER_TURN)
    for hub in broker.hub_entities():
        try:
            broker.enforce_hub_retention(hub)
        except Exception as error:  # noqa: BLE001 - the other hubs go on
            name = f"{hub.namespace}/{hub.name}"
            _log.exception("retention_failed hub=%s", name)
            failures.append(f"{name}: {error!r}")
        await budget.spend(hub.partition_count)
    if not failures:
        return None
    more = f" (and {len(failures) - 1} more hubs)" if len(failures) > 1 else ""
    return f"retention of {failures[0]}{more}"
