"""The composition root of a broker inside a test: the service's packages over stores in memory.

Everything here runs on the broker's own thread, on its event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import secrets
import shutil
import ssl
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Literal

import msgspec

from penstock.auth.sas import Authority
from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.guard import Guard
from penstock.log.api import LogStore, PartitionLog
from penstock.model import limits, names
from penstock.model.clock import Clock
from penstock.model.entities import LimitSet
from penstock.model.errors import ConfigurationError
from penstock.model.names import NamespaceName
from penstock.service import initial_entities
from penstock.service.authorities import CatalogAuthorities
from penstock.service.certificates import Certificates, prepare_certificates, server_context
from penstock.service.config.settings import HubSettings, NamespaceSettings, Settings
from penstock.service.data_directory import DataDirectory, new_key
from penstock.testing.faults import FaultBoard
from penstock.testing.faulty_hub import FaultyAddressLimits, FaultyHub
from penstock.testing.published_events import PublishedEvent, decode_published

Protocol = Literal["amqp", "amqps", "https"]
Listen = Callable[[str, int, ssl.SSLContext | None], Awaitable[int]]
_HOST = "127.0.0.1"
_HOST_6 = "::1"
_GRACE_S = 0.5  # for clients that a test has left open
_CLOSE_S = 5.0
_READ_BYTES = 1 * limits.MB
_READ_THREADS = 2


class BrokerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The validated options of `broker()`."""

    namespace: str
    hubs: dict[str, int]  # name -> partitions
    groups: tuple[str, ...]
    throughput_units: int | None
    retention_hours: int
    clock: Clock
    data: Path | None
    port: int


class InProcessService:
    """One broker with its listeners, from `start` to `stop`."""

    # Set by `start`.
    catalog: Catalog
    broker: Broker
    server: AmqpServer
    key: str  # name and key of the root rule, as a connection string states them

    def __init__(self, options: BrokerOptions, board: FaultBoard) -> None:
        self.options = options
        self._board = board
        self._stack = contextlib.AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._ports: dict[Protocol, int] = {}
        self._opening = asyncio.Lock()
        self._host = "localhost"

    async def start(self) -> None:
        """Open plain TCP only: TLS and HTTPS are opened when their address is first used."""
        async with self._stack:
            await self._start()
            self._stack = self._stack.pop_all()

    async def stop(self) -> None:
        self._board.disarm_all()
        await self._stack.aclose()

    async def _start(self) -> None:
        options, loop = self.options, self._loop
        self._logs, catalog = self._open_stores()
        self.catalog = catalog
        self._create_entities()
        broker = self.broker = Broker(
            catalog,
            self._logs,
            options.clock,
            producer_ids=lambda: secrets.randbelow(2**62) + 1,
            later=lambda delay_ms, work: loop.call_later(delay_ms / 1000, work),
            run_soon=loop.call_soon,
            new_hub=partial(FaultyHub, board=self._board, loop=loop),
        )
        self._stack.callback(broker.close)
        for name in options.hubs:
            broker.hub(options.namespace, name)
        reads = ThreadPoolExecutor(_READ_THREADS, thread_name_prefix="penstock-read")
        self._stack.callback(reads.shutdown)
        addresses = FaultyAddressLimits(options.clock.monotonic_ms, self._board)
        self._stack.push_async_callback(addresses.close_all, _CLOSE_S)
        self._authorities = CatalogAuthorities(catalog)
        context = AmqpContext(
            broker=broker,
            clock=options.clock,
            authorities=self._check_token,
            reads=reads,
            new_id=lambda: uuid.uuid4().hex,
            loop=loop,
            guard=Guard(loop, addresses=addresses),  # by the machine's clock: it paces real work
        )
        self.server = self._board.server = AmqpServer(context)
        self._stack.push_async_callback(self.server.close, grace_s=_GRACE_S)
        recheck = self._board.recheck_tokens
        self._stack.callback(
            catalog.subscribe(lambda change: recheck() if change.affects_links else None)
        )
        await self._listen("amqp", self.server.listen, options.port)

    def _open_stores(self) -> tuple[LogStore, Catalog]:
        """Stores in memory, or below `data` as `penstock serve --data` has them."""

        def wake(work: Callable[[], None]) -> None:
            self._loop.call_soon_threadsafe(work)

        if self.options.data is None:
            from penstock.log.memory import MemoryLogStore

            memory = MemoryLogStore(wake)
            self._stack.callback(memory.close)
            return memory, Catalog()
        from penstock.catalog.sqlite import SqliteCatalog
        from penstock.log.embedded.store import EmbeddedLogStore

        data = DataDirectory(self.options.data).path
        logs = EmbeddedLogStore(data / "log", wake=wake, flush="disk")
        self._stack.callback(logs.close)
        catalog = SqliteCatalog(data / "catalog.sqlite")
        self._stack.callback(catalog.close)
        return logs, catalog

    def _create_entities(self) -> None:
        options = self.options
        namespace = NamespaceSettings(
            name=names.namespace_name(options.namespace),
            throughput_units=options.throughput_units,
            limits=LimitSet.CURRENT,
            hubs=tuple(
                self._hub_settings(name, partitions, options.groups)
                for name, partitions in options.hubs.items()
            ),
        )
        root = initial_entities.create_initial_entities(
            self.catalog,
            Settings(namespaces=(namespace,), namespaces_given=True),
            now_ms=options.clock.now_ms(),
            first_root_key=(
                new_key if options.data is None else DataDirectory(options.data).root_key
            ),
        )
        self.key = f"SharedAccessKeyName={root.name};SharedAccessKey={root.primary_key.reveal()}"

    def _check_token(self) -> Sequence[Authority]:
        """Called whenever a client presents a token, so a fault can refuse it."""
        self._board.check_token()
        return self._authorities()

    def _hub_settings(self, name: str, partitions: int, groups: Sequence[str]) -> HubSettings:
        return HubSettings(
            name=names.hub_name(name),
            partition_count=partitions,
            retention_hours=self.options.retention_hours,
            groups=tuple(names.group_name(group) for group in groups),
        )

    def create_hub(self, name: str, partitions: int, groups: Sequence[str]) -> None:
        initial_entities.seed_hub(
            self.catalog,
            NamespaceName(self.options.namespace),
            self._hub_settings(name, partitions, groups),
            now_ms=self.options.clock.now_ms(),
        )

    def _partition_logs(self, hub: str) -> list[PartitionLog]:
        """Raises NotFound."""
        entity = self.broker.hub(self.options.namespace, hub).entity
        return [self._logs.partition(entity.id, index) for index in range(entity.partition_count)]

    def published(self, hub: str, partition: int | None) -> list[PublishedEvent]:
        return [
            event
            for index, log in enumerate(self._partition_logs(hub))
            if partition in (None, index)
            for event in _read_events(log, index)
        ]

    async def wait_for(
        self, hub: str, count: int, partition: int | None, timeout_s: float
    ) -> list[PublishedEvent]:
        changed = asyncio.Event()
        logs = self._partition_logs(hub)
        watched = logs if partition is None else [logs[partition]]
        with contextlib.ExitStack() as subscriptions:
            for log in watched:
                subscriptions.callback(log.subscribe(changed.set))
            try:
                async with asyncio.timeout(timeout_s):
                    while sum(_event_count(log) for log in watched) < count:
                        await changed.wait()
                        changed.clear()
            except TimeoutError:
                actual = sum(_event_count(log) for log in watched)
                raise TimeoutError(
                    f"Hub '{hub}' holds {actual} events after {timeout_s:g} s: {count} were "
                    "expected."
                ) from None
        return self.published(hub, partition)

    def address(self, protocol: Protocol) -> str:
        """host:port of a listener that is open."""
        return f"{self._host}:{self._ports[protocol]}"

    async def open_tls(self, protocol: Literal["amqps", "https"]) -> str:
        """The address of AMQP over TLS, or of HTTPS (publishing, AMQP over WebSocket, checkpoints);
        opens the listener on first use."""
        async with self._opening:
            if protocol not in self._ports:
                listen = self.server.listen if protocol == "amqps" else self._https_listen()
                await self._listen(protocol, listen)
        return self.address(protocol)

    def _https_listen(self) -> Listen:
        from penstock.testing.https_wiring import open_https_server

        if self.options.data is not None:
            data = self.options.data
        else:
            directory = tempfile.TemporaryDirectory(prefix="penstock-")
            data = Path(self._stack.enter_context(directory))
        return open_https_server(
            self.server,
            catalog=self.catalog,
            authorities=self._authorities,
            board=self._board,
            data=data,
            stack=self._stack,
            grace_s=_GRACE_S,
        ).listen

    def certificates(self) -> Certificates:
        data = self.options.data
        return _shared_certificates(os.getpid()) if data is None else _certificates(data / "tls")

    async def _listen(self, protocol: Protocol, listen: Listen, port: int = 0) -> None:
        """Listen on 127.0.0.1 and ::1, since `localhost` may resolve to either. If the port is in
        use on ::1, clients get the address 127.0.0.1."""
        tls = None if protocol == "amqp" else server_context(self.certificates())
        try:
            actual_port = await listen(_HOST, port, tls)
        except OSError as error:
            raise ConfigurationError(f"Cannot listen on port {port} ({error.strerror}).") from error
        try:
            await listen(_HOST_6, actual_port, tls)
        except OSError:
            self._host = _HOST
        self._ports[protocol] = actual_port


def _read_events(log: PartitionLog, partition: int) -> Iterator[PublishedEvent]:
    status = log.status()
    sequence = status.begin_sequence
    while not status.is_empty and sequence <= status.last_sequence:
        batches = log.read(sequence, bytes_max=_READ_BYTES)
        if not batches:
            break
        for batch in batches:
            yield from decode_published(batch, partition)
            sequence = batch.next_sequence


def _event_count(log: PartitionLog) -> int:
    status = log.status()
    return 0 if status.is_empty else status.last_sequence - status.begin_sequence + 1


def _certificates(directory: Path) -> Certificates:
    """A development certificate. Clients check it by the machine's clock, not the broker's."""
    return prepare_certificates(directory, Settings(), now_ms=time.time_ns() // 1_000_000)


@cache
def _shared_certificates(pid: int) -> Certificates:
    """The certificate of all brokers of this process, which removes it at its end. A forked process
    has another `pid` and creates its own."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return _certificates(directory / "tls")
