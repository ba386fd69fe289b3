"""A mixed load for one hour: every event arrives once, and resident memory does not grow."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from penstock.auth.sas import sign
from penstock.client import connect, parse_connection_string
from penstock.client.transfer_frames import encode_publication
from penstock.model.entities import Secret

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory, Sized

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
HOUR_S = 3600
WARM_UP_SHARE = 1 / 6  # the first ten minutes of an hour
SAMPLE_S = 5.0
SLOPE_MAX_MB_PER_HOUR = 1.0
HUBS = (
    "/subscriptions/s/resourceGroups/g/providers/Microsoft.EventHub/namespaces/penstock/eventhubs"
)

Samples = list[tuple[float, float]]  # seconds since the start, megabytes


def slope_mb_per_hour(samples: Samples) -> float:
    """By linear fit (least squares)."""
    return statistics.linear_regression(*zip(*samples, strict=True)).slope * 3600


def test_slope_is_found_through_noise() -> None:
    samples = [(float(s), 100 + 7 * s / 3600 + (s % 3) * 0.2) for s in range(0, 3600, 5)]
    assert slope_mb_per_hour(samples) == pytest.approx(7, abs=0.1)
    assert slope_mb_per_hour([(0.0, 90.0), (10.0, 90.0), (20.0, 90.0)]) == 0


def resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"process {pid} has ended")


class Load:
    """What runs beside `penstock soak`: each step takes a moment, and is repeated to the end."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._hubs = 0
        self._endpoint = parse_connection_string(server["emulator_connection_string"])
        self._https = http.client.HTTPSConnection(
            "localhost",
            server.port("https"),
            context=ssl.create_default_context(cafile=server["ca_file"]),
            timeout=60,
        )
        self.counts: dict[str, int] = {}

    async def cut_connection(self) -> None:
        """Publish an event, then end the connection without a word."""
        connection = await connect(self._endpoint, timeout_s=60)
        await connection.authorise("churn")
        sender = await connection.sender("churn")
        payload, message_format = encode_publication(100, 1)
        settled = asyncio.get_running_loop().create_future()
        await sender.wait_for_credit()
        sender.send(payload, message_format=message_format, on_settled=settled.set_result)
        connection.flush()
        async with asyncio.timeout(60):
            assert await settled is None
        connection.abort()

    def publish_over_https(self) -> None:
        token = sign(
            self._server["https"],
            "RootManageSharedAccessKey",
            Secret(self._server.key),
            expires_s=int(time.time()) + 600,
        )
        self._https.request("POST", "/churn/messages", b"x" * 500, {"Authorization": token})
        answer = self._https.getresponse()
        answer.read()
        assert answer.status == 201

    def create_and_delete_a_hub(self) -> None:
        self._hubs += 1
        name = f"passing-{self._hubs}"
        self._manage("PUT", name, {"properties": {"partitionCount": 4}})
        self._manage("DELETE", name, None)

    def scrape(self) -> None:
        for path in ("/metrics", "/ready"):
            with urllib.request.urlopen(self._server["admin"] + path, timeout=60) as answer:
                assert answer.read()

    def _manage(self, method: str, name: str, body: object) -> None:
        request = urllib.request.Request(
            f"{self._server['admin']}{HUBS}/{name}?api-version=2024-01-01",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {self._server['admin_token']}",
                "Content-Type": "application/json",
            },
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()

    def close(self) -> None:
        self._https.close()

    async def repeat(self, step: Callable[[], object], every_s: float) -> None:
        """A step that waits for a socket runs on a thread."""
        while True:
            if asyncio.iscoroutinefunction(step):
                await step()
            else:
                await asyncio.to_thread(step)
            name = getattr(step, "__name__", "")
            self.counts[name] = self.counts.get(name, 0) + 1
            await asyncio.sleep(every_s)


async def run_load(server: Server, seconds: float) -> tuple[Samples, dict[str, int]]:
    load, samples = Load(server), Samples()
    steps = (
        (load.cut_connection, 0.5),
        (load.publish_over_https, 0.2),
        (load.create_and_delete_a_hub, 20.0),
        (load.scrape, 10.0),
    )
    tasks = [asyncio.create_task(load.repeat(step, every_s)) for step, every_s in steps]
    began_s = time.monotonic()
    pid = int(server["pid"])
    try:
        while (elapsed_s := time.monotonic() - began_s) < seconds:
            samples.append((elapsed_s, resident_mb(pid)))
            # A step that fails ends the test at once.
            done, _ = await asyncio.wait(
                tasks, timeout=SAMPLE_S, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        load.close()
    return samples, load.counts


@pytest.mark.full("faults")
@pytest.mark.timeout(5 * HOUR_S)
def test_mixed_soak_keeps_every_event_and_its_memory(
    start_server: ServerFactory, sized: Sized
) -> None:
    """Resident memory once grew by about 10 MB per hour."""
    seconds = sized(short=HOUR_S, full=HOUR_S // 6, long=HOUR_S)
    server = start_server("--hub=soak:4", "--hub=churn:4", "--portal-port=0")
    soak = subprocess.Popen(
        [PENSTOCK, "soak", "--hub=soak", f"--minutes={seconds / 60}", "--rate=200/s", "--quiet"],
        env={**os.environ, "PENSTOCK_CONNECTION_STRING": server["emulator_connection_string"]},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        samples, counts = asyncio.run(run_load(server, seconds))
        said, _ = soak.communicate(timeout=600)
    finally:
        soak.kill()
        soak.wait()
    assert soak.returncode == 0, said[-4000:]
    assert min(counts.get(name, 0) for name in ("cut_connection", "publish_over_https")) > 0
    warm = [each for each in samples if each[0] >= seconds * WARM_UP_SHARE]
    slope = slope_mb_per_hour(warm)
    print(f"soak: {seconds} s, {counts}, resident {warm[0][1]:.1f} -> {warm[-1][1]:.1f} MB")
    print(f"slope after the first {seconds * WARM_UP_SHARE:g} s: {slope:+.2f} MB per hour")
    if seconds >= HOUR_S:
        assert slope < SLOPE_MAX_MB_PER_HOUR, samples[:: max(1, len(samples) // 60)]
