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

import msgspec

from penstock.auth import Authority
from penstock.broker import Broker
from penstock.catalog.api import Catalog, CatalogChange
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.guard import Guard
from penstock.log.api import LogStore, PartitionLog
from penstock.model import limits, names
from penstock.model.clock import Clock
from penstock.model.entities import AuthorizationRule, LimitSet, Secret
from penstock.model.errors import ConfigurationError
from penstock.model.names import NamespaceName
from penstock.service import initial_entities
from penstock.service.authorities import CatalogAuthorities
from penstock.service.certificates import (
    ALWAYS_COVERED,
    Certificates,
    development_certificates,
    machine_names,
    server_context,
)
from penstock.service.config.settings import HubSettings, NamespaceSettings, Settings
from penstock.service.data_directory import DataDirectory, new_key
from penstock.testing.fault_board import FaultBoard
from penstock.testing.faulty_hub import FaultyAddressLimits, FaultyHub
from penstock.testing.published_events import PublishedEvent, decode_published

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

    def __init__(self, options: BrokerOptions, board: FaultBoard) -> None:
        self.options = options
        self._board = board
        self._stack = contextlib.AsyncExitStack()
        self._loop = asyncio.get_running_loop()
        self._ports: dict[str, int] = {}
        self._opening = asyncio.Lock()
        self._context: AmqpContext | None = None
        self.host = "localhost"
        self.key = ""

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
        logs, self.catalog = self._stores()
        root = self._seed(self.catalog)
        self.key = f"SharedAccessKeyName={root.name};SharedAccessKey={root.primary_key.reveal()}"
        self._logs = logs
        broker = Broker(
            self.catalog,
            logs,
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
        self.broker = broker
        addresses = FaultyAddressLimits(options.clock.monotonic_ms, self._board)
        self._stack.push_async_callback(addresses.close_all, _CLOSE_S)
        self._authorities = _FaultyAuthorities(CatalogAuthorities(self.catalog), self._board)
        self._context = AmqpContext(
            broker=broker,
            clock=options.clock,
            authorities=self._authorities,
            reads=reads,
            new_id=lambda: uuid.uuid4().hex,
            loop=loop,
            guard=Guard(loop, addresses=addresses),  # by the machine's clock: it paces real work
        )
        self.server = AmqpServer(self._context)
        self._stack.push_async_callback(self.server.close, grace_s=_GRACE_S)
        self._stack.callback(self.catalog.subscribe(self._on_catalog_change))
        self._ports["amqp"] = await self._listen(self.server.listen, options.port, None)

    def _stores(self) -> tuple[LogStore, Catalog]:
        """Stores in memory, or below `data` as `penstock serve --data` has them."""

        def wake(work: Callable[[], None]) -> None:
            self._loop.call_soon_threadsafe(work)

        if self.options.data is None:
            from penstock.catalog.memory import MemoryCatalog
            from penstock.log.memory import MemoryLogStore

            memory = MemoryLogStore(wake)
            self._stack.callback(memory.close)
            return memory, MemoryCatalog()
        from penstock.catalog.sqlite import SqliteCatalog
        from penstock.log.embedded.store import EmbeddedLogStore

        data = self.options.data
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
        logs = EmbeddedLogStore(data / "log", wake=wake, flush="disk")
        self._stack.callback(logs.close)
        catalog = SqliteCatalog(data / "catalog.sqlite")
        self._stack.callback(catalog.close)
        return logs, catalog

    def _seed(self, catalog: Catalog) -> AuthorizationRule:
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
        return initial_entities.create_initial_entities(
            catalog,
            Settings(namespaces=(namespace,), namespaces_given=True),
            now_ms=options.clock.now_ms(),
            first_root_key=self._root_key,
        )

    def _hub_settings(self, name: str, partitions: int, groups: Sequence[str]) -> HubSettings:
        return HubSettings(
            name=names.hub_name(name),
            partition_count=partitions,
            retention_hours=self.options.retention_hours,
            groups=tuple(names.group_name(group) for group in groups),
        )

    def _root_key(self) -> Secret:
        if self.options.data is None:
            return new_key()
        return DataDirectory(self.options.data).root_key()

    def create_hub(self, name: str, partitions: int, groups: Sequence[str]) -> None:
        initial_entities.seed_hub(
            self.catalog,
            NamespaceName(self.options.namespace),
            self._hub_settings(name, partitions, groups),
            now_ms=self.options.clock.now_ms(),
        )

    def _on_catalog_change(self, change: CatalogChange) -> None:
        if change.affects_links:
            self.recheck_tokens()

    def recheck_tokens(self) -> None:
        """End links whose tokens expired or whose policies changed. Clients present no token here,
        so faults do not refuse any."""
        with self._authorities.without_faults():
            self.server.revalidate_grants()

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

    @property
    def amqp(self) -> str:
        return f"{self.host}:{self._ports['amqp']}"

    async def amqps(self) -> str:
        """The address of AMQP over TLS; opens the listener on first use."""
        async with self._opening:
            if "amqps" not in self._ports:
                self._ports["amqps"] = await self._listen(self.server.listen, 0, self._tls())
        return f"{self.host}:{self._ports['amqps']}"

    async def https(self) -> str:
        """The address of HTTPS (publishing, AMQP over WebSocket, checkpoints); opens the listener
        on first use."""
        async with self._opening:
            if "https" not in self._ports:
                from penstock.testing.https_wiring import open_https_server

                assert self._context is not None
                https = open_https_server(
                    self._context,
                    catalog=self.catalog,
                    authorities=self._authorities.inner,
                    amqp=self.server,
                    board=self._board,
                    data=self._data(),
                    stack=self._stack,
                )
                # AMQP connections are closed while the WebSockets below them are still open.
                self._stack.push_async_callback(https.close, grace_s=_GRACE_S)
                self._stack.push_async_callback(self.server.close, grace_s=_GRACE_S)
                self._ports["https"] = await self._listen(https.listen, 0, self._tls())
        return f"{self.host}:{self._ports['https']}"

    def certificates(self) -> Certificates:
        data = self.options.data
        return _shared_certificates(os.getpid()) if data is None else _certificates(data / "tls")

    def _tls(self) -> ssl.SSLContext:
        return server_context(self.certificates())

    def _data(self) -> Path:
        if self.options.data is not None:
            return self.options.data
        return Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="penstock-")))

    async def _listen(
        self,
        listen: Callable[[str, int, ssl.SSLContext | None], Awaitable[int]],
        port: int,
        tls: ssl.SSLContext | None,
    ) -> int:
        """Listen on 127.0.0.1 and ::1, since `localhost` may resolve to either. If the port is in
        use on ::1, clients get the address 127.0.0.1."""
        try:
            actual_port = await listen(_HOST, port, tls)
        except OSError as error:
            raise ConfigurationError(f"Cannot listen on port {port} ({error.strerror}).") from error
        try:
            await listen(_HOST_6, actual_port, tls)
        except OSError:
            self.host = _HOST
        return actual_port


class _FaultyAuthorities:
    """Called whenever a client presents a token, so a fault can refuse it."""

    def __init__(self, inner: Callable[[], Sequence[Authority]], board: FaultBoard) -> None:
        self.inner = inner
        self._board = board
        self._is_faulty = True

    def __call__(self) -> Sequence[Authority]:
        error = self._board.token_error() if self._is_faulty else None
        if error is not None:
            raise error
        return self.inner()

    @contextlib.contextmanager
    def without_faults(self) -> Iterator[None]:
        self._is_faulty = False
        try:
            yield
        finally:
            self._is_faulty = True


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
    hosts = [*ALWAYS_COVERED, *machine_names()]
    return development_certificates(directory, hosts, now_ms=time.time_ns() // 1_000_000)


@cache
def _shared_certificates(pid: int) -> Certificates:
    """The certificate of all brokers of this process, which removes it at its end. A forked process
    has another `pid` and creates its own."""
    directory = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return _certificates(directory / "tls")
