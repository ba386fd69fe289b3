"""What open tabs of the portal take from a publisher: the same run, with tabs and without.

    python -m benchmarks.scenarios.portal [--tabs 10] [--rounds 4] [--seconds 5]

Two numbers, because a busy machine blurs the first: the rate of `penstock bench send` in turns with
and without tabs, and the processor time that the broker itself spends on tabs while nobody
publishes, as a share of one core. A tab is what portal.js does: the page again every two seconds.
The aim: less than 5 % of the publish rate.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from penstock.management.client import ManagementClient

PENSTOCK = Path(sys.executable).with_name("penstock")
PAGES = ("/", "/hubs/events", "/hubs/events/groups", "/scale", "/connections")
EVERY_S = 2.0


@contextlib.contextmanager
def service() -> Iterator[dict[str, str]]:
    with tempfile.TemporaryDirectory(prefix="penstock-portal-") as folder:
        ports = [f"--{door}-port=0" for door in ("amqp", "amqps", "https", "admin", "portal")]
        process = subprocess.Popen(
            [PENSTOCK, "serve", "--json", f"--data={folder}/data", "--log-level=warning", *ports],
            stdout=subprocess.PIPE,
        )
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


class Tabs:
    """So many visitors, each of whom asks for a page again and again."""

    def __init__(self, facts: dict[str, str], count: int) -> None:
        self._facts = facts
        self._stop = threading.Event()
        self.answers = 0
        self.failures = 0
        self._threads = [threading.Thread(target=self._tab, args=(n,)) for n in range(count)]

    def __enter__(self) -> Tabs:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(30)

    def _tab(self, number: int) -> None:
        connection = http.client.HTTPConnection(urlsplit(self._facts["portal"]).netloc, timeout=30)
        form = urlencode({"token": self._facts["admin_token"]})
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        connection.request("POST", "/signin", form, kind)
        answer = connection.getresponse()
        answer.read()
        cookie = (answer.getheader("set-cookie") or "").partition(";")[0]
        while not self._stop.wait(EVERY_S):
            headers = {"Cookie": cookie, "X-Live": "1"}
            connection.request("GET", PAGES[number % len(PAGES)], headers=headers)
            answer = connection.getresponse()
            answer.read()
            self.answers += 1
            self.failures += answer.status != 200
        connection.close()


def published(facts: dict[str, str], seconds: int) -> float:
    """Events a second."""
    environ = os.environ | {"PENSTOCK_CONNECTION_STRING": facts["emulator_connection_string"]}
    done = subprocess.run(
        [PENSTOCK, "bench", "send", "--hub", "events", "--duration", str(seconds), "-o", "json"],
        capture_output=True,
        text=True,
        env=environ,
        check=True,
        timeout=seconds + 60,
    )
    (row,) = json.loads(done.stdout)
    return next(float(value) for name, value in row.items() if name.startswith("events_per"))


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, seconds: int) -> float:
    """Of one core, that the broker used in the next seconds."""
    before = cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - before) / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tabs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=int, default=5)
    given = parser.parse_args()
    with service() as facts:
        pid = int(facts["pid"])
        published(facts, 2)  # warm
        with ManagementClient(facts["admin"], facts["admin_token"]) as client:
            client.namespaces()  # loads what every managed service has loaded
        idle = share(pid, given.seconds * 2)
        with Tabs(facts, given.tabs) as tabs:
            time.sleep(3)
            busy = share(pid, given.seconds * 2)
        rates: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(given.rounds):
            rates["without"].append(published(facts, given.seconds))
            with Tabs(facts, given.tabs):
                rates["with"].append(published(facts, given.seconds))
    without, with_ = (statistics.median(rates[key]) for key in ("without", "with"))
    print(f"{given.tabs} tabs: {tabs.answers} answers, {tabs.failures} failures")
    print(f"broker, nobody publishes: {idle:.1%} of a core without tabs, {busy:.1%} with them")
    print(
        f"publish: {without:,.0f} events/s without, {with_:,.0f} with: {1 - with_ / without:+.1%}"
    )


if __name__ == "__main__":
    main()
