"""A simulated fleet of devices that publishes through the official SDK, `azure-eventhub`.

    python examples/pipelines/fleet.py --devices 40 --rate 1000 --seconds 60

Each device has its own temperature, which wanders; its readings share a partition, since the device
is their key. A share of them comes late, twice or broken, as in life. Prints one line of JSON a
second, and a last one with `"done": true`: how much was sent, and to whom.

PENSTOCK_CONNECTION_STRING   either string that `penstock serve` prints
PENSTOCK_CA_FILE             for the TLS string: what verifies the development certificate

A service that restarts is waited for: the SDK sends again what was not acknowledged.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import signal
import sys
import time
import uuid
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from azure.eventhub import EventData, EventHubProducerClient

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

STEP_S = 0.25  # the fleet publishes so often: one batch for each partition key that has readings
LATE_S = 5.0


class Fleet:
    """All devices. What it says is decided by its seed and the time alone."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._chance = random.Random(given.seed)
        self._warmth = [self._chance.uniform(15, 25) for _ in range(given.devices)]
        self.counts: Counter[str] = Counter()
        self.by_device: Counter[str] = Counter()

    def readings(self, number: int, count: int, now_s: float) -> list[tuple[bytes, str]]:
        """So many of one device, spread over the last step: body and message id."""
        found = []
        for index in range(count):
            at_s = now_s - STEP_S * (count - index) / max(count, 1)
            found += self._reading(number, at_s)
        return found

    def _reading(self, number: int, at_s: float) -> list[tuple[bytes, str]]:
        given, chance = self._given, self._chance
        device = f"device-{number:02d}"
        name = str(uuid.UUID(int=chance.getrandbits(128), version=4))
        if chance.random() < given.broken:
            self.counts["broken"] += 1
            return [(b'{"device": "' + device.encode() + b'", "temp', name)]
        if chance.random() < given.late:
            self.counts["late"] += 1
            at_s -= chance.uniform(0, LATE_S)
        self._warmth[number] += chance.gauss(0, 0.05)
        swing = 3 * math.sin(at_s / 30 + number)
        when = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
        body = {
            "id": name,
            "device": device,
            "time": when.replace("+00:00", "Z"),
            "temperature": round(self._warmth[number] + swing, 2),
            "humidity": round(40 + swing * 2 + chance.gauss(0, 0.5), 1),
        }
        data = json.dumps(body).encode()
        copies = 2 if chance.random() < given.twice else 1
        self.counts["twice"] += copies - 1
        self.counts["readings"] += copies
        self.by_device[device] += copies
        return [(data, name)] * copies


def publish(
    producer: EventHubProducerClient,
    device: str,
    bodies: list[tuple[bytes, str]],
    acknowledged: IO[str] | None,
) -> int:
    """One batch, or several where one is full. The bytes that went. The message ids are written to
    `acknowledged` after the service has acknowledged all of them."""
    batch = producer.create_batch(partition_key=device)
    size = 0
    for body, name in bodies:
        event = EventData(body)
        event.message_id = name
        event.content_type = "application/json"
        event.properties = {"model": f"mk{1 + len(device) % 3}"}
        try:
            batch.add(event)
        except ValueError:  # it is full
            producer.send_batch(batch)
            batch = producer.create_batch(partition_key=device)
            batch.add(event)
        size += len(body)
    producer.send_batch(batch)
    if acknowledged is not None:
        acknowledged.writelines(f"{name}\n" for _, name in bodies)
    return size


def run(
    given: argparse.Namespace, producer: EventHubProducerClient, acknowledged: IO[str] | None
) -> dict[str, Any]:
    fleet = Fleet(given)
    sent = size = 0
    stopping: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: stopping.append(number))
    began_s = told_s = time.monotonic()
    owed, newest = 0.0, ""
    while not stopping:
        passed_s = time.monotonic() - began_s
        if passed_s >= given.seconds:
            break
        owed = min(given.rate * passed_s, given.rate * given.seconds) - sent
        each = [int(owed // given.devices)] * given.devices
        for index in range(int(owed) - sum(each)):
            each[(sent + index) % given.devices] += 1
        for number, count in enumerate(each):
            if count:
                bodies = fleet.readings(number, count, time.time())
                size += publish(producer, f"device-{number:02d}", bodies, acknowledged)
                sent += len(bodies)
                newest = bodies[-1][0].decode()
        now_s = time.monotonic()
        if now_s - told_s >= 1:
            told_s = now_s
            seconds = round(now_s - began_s, 3)
            tell(sent=sent, bytes=size, seconds=seconds, newest=newest, **fleet.counts)
        time.sleep(max(0.0, STEP_S - (time.monotonic() - began_s - passed_s)))
    seconds = round(time.monotonic() - began_s, 3)
    return {"sent": sent, "bytes": size, "seconds": seconds, **fleet.counts} | {
        "by_device": fleet.by_device
    }


def tell(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def main() -> None:
    from connect import connection

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--hub", default="telemetry")
    parser.add_argument("--devices", type=int, default=40)
    parser.add_argument("--rate", type=float, default=1000, help="readings a second of all devices")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--late", type=float, default=0.02, help="share that is late by up to 5 s")
    parser.add_argument("--twice", type=float, default=0.0, help="share that is sent twice")
    parser.add_argument("--broken", type=float, default=0.0, help="share that is no JSON")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--acknowledged", type=Path, help="file for the ids of what is stored")
    given = parser.parse_args()
    patience = {"retry_total": 40, "retry_backoff_factor": 0.2, "retry_backoff_max": 2}
    arguments = {**connection(), "eventhub_name": given.hub, **patience}
    with ExitStack() as stack:
        acknowledged = (
            stack.enter_context(given.acknowledged.open("w")) if given.acknowledged else None
        )
        producer = EventHubProducerClient.from_connection_string(**arguments)
        stack.enter_context(producer)
        tell(done=True, **run(given, producer, acknowledged))


if __name__ == "__main__":
    main()
