"""A user's program: one EventProcessorClient; it says what it does.

Lines on stdout: `claimed <partition> <etag it had> <etag it got> <owner> <time before>`, and
`done <partition> <etag of the lease> <time> <body>` before the checkpoint is written, so that what
a kill takes back is processed again and never lost. SIGUSR1: it stops itself (SIGSTOP) in a moment
when it is in no call of the store, where it could hold a lock that the others need. SIGTERM: it
ends as it should. Arguments: JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any

from penstock.checkpoints import aio
from penstock.client import (
    EventData,
    EventHubConsumerClient,
    EventPosition,
    EventProcessorClient,
    PartitionContext,
)

Record = dict[str, Any]


def say(*words: Any) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


class TellingStore:
    """A store with the official interface around another one; it says which claims won."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._calls = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.etags: dict[str, str] = {}

    async def list_ownership(self, *names: str) -> Any:
        async with self._call():
            return await self._store.list_ownership(*names)

    async def list_checkpoints(self, *names: str) -> Any:
        async with self._call():
            return await self._store.list_checkpoints(*names)

    async def update_checkpoint(self, checkpoint: Record) -> None:
        async with self._call():
            await self._store.update_checkpoint(checkpoint)

    async def claim_ownership(self, ownership_list: Iterable[Record]) -> list[Record]:
        wanted = [dict(record) for record in ownership_list]
        had = {record["partition_id"]: record.get("etag") for record in wanted}
        before_s = time.time()
        async with self._call():
            won = list(await self._store.claim_ownership(wanted))
        for record in won:
            partition, got = record["partition_id"], record["etag"]
            if got != had[partition]:  # the Blob store hands back what met an error
                self.etags[partition] = got
                owner = record["owner_id"] or "-"
                say("claimed", partition, had[partition], got, owner, before_s)
        return won

    async def stand_still(self) -> None:
        while self._calls:
            await self._idle.wait()
        os.kill(os.getpid(), signal.SIGSTOP)

    @asynccontextmanager
    async def _call(self) -> AsyncIterator[None]:
        self._calls += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._calls -= 1
            if not self._calls:
                self._idle.set()


def store_of(given: dict[str, Any]) -> Any:
    if given["store"] == "sqlite":
        return aio.SqliteCheckpointStore(given["file"])
    if given["store"] == "blob":
        from azure.eventhub.extensions.checkpointstoreblobaio import BlobCheckpointStore

        return BlobCheckpointStore.from_connection_string(given["blobs"], given["hub"])
    return aio.ServiceCheckpointStore(
        given["connection_string"], https_url=given["https"], ca_file=given["ca_file"]
    )


async def run(given: dict[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    pauses: set[asyncio.Task[None]] = set()
    async with store_of(given) as inner:
        store = TellingStore(inner)

        async def on_events(context: PartitionContext, events: list[EventData]) -> None:
            etag, now_s = store.etags[context.partition_id], time.time()
            for event in events:
                say("done", context.partition_id, etag, now_s, event.body_as_str())
            await context.update_checkpoint()

        async def on_error(context: PartitionContext | None, error: Exception) -> None:
            say("error", context, repr(error))

        async with EventHubConsumerClient(
            given["connection_string"], eventhub_name=given["hub"]
        ) as consumer:
            processor = EventProcessorClient(
                consumer,
                store,
                on_events,
                on_error=on_error,
                load_balancing_interval_s=given["interval_s"],
                ownership_expiration_s=given["lease_s"],
                starting_position=EventPosition.earliest(),
            )
            running = asyncio.create_task(processor.run())
            loop.add_signal_handler(
                signal.SIGUSR1, lambda: pauses.add(loop.create_task(store.stand_still()))
            )
            loop.add_signal_handler(signal.SIGTERM, running.cancel)
            await asyncio.wait([running])
            say("ended")


if __name__ == "__main__":
    asyncio.run(run(json.loads(sys.argv[1])))
