"""A whole service in this process: what `/health` and `/ready` say when one of its parts fails."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.unit.log.embedded.bench import refuse_threads

from penstock.gateway.amqp.server import AmqpServer
from penstock.model.clock import ManualClock
from penstock.model.entities import ConsumerGroup
from penstock.model.errors import PenstockError
from penstock.model.names import GroupName
from penstock.service.certificates import development_certificates
from penstock.service.config.settings import Settings
from penstock.service.wiring import Penstock

DEADLINE_S = 30


class Service:
    def __init__(self, directory: Path) -> None:
        self.clock = ManualClock()
        self.certificates = development_certificates(
            directory / "own", ["localhost"], now_ms=self.clock.now_ms()
        )
        self.settings = Settings(
            data=directory / "data",
            amqp_port=None,
            amqps_port=0,
            https_port=0,
            admin_port=0,
            portal=False,
            tls_certificate_file=self.certificates.certificate_file,
            tls_key_file=self.certificates.key_file,
            tls_ca_file=self.certificates.ca_file,
        )
        self.penstock = Penstock(self.settings, clock=self.clock)

    async def start(self) -> None:
        self.facts = await self.penstock.start()

    async def get(self, path: str, token: str = "") -> tuple[int, Any]:
        port = int(self.facts.admin.rpartition(":")[2])
        async with asyncio.timeout(DEADLINE_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            authorization = f"Authorization: Bearer {token}\r\n" if token else ""
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(
                int(line.split(b":")[1])
                for line in head.split(b"\r\n")
                if line.lower().startswith(b"content-length")
            )
            body = await reader.readexactly(length)
            writer.close()
        return int(head.split()[1]), msgspec.json.decode(body)

    async def until_warned(self, text: str) -> dict[str, Any]:
        """The body of `/ready` that warns of it."""
        async with asyncio.timeout(DEADLINE_S):
            while True:
                status, body = await self.get("/ready")
                assert status == 200
                assert isinstance(body, dict)
                if any(text in warning for warning in body["warnings"]):
                    return body
                await asyncio.sleep(0.01)


@pytest.fixture
async def service(tmp_path: Path) -> AsyncIterator[Service]:
    made = Service(tmp_path)
    await made.start()
    yield made
    await made.penstock.stop()


async def test_committer_that_ended_fails_health_and_ready(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Publishing failed until a restart before, and both answered 200."""
    logs = service.penstock._logs
    assert logs is not None

    class Broken:
        """No chore: the committer cannot even look at it."""

        @property  # type: ignore[misc]
        def __class__(self) -> type:
            raise RuntimeError("unexpected")

    assert (await service.get("/health"))[0] == 200
    logs._committer._queue.put(Broken())  # type: ignore[arg-type]
    async with asyncio.timeout(DEADLINE_S):
        while logs.health().is_alive:  # noqa: ASYNC110 - a thread that ends notifies nobody
            await asyncio.sleep(0.01)
    status, body = await service.get("/health")
    assert status == 503
    assert "restarted" in body["message"]
    status, body = await service.get("/ready")
    assert status == 503
    assert "committer" in body["checks"]["log"]


async def test_running_service_reserves_blocks_for_its_next_start(service: Service) -> None:
    """A process that is killed, or stopped on a full disk, can reserve none."""
    lock = service.settings.data / "log" / "lock"
    assert lock.stat().st_blocks * 512 >= 512 * 1024
    assert lock.stat().st_size < 4096


async def test_no_thread_is_started_after_the_start(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on threads that is reached later stops neither management nor reading."""
    pools = [f"penstock-{name}_0" for name in ("checkpoints", "history", "ledger", "read")]
    assert {*pools, "penstock-read_3"} <= {thread.name for thread in threading.enumerate()}
    refuse_threads(monkeypatch)
    status, _ = await service.get(
        "/subscriptions?api-version=2024-01-01", service.facts.admin_token
    )
    assert status == 200
    status, body = await service.get("/openapi.json", service.facts.admin_token)
    assert status == 200
    assert body["paths"]


async def test_service_that_stops_is_not_unhealthy(service: Service) -> None:
    """A restart does not help: it stops already."""
    service.penstock._open = False
    assert (await service.get("/health"))[0] == 200
    status, body = await service.get("/ready")
    assert (status, body["checks"]["listeners"]) == (503, "starting or stopping")


@pytest.mark.parametrize(
    "name",
    [
        "retention",
        "metering",
        "metric history",
        "capture supervision",
        "certificate reload",
        "process tokens",
    ],
)
async def test_task_without_a_pass_for_long_is_named(service: Service, name: str) -> None:
    """A task that had ended was not noticed before. The tasks are stopped, since on a busy machine
    a first pass would complete after the clock was advanced."""
    status, body = await service.get("/ready")
    assert status == 200
    assert name in body["passes"]
    for task in service.penstock._tasks:
        await task.close()
    service.clock.advance(200_000)
    body = (await service.get("/ready"))[1]
    assert any(text.startswith(f"{name}: ") for text in body["warnings"])


async def test_retention_that_fails_is_named_and_health_stays_well(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs, (retention,) = (
        service.penstock._logs,
        [each for each in service.penstock._tasks if each.name == "retention"],
    )
    assert logs is not None

    def fail(*args: object, **more: object) -> int:
        raise OSError(24, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(logs, "enforce_retention", fail)
        retention.wake()
        await service.until_warned("retention of penstock/events: OSError(24")
        assert (await service.get("/health"))[0] == 200
    retention.wake()
    async with asyncio.timeout(DEADLINE_S):
        while retention.report().warning is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_listeners_use_a_certificate_that_was_replaced(
    service: Service, tmp_path: Path
) -> None:
    new = development_certificates(
        tmp_path / "new", ["localhost"], now_ms=service.clock.now_ms() + 86_400_000
    )
    for source, target in (
        (new.certificate_file, service.certificates.certificate_file),
        (new.key_file, service.certificates.key_file),
    ):
        target.write_bytes(source.read_bytes())
    (reload,) = (each for each in service.penstock._tasks if "certificate" in each.name)
    reload.wake()
    expected = ssl.PEM_cert_to_DER_cert(new.certificate_file.read_text())
    ports = [
        int(service.facts.amqps.rpartition(":")[2]),
        int(service.facts.https.rpartition(":")[2]),
    ]
    for port in ports:
        async with asyncio.timeout(DEADLINE_S):
            while await shown(port) != expected:  # noqa: ASYNC110 - a handshake tells
                await asyncio.sleep(0.01)


async def shown(port: int) -> bytes:
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
    found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    return found


def test_service_that_cannot_read_its_certificate_does_not_start(tmp_path: Path) -> None:
    broken = Service(tmp_path)
    broken.certificates.key_file.write_text("nonsense")
    with pytest.raises(PenstockError, match="Cannot use the certificate"):
        asyncio.run(broken.penstock.start())


async def test_links_are_judged_again_only_when_rules_or_status_changed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A consumer group that was created stopped the loop for 0.95 s before."""
    judged: list[str] = []
    monkeypatch.setattr(AmqpServer, "revalidate_grants", lambda door: judged.append("again"))
    broker = service.penstock.broker
    assert broker is not None
    catalog = broker._catalog
    hub = catalog.hub("penstock", "events")
    assert hub is not None
    catalog.put_group(
        ConsumerGroup(
            namespace=hub.namespace,
            hub=hub.name,
            name=GroupName("new"),
            created_ms=0,
            updated_ms=0,
        )
    )
    catalog.put_hub(msgspec.structs.replace(hub, metadata={"anything": 1}))
    assert judged == []
    (root,) = catalog.rules("penstock")
    catalog.put_rule(msgspec.structs.replace(root, primary_key=root.secondary_key))
    assert judged == ["again"]
