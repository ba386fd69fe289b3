"""A user's program: one event processor over our stores or the official one; it says what it does.

Lines on stdout: `claimed <partition> <etag it had> <etag it got> <owner>`, and `done <partition>
<sequence number> <body>` after an event was processed and before its checkpoint is written, so that
what a kill takes back is processed again and never lost. SIGUSR1: it stops itself (SIGSTOP) in a
moment when it is in no call of the store, where it could hold a lock that the others need.
Arguments: JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from collections.abc import Iterable
from typing import Any

from azure.eventhub import EventHubConsumerClient
from azure.eventhub.aio import EventHubConsumerClient as AioConsumerClient
from azure.eventhub.extensions.checkpointstoreblob import BlobCheckpointStore

from penstock import checkpoints
from penstock.checkpoints import aio

Record = dict[str, Any]


def say(*words: Any) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def say_claims(wanted: Iterable[Record], won: Iterable[Record]) -> None:
    had = {record["partition_id"]: record.get("etag") for record in wanted}
    for record in won:
        partition = record["partition_id"]
        say("claimed", partition, had[partition], record["etag"], record["owner_id"] or "-")


class Calls:
    """How many calls of the store are under way, and standing still between two of them."""

    METHODS = ("list_ownership", "list_checkpoints", "update_checkpoint", "claim_ownership")

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # also in threads to come
        threading.Thread(target=self._stand_still, daemon=True).start()

    def __enter__(self) -> None:
        with self._changed:
            self._count += 1

    def __exit__(self, *exc: object) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def _stand_still(self) -> None:
        signal.sigwait({signal.SIGUSR1})
        with self._changed:  # no call begins meanwhile
            self._changed.wait_for(lambda: self._count == 0)
            os.kill(os.getpid(), signal.SIGSTOP)

    def count_blocking(self, store: Any) -> None:
        for name in self.METHODS:
            setattr(store, name, self._blocking(getattr(store, name)))

    def count_asynchronous(self, store: Any) -> None:
        for name in self.METHODS:
            setattr(store, name, self._asynchronous(getattr(store, name)))

    def _blocking(self, act: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            with self:
                return act(*args, **options)

        return call

    def _asynchronous(self, act: Any) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            with self:
                return await act(*args, **options)

        return call


def store_of(room: Any, given: dict[str, Any]) -> Any:
    if given["store"] == "sqlite":
        return room.SqliteCheckpointStore(given["file"])
    if given["store"] == "blob":
        return BlobCheckpointStore.from_connection_string(given["blobs"], given["hub"])
    return room.ServiceCheckpointStore(
        given["connection_string"], https_url=given["https"], ca_file=given["ca_file"]
    )


def options_of(given: dict[str, Any], store: Any) -> dict[str, Any]:
    return {
        "consumer_group": "$Default",
        "eventhub_name": given["hub"],
        "checkpoint_store": store,
        "load_balancing_interval": given["interval_s"],
        "partition_ownership_expiration_interval": given["lease_s"],
    }


def run_blocking(given: dict[str, Any]) -> None:
    store = store_of(checkpoints, given)
    Calls().count_blocking(store)
    claim = store.claim_ownership

    def claim_and_say(wanted: Iterable[Record], **options: Any) -> list[Record]:
        wanted = [dict(record) for record in wanted]
        won: list[Record] = claim(wanted, **options)
        say_claims(wanted, won)
        return won

    def on_event(context: Any, event: Any) -> None:
        say("done", context.partition_id, event.sequence_number, event.body_as_str())
        context.update_checkpoint(event)

    store.claim_ownership = claim_and_say
    consumer = EventHubConsumerClient.from_connection_string(
        given["connection_string"], **options_of(given, store)
    )
    with consumer:
        say("ready")
        consumer.receive(on_event, starting_position="-1")


async def run_asynchronous(given: dict[str, Any]) -> None:
    store = store_of(aio, given)
    Calls().count_asynchronous(store)
    claim = store.claim_ownership

    async def claim_and_say(wanted: Iterable[Record], **options: Any) -> list[Record]:
        wanted = [dict(record) for record in wanted]
        won: list[Record] = await claim(wanted, **options)
        say_claims(wanted, won)
        return won

    async def on_event(context: Any, event: Any) -> None:
        say("done", context.partition_id, event.sequence_number, event.body_as_str())
        await context.update_checkpoint(event)

    store.claim_ownership = claim_and_say
    consumer = AioConsumerClient.from_connection_string(
        given["connection_string"], **options_of(given, store)
    )
    async with consumer:
        say("ready")
        await consumer.receive(on_event, starting_position="-1")


def main() -> None:
    given = json.loads(sys.argv[1])
    if given["flavour"] == "sync":
        run_blocking(given)
    else:
        asyncio.run(run_asynchronous(given))


if __name__ == "__main__":
    main()
