"""What an earlier run of a sink's task has stored: read back, so that it is not stored twice.

The service tells how many events it has of a producer id. Which rows they are is seen by reading
the newest events back until all of them are found: so the rows of a task may come in another order
when it is run again, as they do behind a shuffle.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Mapping

from penstock.client.consumer import EventHubConsumerClient
from penstock.client.errors import ClientTimedOut
from penstock.client.event_data import to_events
from penstock.client.idempotence import PRODUCER_ID

_WINDOW = 4096  # events, read backwards, more each time
_WAIT_S = 30.0  # for what the earlier run sent last to be on disk
_AGAIN_S = 0.05


def row_digest(body: bytes, key: str | None, properties: Mapping[str, object] | None) -> bytes:
    """The same for an event as it is sent and as it is read."""
    digest = hashlib.blake2b(body, digest_size=16)
    digest.update(b"\0" if key is None else b"\1" + key.encode())
    for name, value in sorted((properties or {}).items()):
        digest.update(f"\2{name}\3{value}".encode())
    return digest.digest()


async def read_stored_rows(
    consumer: EventHubConsumerClient, producer_id: int, counts: Mapping[str, int]
) -> Counter[bytes]:
    """The digests of `counts[partition]` events of that producer. Raises ClientError."""
    stored: Counter[bytes] = Counter()
    for partition_id, count in counts.items():
        stored += await _stored_in_partition(consumer, partition_id, producer_id, count)
    return stored


async def _stored_in_partition(
    consumer: EventHubConsumerClient, partition_id: str, producer_id: int, count: int
) -> Counter[bytes]:
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + _WAIT_S
    while True:
        found = await _newest_events(consumer, partition_id, producer_id, count)
        if found.total() >= count:
            return found
        if loop.time() > deadline_s:
            raise ClientTimedOut(
                f"Partition {partition_id} has {count} events of an earlier run of this task, but "
                f"{found.total()} of them could be read within {_WAIT_S} s."
            )
        await asyncio.sleep(_AGAIN_S)


async def _newest_events(
    consumer: EventHubConsumerClient, partition_id: str, producer_id: int, count: int
) -> Counter[bytes]:
    known = await consumer.get_partition_properties(partition_id)
    found: Counter[bytes] = Counter()
    if known["is_empty"]:
        return found
    last, begin = known["last_enqueued_sequence_number"], known["beginning_sequence_number"]
    window = max(_WINDOW, 2 * count)
    while last >= begin and found.total() < count:
        first = max(begin, last - window + 1)
        async for columns in consumer.read_range(partition_id, first, last):
            for event in to_events(columns):
                # Text keys or symbols: the codec gives both as str.
                if event.system_properties.get(PRODUCER_ID) == producer_id:
                    found[row_digest(event.body, event.partition_key, event.properties)] += 1
        last, window = first - 1, window * 2
    return found
