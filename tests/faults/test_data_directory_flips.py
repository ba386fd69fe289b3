"""Bit flips over a data directory: the same content, or a warning or error that names the file.

Each part of the service opens the files that it owns, in this process, as `penstock serve` does.
The directories: one that this version stopped, one as it would be after kill -9, and one that
commit 2ffc782 left when it was killed, with the catalog still in the write-ahead log.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.faults.test_old_data_directory import OldDirectory

from penstock.catalog.metric_store import SqliteMetricStore
from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import SqliteUsageLedger
from penstock.checkpoints.sqlite_file import CheckpointFile
from penstock.client import EventData
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.model.clock import ManualClock
from penstock.model.errors import LogCorrupt, PenstockError
from penstock.model.metrics import NAMES, MetricRequest
from penstock.portal.revocations import Revocations
from penstock.service.admin_tokens import ServiceTokens
from penstock.service.certificates import development_certificates, server_context
from penstock.service.data_directory import DataDirectory
from penstock.service.unclaimed_logs import find_unclaimed_logs
from penstock.spark.capture.job import job_id
from penstock.spark.capture.plan import open_run_state
from penstock.spark.capture.query_checkpoint import set_aside_if_unusable

if TYPE_CHECKING:
    from tests.conftest import Sized

Content = list[object]
NOW_MS = 1_794_960_000_000  # shortly after the fixtures were written
DIRECTORIES = ("stopped", "running", "killed")
SESSIONS = ("first", "second", "third")


def read_catalog(data: Path) -> Content:
    catalog = SqliteCatalog(data / "catalog.sqlite")
    try:
        ledger = SqliteUsageLedger(data / "catalog.sqlite")
        try:
            usage = ledger.usage()
        finally:
            ledger.close()
        namespaces = catalog.namespaces()
        content: Content = [*namespaces, *usage, *catalog.audit(newest=1000)]
        for namespace in namespaces:
            content += catalog.rules(namespace.name)
            for hub in catalog.hubs(namespace.name):
                content.append(hub)
                content += catalog.groups(namespace.name, hub.name)
                content += catalog.rules(namespace.name, hub.name)
    finally:
        catalog.close()
    return content


def read_checkpoints(data: Path) -> Content:
    file = CheckpointFile(
        data / "checkpoints.sqlite", now_ms=lambda: 0, new_etag=lambda: "", is_shared=False
    )
    try:
        return [*file.read_all()]
    finally:
        file.close()


def read_history(data: Path) -> Content:
    store = SqliteMetricStore(data / "history.sqlite")
    try:
        return [
            store.read(
                MetricRequest(
                    namespace="factory",
                    hub=hub,
                    names=NAMES,
                    since_ms=NOW_MS - 3_600_000,
                    until_ms=NOW_MS,
                    points=500,
                ),
                now_ms=NOW_MS,
            )
            for hub in (None, "orders", "readings")
        ]
    finally:
        store.close()


def read_keys(data: Path) -> Content:
    directory = DataDirectory(data)
    content: Content = []
    if (data / "root.key").exists():
        content.append(directory.root_key().reveal())
    if (data / "admin.secret").exists():
        content.append(directory.admin_tokens().tenant_id)
    return content


def read_revoked_tokens(data: Path) -> Content:
    return [*ServiceTokens(DataDirectory(data), ManualClock(NOW_MS)).revoked()]


def read_portal_revocations(data: Path) -> Content:
    portal = Revocations(data / "portal.revoked", now_ms=NOW_MS)
    return [portal.is_revoked(name, issued_ms=NOW_MS - 1) for name in SESSIONS]


def read_certificates(data: Path) -> Content:
    """A certificate that is made again is another one, but signed by the same CA."""
    files = development_certificates(data / "tls", ["localhost"], now_ms=NOW_MS)
    server_context(files)
    return [files.ca_file.read_bytes(), files.certificate_file.read_bytes()]


def read_log(data: Path) -> Content:
    """Every event, and the last number of every producer; a partition that is refused or a record
    that cannot be read is an error with its reason."""
    store = EmbeddedLogStore(data / "log", wake=lambda work: None)
    content: Content = [log.names for log in find_unclaimed_logs(data / "log", ())]
    try:
        for folder in sorted((data / "log").glob("*/[0-9]*")):
            log = store.partition(folder.parent.name, int(folder.name))
            status = log.status()
            if status.failed:
                raise LogCorrupt(status.failed)
            content += [
                str(folder.relative_to(data)),
                status,
                *(log.producer(number) for number in (4711, 4712, 7)),
            ]
            sequence = 0
            while batches := log.read(sequence, bytes_max=1_000_000):
                content += [(each.first_sequence, bytes(each.sections)) for each in batches]
                sequence = batches[-1].first_sequence + batches[-1].count
    finally:
        damage = store.damage
        store.close()
    for text in damage:
        logging.getLogger("test").warning(text)  # as /ready lists it
    return content


def read_capture(data: Path) -> Content:
    """As the job opens the files of a run; it reports sqlite3.Error as the run's error. A Spark
    checkpoint that is set aside is rebuilt from the state file."""
    content: Content = []
    for folder in sorted((data / "capture").glob("*-*/")):
        hub_id = folder.name.partition("-")[0]
        with closing(open_run_state(folder, hub_id, check=True)) as state:
            starts = state.starts()
            content += [state.totals(), starts, state.newest_files(1000), state.slots(2**62)]
        with closing(sqlite3.connect(data / "capture" / f"{hub_id}.sqlite")) as database:
            content += database.execute("SELECT * FROM taken ORDER BY 1, 2").fetchall()
        set_aside_if_unusable(folder / "checkpoint", starts)
        content += [file.read_bytes() for file in sorted(folder.glob("checkpoint/*/[0-9]*"))]
    if (data / "capture" / "job-id").exists():
        content.append(job_id(data / "capture") != "")
    return content


READERS: dict[str, Callable[[Path], Content]] = {
    "catalog.sqlite": read_catalog,
    "checkpoints.sqlite": read_checkpoints,
    "history.sqlite": read_history,
    "root.key": read_keys,
    "admin.secret": read_keys,
    "admin.revoked": read_revoked_tokens,
    "portal.revoked": read_portal_revocations,
    "tls": read_certificates,
    "log": read_log,
    "capture": read_capture,
}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """`stopped` and `running` were used by this version; `killed` is as commit 2ffc782 left it."""
    root = tmp_path_factory.mktemp("directories")
    old = OldDirectory(root / "stopped", "stopped")
    data = DataDirectory(old.data)
    data.root_key()  # the service reads it for a new namespace only
    portal = Revocations(old.data / "portal.revoked", now_ms=NOW_MS)
    for name in SESSIONS[:2]:
        ServiceTokens(data, ManualClock(NOW_MS)).revoke(name)
        portal.revoke(name, issued_ms=NOW_MS - 1, expires_ms=NOW_MS + 60_000, now_ms=NOW_MS)
    # As the capture job does, which the service of this test does not start.
    for folder in (old.data / "capture").glob("*-*/"):
        open_run_state(folder, folder.name.partition("-")[0]).close()

    async def use() -> None:
        async with old.served() as service, service.producer("readings") as producer:
            await producer.send_event(EventData("of this version"), partition_id="3")
            shutil.copytree(old.data, root / "running")

    asyncio.run(use())
    killed = OldDirectory(root / "killed", "killed").data
    return {"stopped": old.data, "running": root / "running", "killed": killed}


def _copy_part(made: Path, part: str, file: Path, target: Path) -> None:
    """What the part reads; of the log only the partition of the file, and its hub's name."""
    target.mkdir(mode=0o700)
    found = [*made.glob(f"{part}*")]
    if part == "log":
        folder = made / Path(*file.parts[:3])
        if folder.name == "hub.json":
            folder = folder.with_name("0")
        found = [made / "log" / "format.json", folder, folder.with_name("hub.json")]
    for source in found:
        if source.is_dir():
            shutil.copytree(source, target / source.relative_to(made))
        elif source.is_file():
            (target / source.relative_to(made)).parent.mkdir(
                mode=0o700, parents=True, exist_ok=True
            )
            shutil.copy2(source, target / source.relative_to(made))


# Version 0.1 wrote no checksums of these; its databases are in write-ahead logs, which have them,
# except for this one.
UNCHECKED_IN_0_1 = ("root.key", "admin.secret", "tls")
UNCHECKED_DATABASE_IN_0_1 = ".names.sqlite"
# Written again at every start, or a log for people.
WITHOUT_CONTENT = ("capture/python", "capture/spark.log", "runtime.json", "plan.json", "log/lock")


def _part_of(path: str) -> str | None:
    if path.endswith(WITHOUT_CONTENT):
        return None
    return next((part for part in READERS if path.startswith(part)), None)


def _outcome(
    data: Path, part: str, flipped: Path, caplog: pytest.LogCaptureFixture
) -> tuple[Content | None, str]:
    """What the part reads, None where it refuses; and the messages that name the flipped file.

    A write-ahead log and a checksum file of Spark are named by the file that they belong to."""
    caplog.clear()
    name = flipped.name.removesuffix("-wal").removesuffix("-shm")
    if "checkpoint" in flipped.parts:
        entry = name.removeprefix(".").removesuffix(".crc")
        name = f"/{flipped.with_name(entry).relative_to(data / 'capture')} "
    try:
        content = READERS[part](data)
    except (PenstockError, sqlite3.Error) as error:
        return None, str(error) if name in str(error) else ""
    messages = [record.getMessage() for record in caplog.records]
    return content, "\n".join(message for message in messages if name in message)


def _flip(file: Path, at: int, bit: int) -> None:
    content = bytearray(file.read_bytes())
    content[at] ^= 1 << bit
    file.write_bytes(content)


@pytest.mark.timeout(3600)
@pytest.mark.sized("faults")
@pytest.mark.parametrize("name", DIRECTORIES)
def test_no_flipped_bit_changes_anything_unnoticed(
    name: str,
    directories: dict[str, Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    sized: Sized,
) -> None:
    caplog.set_level(logging.WARNING)
    made = directories[name]
    files = sorted(
        file.relative_to(made)
        for file in made.rglob("*")
        if file.is_file() and file.stat().st_size > 0 and _part_of(str(file.relative_to(made)))
    )
    if name == "killed":
        files = [
            file
            for file in files
            if _part_of(str(file)) not in UNCHECKED_IN_0_1
            and not file.name.endswith(UNCHECKED_DATABASE_IN_0_1)
        ]
    expected: dict[str | Path, Content] = {}
    chance = random.Random(name)
    silent: list[str] = []
    noticed = 0
    flips = -(-sized(short=200, full=5_000, long=50_000) // len(DIRECTORIES))
    for number in range(flips):
        file = files[number % len(files)]
        part = _part_of(str(file))
        assert part is not None
        copy = tmp_path / "copy"
        whole = Path(*file.parts[:3]) if part == "log" else part
        if whole not in expected:
            _copy_part(made, part, file, copy)
            expected[whole] = READERS[part](copy)
            shutil.rmtree(copy)
        _copy_part(made, part, file, copy)
        at, bit = chance.randrange((copy / file).stat().st_size), chance.randrange(8)
        _flip(copy / file, at, bit)
        content, messages = _outcome(copy, part, copy / file, caplog)
        noticed += bool(messages)
        if content != expected[whole] and not messages:
            silent.append(f"bit {bit} of byte {at} of {file}")
        shutil.rmtree(copy)
    assert silent == []
    assert noticed > 0
