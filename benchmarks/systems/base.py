"""What every broker under test offers to the workloads, ours and the peers alike."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Protocol, TypeVar

from benchmarks.systems.process import Broker

from penstock.client.load.measurements import LoadResult

T = TypeVar("T")


class Subject(Protocol):
    """One broker on its core. All of it is called on the generator's."""

    name: str
    acknowledges: str  # the setting under which it says "stored"
    kinds: tuple[int, ...]  # events per publication that it is measured with

    @property
    def broker(self) -> Broker:
        """The process that is measured."""
        ...

    def fresh(self) -> None:
        """Begin a round: nothing is stored. It is running, and nobody measures yet."""
        ...

    async def publish(
        self, size: int, batch: int, *, seconds: float, connections: int = 1
    ) -> LoadResult:
        """As fast as it acknowledges."""
        ...

    async def deliver(self, size: int, *, events: int) -> LoadResult:
        """Read what this round published with that size and the first of its kinds."""
        ...

    def close(self) -> None: ...


class Absent(Exception):
    """The peer is not on this machine, or does not start here: the text says why."""


def run(work: Coroutine[object, object, T]) -> T:
    """Every generator runs on the same kind of loop."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
