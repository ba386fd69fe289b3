"""Publishes events in order, at a rate, and waits while the service is busy or away.

One batch is being sent while the next one is filled. The order of the input is the order in each
partition, also when a batch is refused and sent again.
"""

from __future__ import annotations

import asyncio
import random
import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import KW_ONLY, dataclass, field
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from penstock.amqp.encoder import encode
from penstock.amqp.types import Symbol
from penstock.cli.options import option, parse_duration
from penstock.cli.progress_bar import ProgressBar
from penstock.client.errors import ClientError, ClientThrottled, ClientTooLarge
from penstock.client.event_data import ReceivedEvent
from penstock.client.retry import RetryPolicy
from penstock.formats.event_sections import (
    PARTITION_KEY,
    EventContent,
    EventSections,
    join_map,
    own_annotations,
    split_map,
)
from penstock.kernels import Columns
from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from penstock.client import EventDataBatch, EventHubProducerClient

T = TypeVar("T")

BATCH_EVENTS = 5000
_BATCHES_PER_SECOND = 20  # with --rate: small batches spread the events evenly
_ANNOTATIONS = b"\x00\x53\x72"
_PAUSES = RetryPolicy(backoff_s=0.5, backoff_max_s=4.0)
_RATE = re.compile(r"([0-9]+(?:\.[0-9]+)?)(?:/(s|sec|second|m|min|minute|h|hour))?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_rate(text: str | float) -> float:
    """Events per second: `1000/s`, `60/min`. Raises typer.BadParameter."""
    match = _RATE.fullmatch(str(text).strip())
    if match is None or float(match[1]) <= 0:
        raise typer.BadParameter(f"'{text}' is not a rate. Examples: 1000/s, 60/min.")
    return float(match[1]) / _SECONDS[(match[2] or "s")[0]]


def rate_option(default: str) -> Any:
    return option(
        "--rate N/s",
        f"At most this many events per second (1000/s, 60/min) [default: {default}]",
        parser=parse_rate,
        show_default=False,
    )


RateOption = Annotated[float | None, rate_option("no limit")]
QuietOption = Annotated[bool, option("--quiet -q", "Show neither a progress bar nor a summary")]


def patience_option(default: str) -> Any:
    return option(
        "TIME",
        f"Give up when the service is busy or away for longer than this [default: {default}]",
        parser=parse_duration,
        show_default=False,
    )


PatienceOption = Annotated[float, patience_option("60s")]


@dataclass(frozen=True, kw_only=True)
class PublishOptions:
    """How a command publishes events that it reads from a file or a pipe."""

    batch: Annotated[
        int, option("N", "At most this many events per publication", min=1, max=60_000)
    ] = BATCH_EVENTS
    rate: RateOption = None
    patience: PatienceOption = 60.0
    quiet: QuietOption = False


class EventCopy(ReceivedEvent):
    """An event that is published with the bytes of the sections that it had before."""

    __slots__ = ("_annotations", "partition")

    def __init__(self, content: EventContent) -> None:
        sections, key = content.sections, content.key
        super().__init__(
            -1, "", 0, key, content.body, sections.properties, b"", sections.fields, content.kind
        )
        self.partition = content.partition
        self._annotations = _annotations_section(sections.annotations, key)

    def append_to(self, out: bytearray, annotations: bytes) -> None:
        super().append_to(out, self._annotations)


def copy_events(columns: Columns, partition: str) -> list[EventCopy]:
    """A copy of each row."""
    rows = zip(
        columns.bodies,
        columns.properties,
        columns.message_properties,
        columns.system,
        columns.partition_keys,
        columns.body_kinds,
        strict=True,
    )
    return [
        EventCopy(
            EventContent(
                body,
                EventSections(properties, fields, own_annotations(system, key)),
                key,
                kind,
                partition,
            )
        )
        for body, properties, fields, system, key, kind in rows
    ]


@lru_cache(maxsize=4096)
def _annotations_section(annotations: bytes, key: str | None) -> bytes:
    pairs = split_map(annotations) if annotations else []
    if key is not None:
        pairs.append(encode(Symbol(PARTITION_KEY)) + encode(key))
    return _ANNOTATIONS + join_map(pairs) if pairs else b""


class PublishRate:
    """Delays events to `rate` per second. None means no limit."""

    def __init__(self, rate: float | None) -> None:
        self._rate = rate
        self._due_s: float | None = None

    def batch_events(self, most: int) -> int:
        if self._rate is None:
            return most
        return max(1, min(most, int(self._rate / _BATCHES_PER_SECOND)))

    async def wait(self, events: int) -> None:
        if self._rate is None:
            return
        now = asyncio.get_running_loop().time()
        # After a delay of the service, at most one second of events is caught up.
        due = now if self._due_s is None else max(self._due_s, now - 1.0)
        self._due_s = due + events / self._rate
        if due > now:
            await asyncio.sleep(due - now)


@dataclass
class EventSender:
    """Sends batches one after the other and counts the stored events.

    A batch that the service refuses as busy, or that gets no answer, is sent again until
    `patience_s` seconds have passed since the first failure.
    """

    producer: EventHubProducerClient
    counter: ProgressBar
    _: KW_ONLY
    patience_s: float
    pace: PublishRate = field(default_factory=lambda: PublishRate(None))
    on_retry: Callable[[EventDataBatch], None] | None = None
    _sending: asyncio.Task[None] | None = field(default=None, init=False)

    async def create_batch(self, **target: Any) -> EventDataBatch:
        """`target` is a partition_id, a partition_key or neither."""
        return await self._retry(partial(self.producer.create_batch, **target))

    async def begin(self, batch: EventDataBatch, size: int) -> None:
        """Wait until the previous batch is stored, then start to send this one.

        `size` is the number of bytes in its bodies.
        """
        await self.finish()
        await self.pace.wait(len(batch))
        self._sending = asyncio.create_task(self.send(batch, size))

    async def finish(self) -> None:
        """Wait until the last batch is stored. Raises the error of its sending."""
        sending, self._sending = self._sending, None
        if sending is not None:
            try:
                await sending
            except asyncio.CancelledError:
                sending.cancel()
                raise

    async def send(self, batch: EventDataBatch, size: int) -> None:
        await self._retry(lambda: self.producer.send_batch(batch), batch)
        self.counter.add(len(batch), size)

    async def _retry(
        self, act: Callable[[], Awaitable[T]], batch: EventDataBatch | None = None
    ) -> T:
        """Call `act` until it succeeds, fails for good, or the patience ends."""
        loop = asyncio.get_running_loop()
        first_s: float | None = None
        tries = 0
        while True:
            try:
                result = await act()
            except ClientError as error:
                tries += 1
                now = loop.time()
                first_s = now if first_s is None else first_s
                pause_s = _PAUSES.pause_s(tries, error, random.random())  # noqa: S311  # jitter
                if error.is_final or now + pause_s - first_s > self.patience_s:
                    raise
                if batch is not None and self.on_retry is not None:
                    self.on_retry(batch)
                self.counter.note(_describe_retry(error, pause_s))
                await asyncio.sleep(pause_s)
            else:
                if tries:
                    self.counter.note("")
                return result


def _describe_retry(error: ClientError, pause_s: float) -> str:
    if isinstance(error, ClientThrottled):
        return f"the service is busy, next attempt in {pause_s:.0f} s"
    return f"{error} Next attempt in {pause_s:.1f} s."


@dataclass
class BatchFiller:
    """Collects events in batches for one target and sends them in order."""

    publisher: EventSender
    batch_events: int
    _: KW_ONLY
    partition_id: str | None = None
    partition_key: str | None = None
    event_name: str = "An event"  # in the error for one that is too large; may hold its number
    _batch: EventDataBatch | None = field(default=None, init=False)
    _size: int = field(default=0, init=False)
    _count: int = field(default=0, init=False)

    async def open(self) -> EventDataBatch:
        """The batch that is being filled."""
        if self._batch is None:
            self._batch = await self.publisher.create_batch(
                partition_id=self.partition_id, partition_key=self.partition_key
            )
        return self._batch

    async def add(self, events: Iterable[EventCopy]) -> None:
        """Raises ClientTooLarge for an event that no batch can hold."""
        batch = await self.open()
        free = self.batch_events - len(batch)
        for event in events:
            if free <= 0 or not batch.try_add(event):
                await self.flush()
                batch = await self.open()
                free = self.batch_events
                if not batch.try_add(event):
                    await self.publisher.finish()
                    raise ClientTooLarge(
                        f"{self.event_name.format(self._count + 1)} is too large: its body has "
                        f"{len(event.body):,} bytes or more. The limit with properties is "
                        f"{batch.max_size_in_bytes:,} bytes."
                    )
            free -= 1
            self._count += 1
            self._size += len(event.body)

    async def flush(self) -> None:
        batch, size = self._batch, self._size
        if batch is not None and len(batch):
            self._batch, self._size = None, 0
            await self.publisher.begin(batch, size)


@dataclass
class PartitionRouter:
    """Sends copies of events to the partitions where they belong.

    An event with a partition key goes to the key's partition, by the service's own hash. An event
    without one goes to the partition from which it was copied. `only` overrides both.
    """

    publisher: EventSender
    partition_ids: list[str]
    _: KW_ONLY
    only: str | None = None
    batch_events: int = BATCH_EVENTS

    def __post_init__(self) -> None:
        self._id_set = frozenset(self.partition_ids)

    async def send(self, events: Iterable[EventCopy]) -> None:
        """Send all events. The order within each target partition is kept."""
        lanes: dict[str | None, list[EventCopy]] = {}
        for event in events:
            lanes.setdefault(self.target(event), []).append(event)
        for target, lane in lanes.items():
            filler = BatchFiller(self.publisher, self.batch_events, partition_id=target)
            await filler.add(lane)
            await filler.flush()
        await self.publisher.finish()

    def target(self, event: EventCopy) -> str | None:
        if self.only is not None:
            return self.only
        if event.partition_key is not None:
            return self.partition_ids[
                partition_for_key(event.partition_key, len(self.partition_ids))
            ]
        if event.partition in self._id_set or event.partition is None:
            return event.partition
        if event.partition.isdigit():
            return self.partition_ids[int(event.partition) % len(self.partition_ids)]
        return None
