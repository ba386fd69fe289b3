"""Idle connections: what one of them costs the broker in memory."""

from __future__ import annotations

import asyncio
import resource
from pathlib import Path

from benchmarks.report.results import Results
from benchmarks.scenarios.comparison import Tell
from benchmarks.systems.base import run
from benchmarks.systems.penstock import HUB, Penstock
from benchmarks.systems.process import FILES_MAX

from penstock.client.connection import Connection, connect
from penstock.model.connection_string import Endpoint

_AT_ONCE = 50


def idle_connections(place: Path, results: Results, *, count: int, tell: Tell) -> None:
    """Each authorised, with a link that may publish; KB are the broker's, from its RSS."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    penstock = Penstock(place / "idle")
    try:
        tell(f"{count} idle connections")
        penstock.fresh()
        results.facts["idle_rss_mb"] = round(penstock.broker.rss_kb() / 1024, 1)
        kb = run(_open(penstock, count))
        results.facts.update(idle_connections=count, kb_per_idle_connection=round(kb, 1))
    finally:
        penstock.close()


async def _open(penstock: Penstock, count: int) -> float:
    assert penstock.endpoint is not None
    opened = [await _one(penstock.endpoint) for _ in range(_AT_ONCE)]  # the first cost more
    before_kb = penstock.broker.rss_kb()
    while len(opened) < count + _AT_ONCE:
        opened += await asyncio.gather(*(_one(penstock.endpoint) for _ in range(_AT_ONCE)))
    kb = (penstock.broker.rss_kb() - before_kb) / (len(opened) - _AT_ONCE)
    for start in range(0, len(opened), _AT_ONCE):
        await asyncio.gather(*(each.close() for each in opened[start : start + _AT_ONCE]))
    return kb


async def _one(endpoint: Endpoint) -> Connection:
    connection = await connect(endpoint, timeout_s=30.0)
    await connection.authorise(HUB)
    await connection.sender(HUB)
    return connection
