"""The composition root: the only module that names concrete classes.

`Penstock` is one service from start to stop. The order matters: the lock of the log first (one
process per data directory), the listeners last; `stop` closes in reverse order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import uuid
from collections.abc import Mapping
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route, WebSocketRoute

from penstock.broker.broker import Broker
from penstock.catalog.api import Catalog
from penstock.catalog.metric_store import SqliteMetricStore
from penstock.catalog.sqlite import SqliteCatalog
from penstock.catalog.usage_ledger import SqliteUsageLedger
from penstock.checkpoints.server_store import ServerCheckpointStore
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.lifecycle import Deadlines
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.amqp.websocket import PATHS, WebSocketEndpoint
from penstock.gateway.guard import Guard
from penstock.gateway.http.checkpoints import PREFIX as CHECKPOINTS
from penstock.gateway.http.checkpoints import CheckpointEndpoint
from penstock.gateway.http.publish import PublishEndpoint
from penstock.gateway.http.request import log_refusal
from penstock.gateway.http.server import HttpServer, PublicApplication
from penstock.log.embedded.store import EmbeddedLogStore
from penstock.management.app import ManagementApp, ManagementMount
from penstock.management.capture_registry import CaptureRegistry
from penstock.management.jobs import JobRegistry
from penstock.management.operations.base import ManagementContext
from penstock.management.permissions import AdminRole, ProcessRole
from penstock.management.router import ServiceEndpoints
from penstock.model import slow_operations
from penstock.model.clock import Clock, SystemClock
from penstock.model.entities import AuthorizationRule
from penstock.model.errors import (
    ArgumentOutOfRange,
    ConfigurationError,
    NotFound,
    QuotaExceeded,
    ServerBusy,
)
from penstock.model.host_names import HostNames
from penstock.model.metrics import FlushLatencies
from penstock.service import (
    capture_process,
    certificates,
    management_context,
    portal_process,
    readiness,
    retention,
    unclaimed_logs,
)
from penstock.service.admin_tokens import RENEW_INTERVAL_S, ProcessTokens, ServiceTokens
from penstock.service.authorities import CatalogAuthorities, shared_hosts
from penstock.service.child_processes import ChildProcess
from penstock.service.config.settings import Settings, destinations_of
from penstock.service.data_directory import DataDirectory, new_key
from penstock.service.initial_entities import create_initial_entities, new_hub_id
from penstock.service.lag_report import LagReport, follow_catalog
from penstock.service.listeners import open_listener
from penstock.service.metric_history import MetricHistory
from penstock.service.metrics import BrokerCollector, MetricsPage, collect_capture
from penstock.service.periodic_tasks import PeriodicTask, Work
from penstock.service.read_threads import ReadThreads
from penstock.service.runtime_description import RuntimeDescription, describe_runtime
from penstock.service.usage_recorder import UsageRecorder

_READ_THREADS = 4
_GRACE_S = 3.0

_log = logging.getLogger("penstock.service")


class Penstock:
    """A service, from `start` to `stop`. Use it on the event loop's thread."""

    # Set by `start`, in this order.
    _data: DataDirectory
    _logs: EmbeddedLogStore
    _catalog: Catalog
    _unclaimed: list[unclaimed_logs.UnclaimedLog]
    broker: Broker
    _metering: UsageRecorder
    _context: AmqpContext
    _checkpoints: ServerCheckpointStore
    lag: LagReport
    _certificate: certificates.ReloadableCertificate
    _server: AmqpServer
    _tokens: ServiceTokens
    _sign_in: portal_process.PortalSignIn
    _capture_registry: CaptureRegistry
    _capture: capture_process.CaptureMonitor

    def __init__(
        self, settings: Settings, *, clock: Clock | None = None, deadlines: Deadlines | None = None
    ) -> None:
        self.settings = settings
        self.clock: Clock = clock or SystemClock()
        self._deadlines = deadlines
        self._stack = contextlib.AsyncExitStack()
        self._open = False
        self._flushes = FlushLatencies()
        self._answered: Mapping[int, int] = {}  # HTTPS requests, by status
        self._endpoints: ServiceEndpoints | None = None
        self._sockets: portal_process.PortalSockets | None = None
        self._portal: ChildProcess | None = None
        self._tasks: list[PeriodicTask] = []  # whose passes `/ready` reports

    async def start(self) -> RuntimeDescription:
        """Open everything, or nothing: a failure closes what was opened."""
        async with self._stack:
            facts = await self._start()
            self._stack = self._stack.pop_all()
        self._open = True
        return facts

    async def stop(self) -> None:
        """Drain: no new work, what is queued reaches the disk, then the lock is released."""
        self._open = False
        await self._stack.aclose()

    async def _start(self) -> RuntimeDescription:
        readiness.raise_open_files_limit()
        self._data = DataDirectory(self.settings.data)
        root = self._open_broker()
        await self._start_metering()
        # Every log is opened, and so recovered, before the listeners open.
        for namespace in self._catalog.namespaces():
            for hub in self._catalog.hubs(namespace.name):
                self.broker.hub(namespace.name, hub.name)
        self._context = self._build_amqp_context()
        self._keep_checkpoints()
        facts = await self._open_listeners(root)
        self._start_task("retention", self._run_retention, retention.INTERVAL_S)
        self._supervise_capture(facts)
        self._data.write_runtime(facts.as_dict())
        self._stack.callback(self._data.remove_runtime)
        self._logs.reserve_space()
        return facts

    def _open_broker(self) -> AuthorizationRule:
        """Open log and catalog. Return the root rule of the default namespace."""
        settings, log, loop = self.settings, self._data.path / "log", asyncio.get_running_loop()

        def flushed(seconds: float) -> None:
            """On the committer's thread, which must not wait for a terminal: it does not log."""
            self._flushes.observe(seconds)
            if seconds * 1000 >= slow_operations.threshold_ms:
                loop.call_soon_threadsafe(slow_operations.warn_if_slow, "flush", seconds * 1000)

        slow_operations.threshold_ms = settings.slow_operation_ms
        self._logs = EmbeddedLogStore(
            log, wake=loop.call_soon_threadsafe, flush=settings.flush, on_flush=flushed
        )
        self._stack.callback(self._logs.close)  # waits for the last commits
        catalog = self._catalog = SqliteCatalog(self._data.path / "catalog.sqlite")
        self._stack.callback(catalog.close)
        self._unclaimed = unclaimed_logs.compare_logs(log, catalog, self._logs)
        try:
            root = create_initial_entities(
                catalog,
                settings,
                now_ms=self.clock.now_ms(),
                first_root_key=self._data.root_key,
                unclaimed=self._unclaimed,
            )
        except (QuotaExceeded, ArgumentOutOfRange) as error:  # beyond a grant or a limit
            raise ConfigurationError(str(error)) from error
        self.broker = Broker(
            catalog,
            self._logs,
            self.clock,
            producer_ids=lambda: secrets.randbelow(2**62) + 1,
            later=lambda delay_ms, work: loop.call_later(delay_ms / 1000, work),
            run_soon=loop.call_soon,
            new_hub=unclaimed_logs.hubs_with_name_files(log),
        )
        return root

    def _build_amqp_context(self) -> AmqpContext:
        settings, loop = self.settings, asyncio.get_running_loop()
        reads = ReadThreads(_READ_THREADS, "penstock-read")
        self._stack.callback(reads.shutdown)
        return AmqpContext(
            broker=self.broker,
            clock=self.clock,
            authorities=CatalogAuthorities(self._catalog, shared_hosts=shared_hosts(settings)),
            reads=reads,
            new_id=lambda: uuid.uuid4().hex,
            loop=loop,
            guard=Guard(loop),
            deadlines=self._deadlines or Deadlines(),
            expiry_grace_ms=1000 * settings.auth_expiry_grace_seconds,
        )

    def _supervise_capture(self, facts: RuntimeDescription) -> None:
        """Start supervision. The process starts when a hub needs it; nothing waits for it."""
        if not self.settings.capture.run:
            return
        child = capture_process.capture_child(self.settings, facts, self.clock)
        supervisor = capture_process.CaptureSupervisor(
            self._catalog, self._capture_registry, child, self.clock
        )
        self._tasks.append(supervisor.task)
        supervisor.task.start()
        self._stack.push_async_callback(supervisor.close)

    def _keep_checkpoints(self) -> None:
        context = self._context
        self._checkpoints = ServerCheckpointStore(
            self._data.path / "checkpoints.sqlite", now_ms=self.clock.now_ms, loop=context.loop
        )
        self._stack.push_async_callback(self._checkpoints.close)
        self._stack.callback(follow_catalog(self._checkpoints, self._catalog))
        self.lag = LagReport(
            self.broker, self._catalog, self._checkpoints, self.clock, context.reads
        )

    async def _start_metering(self) -> None:
        """Starts before the listeners open; writes the last counts after they are closed."""
        self._metering = UsageRecorder(
            self.broker.accounts,
            self._catalog,
            self._open_ledger(),
            clock=self.clock,
            loop=asyncio.get_running_loop(),
            process=uuid.uuid4().hex,
        )
        self._tasks.append(self._metering.task)
        await self._metering.start()
        self._stack.push_async_callback(self._metering.stop)

    def _open_ledger(self) -> SqliteUsageLedger:
        ledger = SqliteUsageLedger(self._data.path / "catalog.sqlite")
        self._stack.callback(ledger.close)
        return ledger

    def sign_in_link(self) -> str | None:
        """An address that signs an administrator in to the portal once; None without a portal."""
        with contextlib.suppress(NotFound):
            return self._sign_in.sign_in_link("admin", AdminRole.ADMIN, now_ms=self.clock.now_ms())
        return None

    # --- listeners ------------------------------------------------------------------------------

    async def _open_listeners(self, root: AuthorizationRule) -> RuntimeDescription:
        settings, context, catalog = self.settings, self._context, self._catalog
        self._prepare_certificate()
        server = self._server = AmqpServer(context)
        tokens = self._tokens = ServiceTokens(self._data, self.clock)
        portal = self._open_portal_sockets()
        self._sign_in = portal_process.PortalSignIn(portal, self._data, tokens.verify)
        management = self._build_management()
        https = HttpServer(self._build_public_app(management), context.loop, guard=context.guard)
        checked = management_context.AdministrationChecks(
            ManagementMount(management, self._build_administration(portal)),
            hosts=HostNames(management_context.own_host_names(settings)),
            namespace_hosts=lambda: [host for each in catalog.namespaces() for host in each.hosts],
            verify=tokens.verify,
            metrics_need_token=not settings.is_loopback,
            is_for_this_machine=settings.is_plain,
        )
        admin = HttpServer(checked, context.loop)
        # Closed in reverse order: AMQP connections close while their WebSockets are still open.
        for listening in (https, server, admin):
            self._stack.push_async_callback(listening.close, grace_s=_GRACE_S)
        self._stack.callback(
            catalog.subscribe(
                lambda change: server.revalidate_grants() if change.affects_links else None
            )
        )
        tls = self._certificate.context
        ports = {}
        for name, listening, used_tls in (
            ("amqp", server, None),
            ("amqps", server, tls),
            ("https", https, tls),
            ("admin", admin, None if settings.is_plain else tls),
        ):
            port = getattr(settings, f"{name}_port")
            if port is not None:
                flag = f"--{name}-port"
                ports[name] = await open_listener(listening, settings.host, port, flag, used_tls)
        facts = describe_runtime(
            settings,
            root,
            ports,
            admin_token=self._data.admin_token(now_ms=self.clock.now_ms()),
            ca_file=self._certificate.files.ca_file,
            portal=portal,
        )
        tenant_id = self._data.admin_tokens().tenant_id
        self._endpoints = management_context.endpoints_of(facts, tenant_id)
        self._start_process_tokens()
        if self._sockets is not None:
            child = self._portal = portal_process.portal_child(
                settings, facts, self._sockets, self._certificate.files, self._data, self.clock
            )
            self._stack.push_async_callback(child.stop)
            child.start()
        self._start_task(
            "certificate reload", self._reload_certificate, certificates.RELOAD_INTERVAL_S
        )
        return facts

    def _start_process_tokens(self) -> None:
        """Write the tokens of the portal and the capture job, and renew them."""
        settings = self.settings
        needed = {ProcessRole.PORTAL: settings.portal, ProcessRole.CAPTURE: settings.capture.run}
        roles = [role for role in needed if needed[role]]
        process_tokens = ProcessTokens(
            self._data.path, self._tokens, self.clock, self._context.reads, roles
        )
        with contextlib.suppress(OSError):  # a full disk: the first pass retries, and reports it
            process_tokens.write()
        self._stack.callback(process_tokens.remove)
        self._start_task("process tokens", process_tokens.renew, RENEW_INTERVAL_S)

    def _prepare_certificate(self) -> None:
        directory = self._data.path / "tls"
        prepare = partial(certificates.prepare_certificates, directory, self.settings)
        certificate = certificates.ReloadableCertificate(prepare, self.clock.now_ms)
        self._certificate = certificate
        finding = readiness.judge_certificate(certificate.validity, now_ms=self.clock.now_ms())
        if finding.state is not readiness.State.OK:
            _log.warning("certificate_check state=%s text=%s", finding.state, finding.text)

    def _build_management(self) -> ManagementApp:
        context, catalog = self._context, self._catalog
        registry = self._capture_registry = CaptureRegistry(
            destinations_of(self.settings.capture, self._data.path)
        )
        self._capture = capture_process.CaptureMonitor(
            catalog,
            registry,
            lambda hub: self.broker.hub(hub.namespace, hub.name).next_sequences(),
            self.clock.now_ms,
        )
        administration = ManagementContext(
            catalog=catalog,
            broker=self.broker,
            clock=self.clock,
            connections=management_context.GatewayConnections(self._server, self.clock),
            portal=self._sign_in,
            # A second connection to the file: the usage recorder writes with its own, on its
            # thread.
            ledger=self._open_ledger(),
            measure_lag=self.lag.measure,
            checkpoints=self._checkpoints,
            read_metrics=self._keep_history().read,
            jobs=JobRegistry(),
            captures=registry,
            reads=context.reads,
            new_key=new_key,
            new_hub_id=new_hub_id,
            units_needed=management_context.required_units(self.broker),
            limit_set=self.settings.limits,
            tokens=self._tokens,
        )

        def endpoints() -> ServiceEndpoints:
            if self._endpoints is None:
                raise ServerBusy("Penstock is starting; try again in a moment.")
            return self._endpoints

        return ManagementApp(
            administration,
            verify=self._tokens.verify,
            endpoints=endpoints,
            new_id=context.new_id,
            log_refusal=partial(log_refusal, context.refusal_log, names_entity=False),
        )

    def _keep_history(self) -> MetricHistory:
        store = SqliteMetricStore(self._data.path / "history.sqlite")
        self._stack.callback(store.close)
        history = MetricHistory(
            self.broker,
            self._catalog,
            self._checkpoints,
            store,
            connections=partial(management_context.hubs_of_connections, self._server),
            clock=self.clock,
            loop=self._context.loop,
        )
        self._tasks.append(history.task)
        history.task.start()
        self._stack.push_async_callback(history.stop)
        return history

    def _build_public_app(self, management: ManagementApp) -> PublicApplication:
        """The application of the HTTPS port: publishing, management, and AMQP over WebSocket."""
        context = self._context
        websocket = WebSocketEndpoint(self._server)
        shared: dict[str, Any] = {
            "broker": self.broker,
            "catalog": self._catalog,
            "clock": self.clock,
            "authorities": context.authorities,
            "new_id": context.new_id,
            "refusal_log": context.refusal_log,
        }
        publishing = PublishEndpoint(**shared)
        self._answered = publishing.answered
        return PublicApplication(
            publishing=ManagementMount(management, publishing),
            websocket=Starlette(routes=[WebSocketRoute(path, websocket) for path in PATHS]),
            prefixes={CHECKPOINTS: CheckpointEndpoint(store=self._checkpoints, **shared)},
        )

    def _open_portal_sockets(self) -> str | None:
        """Return the address of the portal; None without one."""
        if not self.settings.portal:
            return None
        self._sockets = portal_process.PortalSockets(self.settings)
        self._stack.callback(self._sockets.close)
        return self._sockets.url

    def _build_administration(self, portal: str | None) -> Starlette:
        """The pages of the administration port beside the management API."""
        collector = BrokerCollector(
            broker=self.broker,
            lag=self.lag.hub_rows,
            connections=lambda: len(self._server.connections),
            connections_opened=lambda: self._server.opened,
            flushes=self._flushes,
            answered=self._answered,
            certificate_expires_ms=lambda: self._certificate.validity.not_after_ms,
        )
        metrics = MetricsPage(collector.collect, partial(collect_capture, self._capture))
        routes = [
            *readiness.health_routes(self._ended, self._readiness),
            Route("/metrics", metrics, methods=["GET"]),
            portal_process.front_route(portal),
        ]
        return Starlette(routes=routes)

    # --- watching -------------------------------------------------------------------------------

    def _start_task(self, name: str, work: Work, interval_s: float) -> None:
        """Start a periodic task that `stop` ends, and whose passes `/ready` reports."""
        task = PeriodicTask(name, work, self.clock, interval_s=interval_s)
        self._tasks.append(task)
        task.start()
        self._stack.push_async_callback(task.close)

    async def _run_retention(self) -> str | None:
        problem = await retention.enforce_retention(self.broker)
        await unclaimed_logs.forget_deletions(self._data.path / "log", self._catalog)
        await self._capture.log_warnings()
        return problem

    async def _reload_certificate(self) -> str | None:
        certificate = self._certificate
        loaded = certificate.validity
        problem = await certificate.reload()
        has_changed = certificate.validity is not loaded
        if has_changed and self._portal is not None and not self.settings.is_loopback:
            # The portal's process must load the files too; its sockets stay open meanwhile.
            await self._portal.stop()
            self._portal.start()
        return problem

    def _ended(self) -> str | None:
        """For `/health`: None, or why only a restart helps."""
        if self._logs.health().is_alive or not self._open:
            return None
        return "The committer has ended: no event can be stored until the service is restarted."

    async def _readiness(self) -> readiness.Readiness:
        captures = await self._capture.statuses()
        findings = readiness.run_checks(
            self.settings.data,
            now_ms=self.clock.now_ms(),
            certificate=self._certificate.validity,
            unclaimed=[f"{log.directory} (of {log.owner})" for log in self._unclaimed],
        )
        return readiness.summarize(
            findings,
            is_open=self._open,
            log_problem=self._ended() or await readiness.find_log_problem(self.broker),
            portal=portal_process.check_portal(self._portal),
            capture=self._capture.check(captures),
            passes=[
                readiness.committer_report(self._logs.health(), self.clock),
                *(task.report() for task in self._tasks),
            ],
            warnings=[
                # Damaged ranges of the log: their events cannot be read, all others can.
                *self._logs.damage,
                *self._metering.notes,
                *self._capture.warnings(captures),
                *([self._sockets.note] if self._sockets and self._sockets.note else []),
            ],
        )
