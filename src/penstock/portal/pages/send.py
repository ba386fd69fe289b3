"""Sending events by hand: a body, properties, a key or partition, often, or sample data."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import random
from collections.abc import Iterator
from typing import Any

from starlette.responses import Response

from penstock.client import EventData, EventHubProducerClient
from penstock.model.clock import Clock
from penstock.model.errors import ArgumentError
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.shell import page

REPEAT_MAX = 10_000
_INTERVAL_MS_MAX = 60_000
_TOTAL_S_MAX = 120  # a request that sends for longer would look as if it hung
_BODY_MAX = 1024 * 1024
_SAMPLES = {
    "": "my own body",
    "telemetry": "sample: temperatures of devices",
    "clicks": "sample: clicks in a shop",
    "orders": "sample: orders",
}


async def send_page(visit: PageRequest) -> Response:
    return await page(
        visit,
        "send.html",
        samples=_SAMPLES,
        repeat_max=REPEAT_MAX,
        interval_ms_max=_INTERVAL_MS_MAX,
    )


async def send(visit: PageRequest) -> Response:
    values = visit.form = {"repeat": "1", "interval": "0"} | visit.form
    repeat = visit.integer("repeat", "Repeat", 1, REPEAT_MAX)
    interval_ms = visit.integer("interval", "Every", 0, _INTERVAL_MS_MAX)
    if (repeat - 1) * interval_ms > _TOTAL_S_MAX * 1000:
        raise ArgumentError(
            f"{repeat} times every {interval_ms} ms takes longer than {_TOTAL_S_MAX} s: use "
            "`penstock send --repeat` for that."
        )
    events = itertools.islice(_events(values, visit.portal.clock), repeat)
    key, partition = values.get("partition_key") or None, values.get("partition") or None
    target: dict[str, Any] = {"partition_id": partition, "partition_key": key}
    if key is not None and partition is not None:
        raise ArgumentError("A partition key and a partition exclude each other.")
    async with visit.portal.events.producer(visit.namespace, visit.words["hub"]) as producer:
        if interval_ms:
            for index, event in enumerate(events):
                if index:
                    await asyncio.sleep(interval_ms / 1000)
                await producer.send_event(event, **target)
        else:
            await _send_batches(producer, events, target)
    to = visit.hub_link("events", partition=partition, from_="latest")
    raise ActionCompleted(to, f"{repeat} {'event is' if repeat == 1 else 'events are'} stored.")


async def _send_batches(
    producer: EventHubProducerClient, events: Iterator[EventData], target: dict[str, Any]
) -> None:
    batch = await producer.create_batch(**target)
    for event in events:
        if batch.try_add(event):
            continue
        if len(batch):
            await producer.send_batch(batch)
            batch = await producer.create_batch(**target)
            if batch.try_add(event):
                continue
        raise ArgumentError("The event is larger than the service takes.")
    await producer.send_batch(batch)


def _events(values: dict[str, str], clock: Clock) -> Iterator[EventData]:
    """Without end. Checked at once: nothing is sent of a form that is wrong."""
    properties = parse_properties(values.get("properties", ""))
    body, sample = values.get("body", ""), values.get("sample", "")
    if len(body.encode()) > _BODY_MAX:
        raise ArgumentError(f"A body has at most {_BODY_MAX} bytes here.")
    if sample not in _SAMPLES:
        raise ArgumentError("There is no such sample.")
    content_type = values.get("content_type") or ("application/json" if sample else None)

    def event(index: int) -> EventData:
        text = _sample(sample, index, clock) if sample else body.replace("{n}", str(index))
        return EventData(text, properties=dict(properties) or None, content_type=content_type)

    return map(event, itertools.count(1))


def parse_properties(text: str) -> dict[str, object]:
    """`name=value` lines, or a JSON object of texts, numbers and booleans. ArgumentError."""
    if text.lstrip().startswith("{"):
        try:
            found = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArgumentError(f"The properties are no JSON object: {error}.") from None
        wrong = [n for n, v in found.items() if not isinstance(v, str | int | float | bool)]
        if wrong:
            raise ArgumentError(f"The property '{wrong[0][:40]}' is no text, number or boolean.")
        return dict(found)
    properties: dict[str, object] = {}
    for line in text.splitlines():
        if not line.strip():
            continue
        name, mark, value = line.partition("=")
        if not mark or not name.strip():
            raise ArgumentError(f"'{line[:40]}' is no property: write name=value.")
        properties[name.strip()] = value.strip()
    return properties


def _sample(kind: str, number: int, clock: Clock) -> str:
    at = clock.now_ms()
    pick = random.Random(number)  # noqa: S311  # the same sample each time
    if kind == "telemetry":
        value = 20 + 5 * math.sin(number / 10) + pick.uniform(-0.5, 0.5)
        record = {"device": f"d{number % 10}", "temperature": round(value, 2), "at": at}
    elif kind == "clicks":
        record = {
            "user": f"u{pick.randrange(1000)}",
            "page": pick.choice(("/", "/cart", "/search", "/help")),
            "milliseconds": pick.randrange(20, 900),
            "at": at,
        }
    else:
        record = {
            "order": f"o-{number:06}",
            "customer": f"c{pick.randrange(200)}",
            "amount": round(pick.uniform(3, 250), 2),
            "currency": "EUR",
            "at": at,
        }
    return json.dumps(record)
