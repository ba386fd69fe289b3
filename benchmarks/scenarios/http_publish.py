"""HTTPS publishing, durable: requests per second over kept-alive TLS connections.

    python -m benchmarks.scenarios.http_publish                      1 KB a request, 32 connections
    python -m benchmarks.scenarios.http_publish --batch 200          JSON batches of 200 such events

The broker runs as a user runs it, on one core; this generator, which speaks just enough HTTP, on
another where there is one. Every answer is checked; only 201 counts.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import ssl
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import uvloop

from penstock.auth.sas import sign
from penstock.model.entities import Secret

PENSTOCK = Path(sys.executable).with_name("penstock")
TICKS = os.sysconf("SC_CLK_TCK")
WARM_UP_S = 1.0
CREATED = b"HTTP/1.1 201 "
BATCH_TYPE = "application/vnd.microsoft.servicebus.json"


class Load:
    """What all connections share: the request and what became of those that were sent."""

    def __init__(self, request: bytes) -> None:
        self.request = request
        self.took_ms: list[float] = []
        self.counting = False
        self.error: bytes | None = None


class Publisher(asyncio.Protocol):
    """One connection with one request in flight."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._answer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)  # uvloop's have no such base
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        self._transport.write(self._load.request)

    def data_received(self, data: bytes) -> None:
        self._answer += data
        if not self._answer.endswith(b"\r\n\r\n"):  # 201 has no body
            return
        if not self._answer.startswith(CREATED):
            self._load.error = self._answer
            self._transport.close()
            return
        if self._load.counting:
            self._load.took_ms.append((time.perf_counter() - self._started) * 1000)
        self._answer = b""
        self._send()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._answer:
            self._load.error = self._answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--connections", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--size", type=int, default=1024, help="bytes of an event's body")
    parser.add_argument("--batch", type=int, default=0, help="events a request; 0: no JSON, one")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where the data goes [a temporary one]")
    parser.add_argument("-o", "--output", choices=("text", "json"), default="text")
    given = parser.parse_args()
    results = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory(dir=given.directory) as place:
            results.append(measure(Path(place), given))
    results.sort(key=lambda result: result["requests_per_s"])
    median = results[len(results) // 2]
    if given.output == "json":
        sys.stdout.write(json.dumps(results) + "\n")
        return
    for name, value in median.items():
        sys.stdout.write(f"{name.replace('_', ' '):24} {value:>12,.2f}\n")


def measure(place: Path, given: argparse.Namespace) -> dict[str, float]:
    with broker(place / "data") as facts:
        _pin(1)
        load = Load(request_bytes(facts, given.size, given.batch))
        pid = int(facts["pid"])
        cpu_s = uvloop.run(run(load, facts, given.connections, given.seconds, pid))
    if load.error is not None or not load.took_ms:
        raise SystemExit(f"not accepted: {load.error!r}")
    rate = len(load.took_ms) / given.seconds
    events = max(given.batch, 1)
    return {
        "requests_per_s": rate,
        "events_per_s": rate * events,
        "mb_per_s": rate * events * given.size / 1_048_576,
        "p50_ms": statistics.median(load.took_ms),
        "p99_ms": statistics.quantiles(load.took_ms, n=100)[98],
        "broker_cpu_share": cpu_s / given.seconds,
        "broker_cpu_us_per_request": cpu_s / len(load.took_ms) * 1e6,
    }


async def run(
    load: Load, facts: dict[str, str], connections: int, seconds: float, pid: int
) -> float:
    """The broker's CPU seconds while the counted requests ran."""
    loop = asyncio.get_running_loop()
    tls = ssl.create_default_context(cafile=facts["ca_file"])
    port = int(facts["https"].rpartition(":")[2])
    transports = [
        (await loop.create_connection(lambda: Publisher(load), "localhost", port, ssl=tls))[0]
        for _ in range(connections)
    ]
    await asyncio.sleep(WARM_UP_S)
    load.counting, before = True, _cpu_s(pid)
    await asyncio.sleep(seconds)
    load.counting, used = False, _cpu_s(pid) - before
    for transport in transports:
        transport.abort()
    return used


def request_bytes(facts: dict[str, str], size: int, batch: int) -> bytes:
    key = facts["connection_string"].partition("SharedAccessKey=")[2].partition(";")[0]
    token = sign(
        "https://localhost/events",
        "RootManageSharedAccessKey",
        Secret(key),
        expires_s=int(time.time()) + 3600,
    )
    body, content_type = b"x" * size, "application/json"
    if batch:
        body = json.dumps([{"Body": "x" * size}] * batch).encode()
        content_type = BATCH_TYPE
    head = (
        "POST /events/messages?timeout=60&api-version=2014-01 HTTP/1.1\r\n"
        f"Host: localhost\r\nAuthorization: {token}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


@contextlib.contextmanager
def broker(data: Path) -> Iterator[dict[str, str]]:
    """`penstock serve`, durable, on the first core alone."""
    ports = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin")]
    process = subprocess.Popen(
        [
            *(str(PENSTOCK), "serve", "--json", f"--data={data}", "--hub=events:4"),
            *("--log-level=warning", *ports),
        ],
        stdout=subprocess.PIPE,
        preexec_fn=lambda: _pin(0),
    )
    try:
        assert process.stdout is not None
        facts: dict[str, str] = json.loads(process.stdout.readline())
        yield facts
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(timeout=30)


def _pin(core: int) -> None:
    cores = CORES
    os.sched_setaffinity(0, {cores[min(core, len(cores) - 1)]})


CORES = sorted(os.sched_getaffinity(0))


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


if __name__ == "__main__":
    main()
