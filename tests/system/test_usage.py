"""`penstock usage` and `penstock grant` as users run them; the ledger over restarts and kill -9."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import SqliteUsageLedger
from penstock.client import connect, parse_connection_string
from penstock.client.load.consumer import receive
from penstock.client.load.measurements import LoadResult
from penstock.client.load.producer import LoadProfile, publish
from penstock.client.transfer_frames import encode_publication
from penstock.management.client import ManagementClient
from penstock.model.errors import PenstockError
from penstock.model.names import NamespaceName
from penstock.model.usage import HOUR_MS, Usage

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
COLUMNS = ["hour", "namespace", "units", "ingress_events", "ingress_bytes", "egress_bytes"]
WRITTEN_S = 30.0  # the service writes every two seconds, on a machine that has time for it


def penstock(*words: str, code: int = 0, environ: dict[str, str] | None = None) -> str:
    clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
    ended = subprocess.run(
        [PENSTOCK, *words],
        capture_output=True,
        text=True,
        timeout=60,
        env=clean | (environ or {}),
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert code == 0 or len(ended.stderr.splitlines()) == 1 or code == 2, ended.stderr
    return ended.stdout if code == 0 else ended.stderr


def used(data: Path, *words: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(
        penstock("usage", "--data", str(data), "-o", "json", *words)
    )
    return rows


def total(data: Path, column: str) -> int:
    """Over the hours: one may turn while a test runs."""
    return sum(row[column] for row in used(data))


def until_written(data: Path, column: str, count: int) -> None:
    """By the ledger itself: each look through the command would start a process."""
    deadline_s = time.monotonic() + WRITTEN_S
    connection = sqlite3.connect(f"file:{data / 'catalog.sqlite'}?mode=ro", uri=True)
    try:
        while time.monotonic() < deadline_s:
            (found,) = connection.execute(f"SELECT sum({column}) FROM usage").fetchone()
            if found == count:
                return
            threading.Event().wait(0.04)
    finally:
        connection.close()
    pytest.fail(f"{column} is {found} after {WRITTEN_S} s, not {count}")


def published(server: Server, events: int, *, size: int = 100, batch: int = 10) -> LoadResult:
    load = LoadProfile(
        hub="events", size=size, batch=batch, in_flight=4, events_max=events, duration_s=30.0
    )
    endpoint = parse_connection_string(server["emulator_connection_string"])
    result = asyncio.run(publish(endpoint, load, tls=None))
    assert (result.events, result.errors) == (events, 0)
    return result


def read(server: Server, events: int) -> None:
    endpoint = parse_connection_string(server["emulator_connection_string"])
    partitions = [str(number) for number in range(4)]
    result = asyncio.run(
        receive(endpoint, "events", partitions=partitions, events_max=events, tls=None)
    )
    assert result.events == events


def test_usage_is_told_beside_the_running_service_and_after_it(
    start_server: ServerFactory,
) -> None:
    server = start_server("--throughput-units", "3", "--hub", "events:4")
    rows = used(server.data)
    assert all(list(row) == COLUMNS for row in rows)
    row = rows[-1]  # the hour may have turned
    assert (row["namespace"], row["units"], row["ingress_events"]) == ("penstock", 3, 0)
    hour = datetime.strptime(row["hour"], "%Y-%m-%dT%H:00:00Z").replace(tzinfo=UTC)
    assert 0 <= (datetime.now(UTC) - hour).total_seconds() < 3700
    published(server, 500)
    read(server, 500)
    until_written(server.data, "ingress_messages", 500)
    server.stop()
    assert total(server.data, "ingress_events") == 500
    size, message_format = len(encode_publication(100, 10)[0]), encode_publication(100, 10)[1]
    assert message_format != 0
    assert total(server.data, "ingress_bytes") == 50 * size
    assert total(server.data, "egress_bytes") == 50 * size


def test_large_events_are_metered_in_steps_of_64_kb(start_server: ServerFactory) -> None:
    server = start_server("--hub", "events:4")
    published(server, 3, size=150_000, batch=1)
    server.stop()
    assert total(server.data, "ingress_events") == 9
    rows = used(server.data, "--details")
    assert sum(row["ingress_messages"] for row in rows) == 3
    assert {row["capture_hours"] for row in rows} == {0}


def test_unlimited_namespace_is_metered_by_what_it_needed(start_server: ServerFactory) -> None:
    server = start_server("--hub", "events:4")
    published(server, 8_000, size=10, batch=8_000)  # one publication: all in one second
    server.stop()
    assert max(row["units"] for row in used(server.data)) == 8


def test_ledger_counts_on_over_restarts_and_none_twice(start_server: ServerFactory) -> None:
    server = start_server("--hub", "events:4")
    for _ in range(3):
        published(server, 100)
        server.stop()
        server = start_server(data=server.data)
    assert total(server.data, "ingress_events") == 300


def test_kill_9_loses_at_most_what_was_not_written_and_counts_nothing_twice(
    start_server: ServerFactory,
) -> None:
    server = start_server("--hub", "events:4")
    published(server, 200)
    until_written(server.data, "ingress_messages", 200)
    published(server, 100)
    server.kill()
    kept = total(server.data, "ingress_events")
    assert kept in (200, 300)  # the second writing may have come just before
    server = start_server(data=server.data)
    assert total(server.data, "ingress_events") == kept
    published(server, 50)
    server.stop()
    assert total(server.data, "ingress_events") == kept + 50


def test_kill_9_in_the_middle_of_it_leaves_a_ledger_that_is_never_too_large(
    start_server: ServerFactory,
) -> None:
    """Killed at some moment while events flow and are counted, several times over."""
    data, acknowledged = None, 0
    for number in range(3):
        server = start_server("--hub", "events:4", data=data)
        data = server.data
        acknowledged += asyncio.run(_until_killed(server, after_s=0.4 * number))
    assert data is not None
    kept = total(data, "ingress_events")
    # Counted a moment before its acknowledgement left: the last one may be in the ledger alone.
    assert 0 < kept <= acknowledged + 3


def _in_ledger(data: Path) -> int:
    connection = sqlite3.connect(f"file:{data / 'catalog.sqlite'}?mode=ro", uri=True)
    try:
        (found,) = connection.execute("SELECT sum(ingress_messages) FROM usage").fetchone()
        return found or 0
    finally:
        connection.close()


async def _until_killed(server: Server, *, after_s: float) -> int:
    """Events acknowledged until the service was killed: so long after the ledger heard of them."""
    connection = await connect(parse_connection_string(server["emulator_connection_string"]))
    await connection.authorise("events")
    sender = await connection.sender("events")
    payload, message_format = encode_publication(100, 1)
    loop = asyncio.get_running_loop()
    acknowledged = 0
    before = _in_ledger(server.data)

    async def kill() -> None:
        while _in_ledger(server.data) == before:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.02)
        await asyncio.sleep(after_s)
        server.process.send_signal(signal.SIGKILL)

    killer = loop.create_task(kill())
    try:
        while True:
            settled: asyncio.Future[object] = loop.create_future()
            sender.send(payload, message_format=message_format, on_settled=settled.set_result)
            connection.flush()
            async with asyncio.timeout(10):
                if await settled is not None:
                    break
            acknowledged += 1
    except Exception:  # noqa: BLE001 - the service is gone, whichever way it shows
        pass
    async with asyncio.timeout(10):
        await killer
    server.kill()
    return acknowledged


WITH_A_CLOCK_THAT_IS_SET = """
import os

from penstock.model import clock

place = os.open(os.environ["CLOCK_FILE"], os.O_RDONLY)
real = clock.SystemClock.now_ms
clock.SystemClock.now_ms = lambda self: real(self) + int(os.pread(place, 20, 0))

from penstock.cli import main

main()
"""


def test_clock_set_over_the_turn_of_the_hour_and_back_counts_each_event_once_in_its_hour(
    start_server: ServerFactory, tmp_path: Path
) -> None:
    file = tmp_path / "clock"
    now_ms = time.time_ns() // 1_000_000
    this_hour_ms = now_ms - now_ms % HOUR_MS
    before_ms = this_hour_ms - HOUR_MS // 2 - now_ms  # half an hour before the turn
    after_ms = this_hour_ms + HOUR_MS // 4 - now_ms

    def set_clock(ahead_ms: int) -> None:
        file.touch()
        with file.open("r+b") as written:  # the same length each time: never half of it is read
            os.pwrite(written.fileno(), b"%20d" % ahead_ms, 0)

    def start(*words: str, data: Path | None = None) -> Server:
        program = (sys.executable, "-c", WITH_A_CLOCK_THAT_IS_SET)
        return start_server(*words, program=program, environ={"CLOCK_FILE": str(file)}, data=data)

    set_clock(before_ms)
    server = start("--throughput-units", "3", "--hub", "events:4")
    total = 0
    for ahead_ms, events in ((before_ms, 100), (after_ms, 50), (before_ms, 30), (after_ms, 20)):
        set_clock(ahead_ms)
        published(server, events)
        total += events
        until_written(server.data, "ingress_messages", total)
    server.kill()
    again = start(data=server.data)
    published(again, 10)
    again.stop()
    hours = [datetime.fromtimestamp(this_hour_ms / 1000 - ago_s, tz=UTC) for ago_s in (3600, 0)]
    assert [(row["hour"], row["ingress_events"], row["units"]) for row in used(server.data)] == [
        (hours[0].strftime("%Y-%m-%dT%H:00:00Z"), 130, 3),
        (hours[1].strftime("%Y-%m-%dT%H:00:00Z"), 80, 3),
    ]


# --- the command --------------------------------------------------------------------------------


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    """A data directory with three days of usage."""
    data = tmp_path / "data"
    data.mkdir()
    SqliteCatalog(data / "catalog.sqlite").close()
    start_ms = int(datetime(2026, 1, 31, 22, tzinfo=UTC).timestamp() * 1000)
    ledger = SqliteUsageLedger(data / "catalog.sqlite")
    ledger.record(
        [
            Usage(
                namespace=NamespaceName(name),
                hour_ms=start_ms + hour * HOUR_MS,
                run="r",
                units=units,
                ingress_events=1_000_000,
                ingress_bytes=10,
                egress_bytes=20,
            )
            for hour, units in ((0, 2), (1, 5), (2, 1))
            for name in ("alpha", "beta")
        ]
    )
    ledger.close()
    return data


def test_usage_by_the_hour_is_a_row_for_each_namespace(ledger: Path) -> None:
    rows = used(ledger)
    assert len(rows) == 6
    assert rows[0] == {
        "hour": "2026-01-31T22:00:00Z",
        "namespace": "alpha",
        "units": 2,
        "ingress_events": 1_000_000,
        "ingress_bytes": 10,
        "egress_bytes": 20,
    }
    assert [row["hour"][8:13] for row in rows[::2]] == ["31T22", "31T23", "01T00"]


def test_usage_by_the_day_and_month_adds_up(ledger: Path) -> None:
    days = used(ledger, "--day", "--namespace", "ALPHA")
    assert [(row["day"], row["units"], row["unit_hours"]) for row in days] == [
        ("2026-01-31", 5, 7),
        ("2026-02-01", 1, 1),
    ]
    months = used(ledger, "--month")
    assert [(row["month"], row["namespace"], row["unit_hours"]) for row in months] == [
        ("2026-01", "alpha", 7),
        ("2026-01", "beta", 7),
        ("2026-02", "alpha", 1),
        ("2026-02", "beta", 1),
    ]
    assert months[0]["ingress_events"] == 2_000_000


def test_usage_between_two_times(ledger: Path) -> None:
    rows = used(ledger, "--since", "2026-01-31T23", "--until", "2026-02-01")
    assert {row["hour"] for row in rows} == {"2026-01-31T23:00:00Z"}


def test_usage_as_csv_has_the_same_columns(ledger: Path) -> None:
    text = penstock("usage", "--data", str(ledger), "-o", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    assert list(rows[0]) == COLUMNS
    assert len(rows) == 6
    assert rows[0]["ingress_events"] == "1000000"


def test_usage_as_a_table_is_for_people(ledger: Path) -> None:
    text = penstock("usage", "--data", str(ledger))
    assert "2026-01-31T22:00:00Z" in text
    assert "1,000,000" in text


def test_usage_is_priced_by_the_configurations_list(ledger: Path, tmp_path: Path) -> None:
    """Its other lines are not looked at: whoever reads the bill need not have the keys."""
    file = tmp_path / "penstock.toml"
    file.write_text(
        'data = "data"\n[prices]\ncurrency = "EUR"\nthroughput_unit_hour = 0.015\n'
        "million_ingress_events = 0.028\n[[namespaces]]\nname = 'alphabet'\n"
        "[[namespaces.rules]]\nname = 'r'\nrights = ['send']\nkey_env = 'NOT_SET'\n"
    )
    environ = {"PENSTOCK_CONFIG": str(file)}
    hours = json.loads(penstock("usage", "-o", "json", environ=environ))
    assert [row["price"] for row in hours[::2]] == [0.058, 0.103, 0.043]
    months = json.loads(penstock("usage", "--month", "-o", "json", "--config", str(file)))
    assert months[0]["price"] == 0.161
    assert "0.161000" in penstock("usage", "--month", "-o", "csv", "--config", str(file))
    assert "Usage (EUR)" in penstock("usage", "--month", "--config", str(file))


def test_usage_of_an_empty_ledger_is_empty(tmp_path: Path) -> None:
    SqliteCatalog(tmp_path / "catalog.sqlite").close()
    assert used(tmp_path) == []
    assert penstock("usage", "--data", str(tmp_path), "-o", "csv") == ",".join(COLUMNS) + "\n"


def test_usage_says_what_is_wrong_in_one_sentence(tmp_path: Path) -> None:
    assert "There is no catalog in" in penstock("usage", "--data", str(tmp_path), code=3)
    penstock("usage", "--data", str(tmp_path), "--day", "--month", code=2)
    assert "cannot be read" in penstock("usage", "--config", str(tmp_path / "none"), code=2)
    (tmp_path / "catalog.sqlite").write_bytes(b"nonsense" * 1000)
    assert "catalog.sqlite" in penstock("usage", "--data", str(tmp_path), code=1)


# --- grants -------------------------------------------------------------------------------------

WIDE = """
[[namespaces]]
name = "granted"
throughput_units = {units}
{grants}
[[namespaces.hubs]]
name = "wide"
partition_count = {partitions}
"""
GRANTS = '[[namespaces.grants]]\nthroughput_units = 40\npartitions = 40\nby = "Ada Operator"'


def audit_of(data: Path) -> list[tuple[str, str]]:
    catalog = SqliteCatalog(data / "catalog.sqlite")
    try:
        return [(entry.who, entry.what) for entry in catalog.audit()]
    finally:
        catalog.close()


def refused(data: Path, file: Path) -> str:
    return penstock("serve", "--json", "--data", str(data), "--config", str(file), code=2)


def test_start_without_a_grant_is_refused_and_says_how_to_get_one(tmp_path: Path) -> None:
    file, data = tmp_path / "penstock.toml", tmp_path / "data"
    file.write_text(WIDE.format(units=40, partitions=4, grants=""))
    text = refused(data, file)
    assert "`penstock grant granted --throughput-units 40 --by NAME`" in text
    file.write_text(WIDE.format(units=4, partitions=40, grants=""))
    assert "`penstock grant granted --partitions 40 --by NAME`" in refused(data, file)


def test_grant_of_the_configuration_lets_the_service_start(start_server: ServerFactory) -> None:
    config = WIDE.format(units=40, partitions=40, grants=GRANTS)
    server = start_server(config=config)
    server.stop()
    assert max(row["units"] for row in used(server.data)) == 40
    start_server(config=config, data=server.data).stop()
    assert [entry for entry in audit_of(server.data) if entry[0] == "Ada Operator"] == [
        ("Ada Operator", "grant.partitions"),
        ("Ada Operator", "grant.throughput-units"),
    ]


def test_grant_given_while_the_service_is_stopped_holds_at_its_next_start(
    start_server: ServerFactory,
) -> None:
    server = start_server(config=WIDE.format(units=4, partitions=4, grants=""))
    words = ("grant", "granted", "--throughput-units", "60", "--by", "Bo", "--note", "sale")
    data = ("--data", str(server.data))
    server.stop()
    penstock(*words, *data)
    again = start_server(config=WIDE.format(units=60, partitions=4, grants=""), data=server.data)
    again.stop()
    assert ("Bo", "grant.throughput-units") in audit_of(server.data)


def test_grant_given_while_the_service_runs_holds_at_once(start_server: ServerFactory) -> None:
    server = start_server(config=WIDE.format(units=4, partitions=4, grants=""))
    data = ("--data", str(server.data))
    with ManagementClient(server["admin"], server["admin_token"]) as management:
        for units in (21, 50, 41):
            with pytest.raises(PenstockError, match="40, 60, 80, 100 and blocks of 100"):
                management.put_namespace("granted", units=units)
        with pytest.raises(PenstockError, match="`penstock grant granted --throughput-units 40 "):
            management.put_namespace("granted", units=40)
        with pytest.raises(PenstockError, match="`penstock grant granted --partitions 64 "):
            management.put_hub("granted", "wider", partition_count=64)
        penstock("grant", "granted", "--throughput-units", "40", "--by", "Cy", *data)
        penstock("grant", "granted", "--partitions", "64", "--by", "Cy", "--note", "n", *data)
        management.put_namespace("granted", units=40)
        management.put_hub("granted", "wider", partition_count=64)
        with pytest.raises(PenstockError, match="may have 40 throughput units by the grant of"):
            management.put_namespace("granted", units=60)
        told = [(entry["who"], entry["what"]) for entry in management.audit()]
    for kind in ("throughput-units", "partitions"):
        assert ("Cy (admin)", f"grant.{kind}") in told


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("granted", "--by", "Bo"), 2),
        (("granted", "--throughput-units", "40"), 2),
        (("granted", "--throughput-units", "50", "--by", "Bo"), 1),
        (("granted", "--partitions", "5000", "--by", "Bo"), 1),
        (("nobody", "--partitions", "64", "--by", "Bo"), 3),
    ],
)
def test_grant_that_cannot_be_is_refused(tmp_path: Path, words: tuple[str, ...], code: int) -> None:
    SqliteCatalog(tmp_path / "catalog.sqlite").close()
    penstock("grant", *words, "--data", str(tmp_path), code=code)
    assert audit_of(tmp_path) == []
