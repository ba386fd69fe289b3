"""Who starts and ends the capture process, what it is told, and what is told of it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.capture.destinations import Destination
from penstock.capture.status import CaptureReport
from penstock.catalog.api import Catalog
from penstock.management.capture_registry import CaptureRegistry
from penstock.model import extras
from penstock.model.clock import ManualClock
from penstock.model.entities import Hub, Namespace
from penstock.model.names import HubName, NamespaceName
from penstock.service.capture_process import (
    CaptureMonitor,
    CaptureSupervisor,
    capture_child,
)
from penstock.service.child_processes import ChildState, ChildStatus
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import Settings
from penstock.service.readiness import State
from penstock.service.runtime_description import RuntimeDescription

NS = NamespaceName("contoso")
CLOCK = ManualClock()


class FakeChild:
    def __init__(self) -> None:
        self.is_started = False
        self.on_status: Callable[[ChildStatus], None] = lambda status: None
        self.status = ChildStatus(ChildState.STOPPED)

    def start(self) -> None:
        self.is_started = True
        self.status = ChildStatus(ChildState.RUNNING, 1)

    async def stop(self) -> None:
        if self.is_started:
            self.is_started = False
            self.status = ChildStatus(ChildState.STOPPED)
            self.on_status(self.status)


def hub(runs: list[dict[str, Any]], account: str = "store") -> Hub:
    properties = {"storageAccountResourceId": account, "blobContainer": "b"}
    description = {"enabled": bool(runs), "destination": {"properties": properties}}
    return Hub(
        id="a" * 32,
        namespace=NS,
        name=HubName("events"),
        partition_count=2,
        created_ms=0,
        updated_ms=0,
        metadata={"capture": description, "captureRuns": runs},
    )


RUN = {"id": "r", "on_ms": 0, "starts": {"0": 0, "1": 0}}


@pytest.fixture
def catalog() -> Catalog:
    made = Catalog()
    made.put_namespace(Namespace(name=NS, created_ms=0, updated_ms=0))
    return made


@pytest.fixture
def registry() -> CaptureRegistry:
    return CaptureRegistry([Destination(name="store", url="file:///x")])


async def until(is_so: Callable[[], bool]) -> None:
    """The supervisor's task needs a few turns of the loop."""
    for _ in range(1000):
        if is_so():
            return
        await asyncio.sleep(0)
    raise AssertionError("it did not come so")


async def test_the_process_lives_as_long_as_something_is_captured(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    child = FakeChild()
    supervisor = CaptureSupervisor(catalog, registry, child, CLOCK)  # type: ignore[arg-type]
    supervisor.task.start()
    await asyncio.sleep(0)
    assert not child.is_started
    catalog.put_hub(hub([RUN], account="not configured"))
    await asyncio.sleep(0.01)
    assert not child.is_started  # nobody could write anything
    catalog.put_hub(hub([RUN]))
    await until(lambda: child.is_started)
    catalog.put_hub(hub([]))
    await until(lambda: not child.is_started)
    catalog.put_hub(hub([RUN]))
    await until(lambda: child.is_started)
    await supervisor.close()
    assert not child.is_started


async def test_packages_that_are_missing_are_told(
    catalog: Catalog, registry: CaptureRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(extras._PACKAGES, "capture", ("no_such_package",))
    child = FakeChild()
    supervisor = CaptureSupervisor(catalog, registry, child, CLOCK)  # type: ignore[arg-type]
    supervisor.task.start()
    catalog.put_hub(hub([RUN]))
    await until(lambda: "penstock-eventhubs[capture]" in registry.trouble)
    assert not child.is_started
    watch = CaptureMonitor(catalog, registry, lambda _: {"0": 0, "1": 0}, lambda: 1)
    statuses = await watch.statuses()
    assert "no_such_package" in watch.warnings(statuses)[0]
    # `/ready` said ok before while Capture could not run.
    assert watch.check(statuses).state is State.FAIL
    assert "no_such_package" in watch.check(statuses).text
    await supervisor.close()


async def test_process_that_keeps_ending_is_told(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    child = FakeChild()
    supervisor = CaptureSupervisor(catalog, registry, child, CLOCK)  # type: ignore[arg-type]
    supervisor.task.start()
    catalog.put_hub(hub([RUN]))
    await until(lambda: child.is_started)
    ended = ChildStatus(ChildState.WAITING, None, 1, 2, 0, in_vain=2)
    child.on_status(ended)
    assert registry.trouble == ""  # that happens
    child.on_status(msgspec.structs.replace(ended, in_vain=3))
    assert "ended 3 times in a row, last with exit code 2: " in registry.trouble
    watch = CaptureMonitor(catalog, registry, lambda _: {"0": 0, "1": 0}, lambda: 1)
    assert registry.trouble in watch.warnings(await watch.statuses())[0]
    child.on_status(msgspec.structs.replace(ended, in_vain=4, last_exit=-9))
    assert "last with signal 9: " in registry.trouble
    child.on_status(msgspec.structs.replace(ended, in_vain=4, state=ChildState.STARTING))
    assert "ended 4 times in a row" in registry.trouble
    child.on_status(msgspec.structs.replace(ended, in_vain=4, state=ChildState.RUNNING))
    assert registry.trouble == ""
    await supervisor.close()


async def test_word_of_a_process_that_keeps_ending_outlives_a_change_of_the_catalog(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    child = FakeChild()
    supervisor = CaptureSupervisor(catalog, registry, child, CLOCK)  # type: ignore[arg-type]
    supervisor.task.start()
    catalog.put_hub(hub([RUN]))
    await until(lambda: child.is_started)
    child.on_status(ChildStatus(ChildState.WAITING, None, 3, 2, 0, in_vain=3))
    catalog.put_hub(hub([RUN, {**RUN, "id": "s"}]))
    for _ in range(10):
        await asyncio.sleep(0)
    assert "ended 3 times" in registry.trouble
    catalog.put_hub(hub([]))
    await until(lambda: not child.is_started)
    await until(lambda: registry.trouble == "")
    await supervisor.close()


async def test_job_that_has_not_asked_for_five_minutes_hangs(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    child, clock = FakeChild(), ManualClock()
    asks = CaptureSupervisor(catalog, registry, child, clock).is_polling  # type: ignore[arg-type]
    child.start()
    assert not await asks()  # nobody ever did
    registry.claim("job", now_ms=clock.now_ms())
    assert await asks()
    clock.advance(299_000)
    assert await asks()
    clock.advance(1_000)
    assert not await asks()


async def test_question_of_the_process_before_is_no_answer_of_the_next(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    child, clock = FakeChild(), ManualClock()
    asks = CaptureSupervisor(catalog, registry, child, clock).is_polling  # type: ignore[arg-type]
    registry.claim("job", now_ms=clock.now_ms())
    clock.advance(1_000)
    child.status = ChildStatus(ChildState.STARTING, 7, 1, -9, clock.now_ms())
    clock.advance(1_000)
    assert not await asks()
    registry.claim("job", now_ms=clock.now_ms())
    assert await asks()


async def test_clock_that_was_set_back_hides_no_job_that_hangs(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    child, clock = FakeChild(), ManualClock()
    asks = CaptureSupervisor(catalog, registry, child, clock).is_polling  # type: ignore[arg-type]
    registry.claim("job", now_ms=clock.now_ms() + 3_600_000)
    assert not await asks()
    registry.claim("job", now_ms=clock.now_ms())
    assert await asks()


def facts_of(data: Path) -> RuntimeDescription:
    return RuntimeDescription(
        namespace="ns",
        connection_string="",
        emulator_connection_string=None,
        amqp="localhost:1",
        amqps="localhost:2",
        https="https://localhost:3",
        admin="http://localhost:4",
        portal=None,
        admin_token="of-admin",
        ca_file="ca.pem",
        data=str(data),
        pid=1,
    )


def test_the_process_is_told_by_its_environment_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CONTEXT", "another-service")
    monkeypatch.setenv("PENSTOCK_CAPTURE_STORE_ACCOUNT_KEY", "storage-secret")
    facts = facts_of(tmp_path)
    monkeypatch.setenv("PENSTOCK_ADMIN_TOKEN", "of-the-operator")
    child = capture_child(Settings(data=tmp_path), facts, CLOCK)
    assert child.environ["PENSTOCK_ADMIN_TOKEN_FILE"] == str(tmp_path / "capture.token")
    assert not {"of-admin", "of-the-operator"} & set(child.environ.values())
    assert child.environ["PENSTOCK_CAPTURE_AMQP"] == "localhost:1"
    assert child.environ["PENSTOCK_CAPTURE_STORE_ACCOUNT_KEY"] == "storage-secret"
    assert "PENSTOCK_CONTEXT" not in child.environ
    assert child.start_s == 300.0  # Python and Spark take their time
    beyond = capture_child(Settings(data=tmp_path, host="0.0.0.0"), facts, CLOCK)
    assert "PENSTOCK_CAPTURE_AMQP" not in beyond.environ


EMULATOR = """{"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1",
  "Entities": [{"Name": "eh1", "PartitionCount": 2, "ConsumerGroups": []}]}]}}"""
KEY_BY_NAME = """
[[namespaces]]
name = "contoso"
  [[namespaces.rules]]
  name = "RootManageSharedAccessKey"
  rights = ["manage"]
  key_env = "PENSTOCK_ROOT_KEY"
"""
SHARED_PORT = "amqp_port = 5300"
ROOT_KEY = {"PENSTOCK_ROOT_KEY": "of-the-operator"}
BEYOND = {"PENSTOCK_HOST": "0.0.0.0"}


@pytest.mark.parametrize(
    ("content", "environ", "flags"),
    [
        pytest.param(EMULATOR, ROOT_KEY | BEYOND, {}, id="the emulator's, beyond loopback"),
        pytest.param(KEY_BY_NAME, ROOT_KEY, {}, id="a key that is named"),
        pytest.param(EMULATOR, BEYOND, {"host": "127.0.0.1"}, id="a flag that wins over a host"),
        pytest.param(SHARED_PORT, {}, {"amqp_port": 0}, id="a flag that wins over a port"),
    ],
)
def test_the_process_can_load_what_the_service_could(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: str,
    environ: dict[str, str],
    flags: dict[str, object],
) -> None:
    file = tmp_path / "configuration"
    file.write_text(content)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    ours = load_settings(flags={"config": file, "data": tmp_path, **flags}, environ=os.environ)
    child = capture_child(ours, facts_of(tmp_path), CLOCK)
    theirs = load_settings(flags={"config": None}, environ=child.environ)
    assert (theirs.capture, theirs.data) == (ours.capture, ours.data)


async def test_warnings_are_logged_once_in_ten_minutes(
    catalog: Catalog, registry: CaptureRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    watch = CaptureMonitor(catalog, registry, lambda _: {"0": 5, "1": 0}, clock.now_ms)
    assert watch.check(await watch.statuses()).state is State.OFF
    captured = hub([RUN])
    catalog.put_hub(captured)
    registry.put(
        captured,
        CaptureReport(run="r", state="Waiting", last_error="storage is away"),  # type: ignore[arg-type]
        now_ms=clock.now_ms(),
    )
    for _ in range(3):
        await watch.log_warnings()
        clock.advance(20_000)
    assert caplog.text.count("storage is away") == 1
    clock.advance(600_000)
    await watch.log_warnings()
    assert caplog.text.count("storage is away") == 2
    finding = watch.check(await watch.statuses())
    assert finding.state is State.FAIL
    assert "no job" in finding.text or "not reported" in finding.text


async def test_hub_whose_settings_cannot_be_read_does_not_end_the_supervision(
    catalog: Catalog, registry: CaptureRegistry
) -> None:
    """The supervisor's task ended with the first exception before."""
    child = FakeChild()
    supervisor = CaptureSupervisor(catalog, registry, child, CLOCK)  # type: ignore[arg-type]
    supervisor.task.start()
    good = hub([RUN])
    broken = msgspec.structs.replace(
        good, id="b" * 32, name=HubName("broken"), metadata={"captureRuns": [RUN], "capture": 7}
    )
    catalog.put_hub(broken)
    await until(lambda: "contoso/broken" in (supervisor.task.report().warning or ""))
    catalog.put_hub(good)
    await until(lambda: child.is_started)
    await supervisor.close()
