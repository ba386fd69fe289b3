"""The composition root: the only place that names concrete classes.

`Penstock` is one broker with its doors, from open to closed. Order matters: the log's lock first
(one process per data directory), the doors last, and the way back in reverse.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import secrets
import ssl
import uuid
from collections.abc import Callable, Mapping, Sequence

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from penstock.broker import Broker
from penstock.catalog.api import Catalog
from penstock.catalog.history import SqliteHistory
from penstock.catalog.ledger import SqliteLedger
from penstock.catalog.sqlite import SqliteCatalog
from penstock.checkpoints.keeper import CheckpointKeeper
from penstock.gateway.amqp.context import Context, Deadlines
from penstock.gateway.amqp.server import AmqpDoor
from penstock.gateway.amqp.websocket import PATHS, WebSocketDoor
from penstock.gateway.http.checkpoints import PREFIX as CHECKPOINTS
from penstock.gateway.http.checkpoints import HttpCheckpoints
from penstock.gateway.http.publishing import HttpPublishing
from penstock.gateway.http.server import HttpDoor, PublicApplication
from penstock.log.embedded import EmbeddedLogStore
from penstock.management.atom_door import AtomDoor
from penstock.management.door import ManagementDoor
from penstock.management.jobs import JobRegistry
from penstock.management.mount import WithManagement
from penstock.management.operations import Administration
from penstock.management.shapes import Endpoints
from penstock.model import names, slow
from penstock.model.clock import Clock, SystemClock
from penstock.model.entities import AuthorizationRule, Namespace, Right, Secret
from penstock.model.errors import ConfigurationError, QuotaExceeded, ServerBusy
from penstock.service import seed
from penstock.service.administration import (
    DoorConnections,
    endpoints_of,
    hubs_of_connections,
    new_key,
    token_verifier,
    units_needed,
)
from penstock.service.authorities import CatalogAuthorities
from penstock.service.capture import CaptureRoom
from penstock.service.certificates import machine_names, prepare_certificates, server_context
from penstock.service.children import Children
from penstock.service.data_directory import DataDirectory
from penstock.service.facts import Facts
from penstock.service.flushes import FlushTimes
from penstock.service.health import Checks, health_routes
from penstock.service.history import MetricHistory
from penstock.service.kept import LagReport, follow_catalog
from penstock.service.metering import Metering
from penstock.service.metrics import BrokerCollector, metrics_route
from penstock.service.portal import PortalSockets, front_route, portal_check, portal_child
from penstock.service.reads import ReadThreads
from penstock.service.settings import (
    DEFAULT_HUB,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
    Settings,
)

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
_READ_THREADS = 4
_RETENTION_EVERY_S = 60.0
_GRACE_S = 3.0
_DEFAULT_HUB = HubSettings(name=DEFAULT_HUB)


class Penstock:
    """A running service. `start` returns when every door is open."""

    def __init__(
        self,
        settings: Settings,
        *,
        clock: Clock | None = None,
        deadlines: Deadlines | None = None,
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._deadlines = deadlines
        self._stack = contextlib.AsyncExitStack()
        self._open = False
        self.broker: Broker | None = None
        self._logs: EmbeddedLogStore | None = None
        self._flushes = FlushTimes()
        self._answered: Mapping[int, int] = {}  # HTTPS requests, by status
        self._keeper: CheckpointKeeper | None = None
        self.lag: LagReport | None = None
        self._endpoints: Endpoints | None = None
        self._metering: Metering | None = None
        self._captures: CaptureRoom | None = None
        self._children = Children(self.clock)
        self._portal_note = ""

    async def start(self) -> Facts:
        """Open everything, or nothing: a failure closes what was opened."""
        async with self._stack:
            facts = await self._start()
            self._stack = self._stack.pop_all()
            self._open = True
            return facts
        raise AssertionError("unreachable")

    async def stop(self) -> None:
        """Drain: no new work, what is queued reaches the disk, then the lock is released."""
        self._open = False
        await self._stack.aclose()

    async def _start(self) -> Facts:
        settings, loop = self.settings, asyncio.get_running_loop()
        data = DataDirectory(settings.data)

        def wake(work: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(work)

        def flushed(seconds: float) -> None:
            """On the committer's thread, which nobody's terminal may hold up."""
            self._flushes.observe(seconds)
            if seconds * 1000 >= slow.SLOWNESS.threshold_ms:
                wake(lambda: slow.took("flush", seconds * 1000))

        slow.SLOWNESS.threshold_ms = settings.slow_operation_ms
        logs = EmbeddedLogStore(
            data.path / "log", wake=wake, flush=settings.flush, on_flush=flushed
        )
        self._logs = logs
        self._stack.callback(logs.close)  # on the loop's thread: what it commits is told here
        catalog = SqliteCatalog(data.path / "catalog.sqlite")
        self._stack.callback(catalog.close)
        try:
            root = self._seed(catalog, data)
        except QuotaExceeded as error:  # the configuration asks for what needs a grant
            raise ConfigurationError(str(error)) from error
        broker = self.broker = Broker(
            catalog,
            logs,
            self.clock,
            producer_ids=lambda: secrets.randbelow(2**62) + 1,
            later=lambda delay_ms, work: loop.call_later(delay_ms / 1000, work),
        )
        await self._meter(broker, catalog, data, loop)
        # Every log is opened, and so recovered, before the doors are.
        for namespace in catalog.namespaces():
            for hub in catalog.hubs(namespace.name):
                broker.hub(namespace.name, hub.name)
        reads = ReadThreads(_READ_THREADS, thread_name_prefix="penstock-read")
        self._stack.callback(reads.shutdown)
        context = Context(
            broker=broker,
            clock=self.clock,
            authorities=CatalogAuthorities(catalog, extra_hosts=_extra_hosts(settings)),
            reads=reads,
            new_id=lambda: uuid.uuid4().hex,
            loop=loop,
            deadlines=self._deadlines,
        )
        self._keep_checkpoints(context, catalog, data)
        retention = loop.create_task(self._enforce_retention(broker))
        self._stack.push_async_callback(_cancel, retention)
        facts = await self._open_doors(context, catalog, data, root)
        assert self._captures is not None
        token = data.admin_tokens().issue(now_ms=self.clock.now_ms(), subject="capture")
        supervisor = self._captures.start(self._children, facts, token)
        self._stack.push_async_callback(supervisor.close)
        data.write_runtime(facts.as_dict())
        self._stack.callback(data.remove_runtime)
        return facts

    def _keep_checkpoints(self, context: Context, catalog: Catalog, data: DataDirectory) -> None:
        keeper = self._keeper = CheckpointKeeper(
            data.path / "checkpoints.sqlite", now_ms=self.clock.now_ms, loop=context.loop
        )
        self._stack.push_async_callback(keeper.close)
        self._stack.callback(follow_catalog(keeper, catalog))
        self.lag = LagReport(context.broker, catalog, keeper, self.clock, context.reads)

    async def _meter(
        self,
        broker: Broker,
        catalog: Catalog,
        data: DataDirectory,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        """Before the doors open; written to the end after they closed."""
        ledger = SqliteLedger(data.path / "catalog.sqlite")
        self._stack.callback(ledger.close)
        metering = self._metering = Metering(
            broker.accounts,
            catalog,
            ledger,
            clock=self.clock,
            loop=loop,
            process=uuid.uuid4().hex,
        )
        await metering.start()
        self._stack.push_async_callback(metering.stop)

    # --- doors ----------------------------------------------------------------------------------

    async def _open_doors(
        self, context: Context, catalog: Catalog, data: DataDirectory, root: AuthorizationRule
    ) -> Facts:
        settings, loop = self.settings, context.loop
        certificates = prepare_certificates(
            data.path / "tls", settings, host_names=machine_names(), now_ms=self.clock.now_ms()
        )
        tls = server_context(certificates)
        door = AmqpDoor(context)
        administration = self._administered(context, catalog, data, door)
        management = self._management(context, administration, data)
        https = HttpDoor(
            self._public(context, catalog, door, management, administration),
            loop,
            admission=context.admission,
            backoff=context.backoff,
        )
        portal = self._portal_sockets()
        pages = self._administration(context.broker, door, None if portal is None else portal.url)
        admin = HttpDoor(WithManagement(management, pages), loop)
        # Closed in reverse: AMQP says goodbye while the WebSockets under it are still open.
        self._stack.push_async_callback(https.close, grace_s=_GRACE_S)
        self._stack.push_async_callback(door.close, grace_s=_GRACE_S)
        self._stack.push_async_callback(admin.close, grace_s=_GRACE_S)
        self._stack.callback(catalog.subscribe(door.rejudge))
        amqp_port = None
        if settings.amqp_port is not None:
            amqp_port = await self._listen(door, settings.amqp_port, "--amqp-port")
        amqps_port = await self._listen(door, settings.amqps_port, "--amqps-port", tls)
        https_port = await self._listen(https, settings.https_port, "--https-port", tls)
        admin_tls = None if settings.is_loopback else tls
        admin_port = await self._listen(admin, settings.admin_port, "--admin-port", admin_tls)
        facts = Facts.of(
            settings,
            root=root,
            amqp_port=amqp_port,
            amqps_port=amqps_port,
            https_port=https_port,
            admin_port=admin_port,
            admin_token=data.admin_token(now_ms=self.clock.now_ms()),
            ca_file=certificates.ca_file,
            portal=None if portal is None else portal.url,
        )
        self._endpoints = endpoints_of(facts, data.admin_tokens().tenant_id)
        self._stack.push_async_callback(self._children.close)
        if portal is not None:
            self._children.start(portal_child(settings, facts, portal, certificates))
        return facts

    def _administered(
        self, context: Context, catalog: Catalog, data: DataDirectory, door: AmqpDoor
    ) -> Administration:
        assert self.lag is not None
        assert self._keeper is not None
        history = self._keep_history(context, catalog, data, door)
        captures = self._captures = CaptureRoom(
            self.settings, context.broker, catalog, data.path, self.clock
        )
        # A connection of its own: the meter writes by another, on a thread of its own.
        ledger = SqliteLedger(data.path / "catalog.sqlite")
        self._stack.callback(ledger.close)
        return Administration(
            catalog=catalog,
            broker=context.broker,
            clock=self.clock,
            connections=DoorConnections(door, self.clock),
            ledger=ledger,
            lag=self.lag,
            checkpoints=self._keeper,
            history=history,
            jobs=JobRegistry(),
            captures=captures.registry,
            reads=context.reads,
            new_key=new_key,
            new_hub_id=seed.new_hub_id,
            units_needed=units_needed(context.broker),
        )

    def _keep_history(
        self, context: Context, catalog: Catalog, data: DataDirectory, door: AmqpDoor
    ) -> MetricHistory:
        assert self._keeper is not None
        store = SqliteHistory(data.path / "history.sqlite")
        self._stack.callback(store.close)
        history = MetricHistory(
            context.broker,
            catalog,
            self._keeper,
            store,
            connections=hubs_of_connections(door),
            clock=self.clock,
            loop=context.loop,
        )
        history.start()
        self._stack.push_async_callback(history.stop)
        return history

    def _management(
        self, context: Context, administration: Administration, data: DataDirectory
    ) -> ManagementDoor:
        def endpoints() -> Endpoints:
            if self._endpoints is None:
                raise ServerBusy("Penstock is starting; try again in a moment.")
            return self._endpoints

        return ManagementDoor(
            administration,
            verify=token_verifier(data.admin_tokens(), self.clock),
            endpoints=endpoints,
            new_id=context.new_id,
        )

    def _public(
        self,
        context: Context,
        catalog: Catalog,
        door: AmqpDoor,
        management: ManagementDoor,
        administration: Administration,
    ) -> PublicApplication:
        """What answers on the HTTPS port: REST publishing, management, and AMQP over WebSocket."""
        websocket = WebSocketDoor(door)
        publishing = HttpPublishing(
            broker=context.broker,
            catalog=catalog,
            clock=self.clock,
            authorities=context.authorities,
            new_id=context.new_id,
        )
        self._answered = publishing.answered
        atom = AtomDoor(administration, authorities=context.authorities, new_id=context.new_id)
        return PublicApplication(
            publishing=WithManagement(management, publishing, atom=atom),
            websocket=Starlette(routes=[WebSocketRoute(path, websocket) for path in PATHS]),
            prefixes={CHECKPOINTS: self._checkpoints(context, catalog)},
        )

    def _checkpoints(self, context: Context, catalog: Catalog) -> HttpCheckpoints:
        assert self._keeper is not None
        return HttpCheckpoints(
            broker=context.broker,
            catalog=catalog,
            keeper=self._keeper,
            clock=self.clock,
            authorities=context.authorities,
            new_id=context.new_id,
        )

    def _portal_sockets(self) -> PortalSockets | None:
        settings = self.settings
        if not settings.portal:
            return None
        try:
            portal = PortalSockets(settings)
        except OSError as error:
            raise _cannot_listen(
                settings.host, settings.portal_port, "--portal-port", error
            ) from error
        self._stack.callback(portal.close)
        self._portal_note = portal.note
        return portal

    def _administration(self, broker: Broker, door: AmqpDoor, portal: str | None) -> Starlette:
        """What answers on the administration port."""
        assert self.lag is not None
        collector = BrokerCollector(
            broker,
            lag=self.lag.rows,
            connections=lambda: len(door.connections),
            connections_opened=lambda: door.opened,
            flushes=self._flushes,
            answered=self._answered,
        )
        health = health_routes(self._trouble, self._checks, self._warnings)
        assert self._captures is not None
        routes = [*health, metrics_route(collector, self._captures.watch), front_route(portal)]
        return Starlette(routes=routes)

    async def _listen(
        self,
        door: AmqpDoor | HttpDoor,
        port: int,
        flag: str,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """A taken port is one clear sentence. 127.0.0.1 takes ::1 along, for clients that resolve
        localhost to it first."""
        host = self.settings.host
        try:
            got = await door.listen(host, port, tls)
        except OSError as error:
            raise _cannot_listen(host, port, flag, error) from error
        if host == "127.0.0.1":
            try:
                await door.listen("::1", got, tls)
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != 0:
                    raise _cannot_listen("::1", port, flag, error) from error
        return got

    # --- seeding --------------------------------------------------------------------------------

    def _seed(self, catalog: Catalog, data: DataDirectory) -> AuthorizationRule:
        """Put the configuration's entities in place; the first namespace's root rule."""
        now_ms = self.clock.now_ms()
        for wanted in self.settings.namespaces:
            found = catalog.namespace(wanted.name)
            given = self.settings.namespaces_given or found is None
            keeps = found is not None and not (wanted.throughput_units_given or given)
            self._seed_grants(catalog, wanted, now_ms)
            namespace = seed.seed_namespace(
                catalog,
                wanted.name,
                hosts=wanted.hosts if found is None or given else found.hosts,
                tier=wanted.tier if found is None or given else found.tier,
                throughput_units=found.throughput_units
                if found is not None and keeps
                else wanted.throughput_units,
                maximum_throughput_units=wanted.maximum_throughput_units,
                now_ms=now_ms,
            )
            self._seed_rules(catalog, data, namespace, wanted.rules, now_ms)
            for hub in wanted.hubs:
                if not given and hub == _DEFAULT_HUB:
                    continue  # made once; an operator may have deleted it since
                seed.seed_hub(
                    catalog,
                    namespace.name,
                    hub.name,
                    partition_count=hub.partition_count,
                    retention_hours=hub.retention_hours,
                    groups=hub.groups,
                    now_ms=now_ms,
                    partition_count_min=wanted.partition_count_min,
                )
                for rule in hub.rules:
                    _seed_rule(catalog, namespace, hub.name, rule, now_ms)
        root = catalog.rule(self.settings.namespaces[0].name, None, names.ROOT_RULE)
        assert root is not None
        return root

    def _seed_grants(self, catalog: Catalog, wanted: NamespaceSettings, now_ms: int) -> None:
        """Before units and hubs that need them; a new namespace holds nothing yet."""
        if wanted.grants and catalog.namespace(wanted.name) is None:
            seed.seed_namespace(
                catalog,
                wanted.name,
                hosts=wanted.hosts,
                tier=wanted.tier,
                throughput_units=None,
                now_ms=now_ms,
            )
        for grant in wanted.grants:
            seed.seed_grant(
                catalog,
                wanted.name,
                grant.kind,
                grant.value,
                by=grant.by,
                note=grant.note,
                now_ms=now_ms,
            )

    def _seed_rules(
        self,
        catalog: Catalog,
        data: DataDirectory,
        namespace: Namespace,
        rules: Sequence[RuleSettings],
        now_ms: int,
    ) -> None:
        for rule in rules:
            _seed_rule(catalog, namespace, None, rule, now_ms)
        if catalog.rule(namespace.name, None, names.ROOT_RULE) is None:
            first = names.key(namespace.name) == names.key(self.settings.namespaces[0].name)
            seed.seed_rule(
                catalog,
                namespace.name,
                None,
                names.ROOT_RULE,
                rights=Right.ALL,
                primary=data.root_key() if first else _random_key(),
                secondary=_random_key(),
                now_ms=now_ms,
            )

    # --- watching -------------------------------------------------------------------------------

    async def _enforce_retention(self, broker: Broker) -> None:
        while True:
            broker.enforce_retention()
            if self._captures is not None:
                self._captures.watch.log_warnings()
            await asyncio.sleep(_RETENTION_EVERY_S)

    def _trouble(self) -> str | None:
        return None if self._open else "Penstock is starting or stopping."

    def _checks(self) -> Checks:
        checks: Checks = {"doors": "ok" if self._open else "starting or stopping"}
        checks["portal"] = portal_check(self._children)
        failed = self.broker.failed_partitions() if self.broker is not None else []
        checks["log"] = "ok"
        checks["capture"] = "off" if self._captures is None else self._captures.watch.check()
        if failed:
            namespace, hub, index, reason = failed[0]
            more = f" (and {len(failed) - 1} more)" if len(failed) > 1 else ""
            checks["log"] = f"partition {index} of {namespace}/{hub} stopped: {reason}{more}"
        return checks

    def _warnings(self) -> list[str]:
        """Stored bytes that were found damaged: what they held cannot be read, the rest can. And
        units that nobody can use."""
        damage = self._logs.damage if self._logs is not None else []
        notes = self._metering.notes if self._metering is not None else ()
        captures = self._captures.watch.warnings() if self._captures is not None else ()
        return [*damage, *notes, *captures, *([self._portal_note] if self._portal_note else [])]


def _extra_hosts(settings: Settings) -> tuple[str, ...]:
    return LOOPBACK_NAMES if settings.is_loopback else (*LOOPBACK_NAMES, *machine_names())


def _seed_rule(
    catalog: Catalog, namespace: Namespace, hub: str | None, rule: RuleSettings, now_ms: int
) -> None:
    found = catalog.rule(namespace.name, hub, rule.name)
    known = found.secondary_key if found is not None else None
    seed.seed_rule(
        catalog,
        namespace.name,
        hub,
        rule.name,
        rights=rule.rights,
        primary=rule.primary_key or (found.primary_key if found is not None else _random_key()),
        secondary=rule.secondary_key or known or _random_key(),
        now_ms=now_ms,
    )


def _random_key() -> Secret:
    return Secret(base64.b64encode(secrets.token_bytes(32)).decode())


def _cannot_listen(host: str, port: int, flag: str, error: OSError) -> ConfigurationError:
    if error.errno == errno.EADDRINUSE:
        return ConfigurationError(
            f"Port {port} on {host} is taken by another program; "
            f"choose another with {flag} (0 takes any free one)."
        )
    return ConfigurationError(
        f"Cannot listen on {host} port {port} ({error.strerror or error}); see {flag} and --host."
    )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
