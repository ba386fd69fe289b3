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
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

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
from penstock.service.child_processes import ChildProcess, ChildProcesses
from penstock.service.config.settings import Settings, destinations_of
from penstock.service.data_directory import DataDirectory
from penstock.service.initial_entities import create_initial_entities, new_hub_id
from penstock.service.lag_report import LagReport, follow_catalog
from penstock.service.listeners import listener_error, open_listener
from penstock.service.metric_history import MetricHistory
from penstock.service.metrics import BrokerCollector, MetricsPage, collect_capture
from penstock.service.periodic_tasks import PassRecord, PeriodicTask, Work
from penstock.service.read_threads import ReadThreads
from penstock.service.runtime_description import RuntimeDescription
from penstock.service.usage_recorder import UsageRecorder

_READ_THREADS = 4
_GRACE_S = 3.0

_log = logging.getLogger("penstock.service")


class Penstock:
    """A service, from `start` to `stop`. Use it on the event loop's thread."""

    # Set by `start`, in this order.
    _logs: EmbeddedLogStore
    broker: Broker
    _metering: UsageRecorder
    _keeper: ServerCheckpointStore
    lag: LagReport
    _certificate: certificates.ReloadableCertificate
    _tokens: ServiceTokens
    _sign_in: portal_process.PortalSignIn
    _capture_registry: CaptureRegistry

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
        self._flushes = FlushLatencies()
        self._answered: Mapping[int, int] = {}  # HTTPS requests, by status
        self._endpoints: ServiceEndpoints | None = None
        self._capture: capture_process.CaptureMonitor | None = None
        self._children = ChildProcesses(self.clock)
        self._portal_note = ""
        self._portal: ChildProcess | None = None  # where it serves TLS with this certificate
        self._unclaimed = unclaimed_logs.UnclaimedLogs()
        self._passes: list[PassRecord] = []  # of every long-lived task
        self._tasks: list[PeriodicTask] = []

    async def start(self) -> RuntimeDescription:
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

    async def _start(self) -> RuntimeDescription:
        settings, loop = self.settings, asyncio.get_running_loop()
        readiness.raise_open_files_limit()
        data = DataDirectory(settings.data)

        def wake(work: Callable[[], None]) -> None:
            loop.call_soon_threadsafe(work)

        def flushed(seconds: float) -> None:
            """On the committer's thread, which must not wait for a terminal: it does not log."""
            self._flushes.observe(seconds)
            if seconds * 1000 >= slow_operations.threshold_ms:
                wake(lambda: slow_operations.warn_if_slow("flush", seconds * 1000))

        slow_operations.threshold_ms = settings.slow_operation_ms
        logs = EmbeddedLogStore(
            data.path / "log", wake=wake, flush=settings.flush, on_flush=flushed
        )
        self._logs = logs
        self._stack.callback(logs.close)  # waits for the last commits
        catalog = SqliteCatalog(data.path / "catalog.sqlite")
        self._stack.callback(catalog.close)
        self._unclaimed = unclaimed_logs.compare_logs(data.path / "log", catalog, logs)
        try:
            root = create_initial_entities(
                catalog,
                settings,
                now_ms=self.clock.now_ms(),
                first_root_key=data.root_key,
                unclaimed=self._unclaimed,
            )
        except (QuotaExceeded, ArgumentOutOfRange) as error:  # beyond a grant or a limit
            raise ConfigurationError(str(error)) from error
        broker = self.broker = Broker(
            catalog,
            logs,
            self.clock,
            producer_ids=lambda: secrets.randbelow(2**62) + 1,
            later=lambda delay_ms, work: loop.call_later(delay_ms / 1000, work),
            run_soon=loop.call_soon,
            new_hub=unclaimed_logs.hubs_with_name_files(data.path / "log"),
        )
        await self._meter(broker, catalog, data, loop)
        # Every log is opened, and so recovered, before the listeners open.
        for hub in catalog.hubs():
            broker.hub(hub.namespace, hub.name)
        reads = ReadThreads(_READ_THREADS, "penstock-read")
        self._stack.callback(reads.shutdown)
        context = AmqpContext(
            broker=broker,
            clock=self.clock,
            authorities=CatalogAuthorities(catalog, shared_hosts=shared_hosts(settings)),
            reads=reads,
            new_id=lambda: uuid.uuid4().hex,
            loop=loop,
            guard=Guard(loop),
            deadlines=self._deadlines or Deadlines(),
            expiry_grace_ms=1000 * settings.auth_expiry_grace_seconds,
        )
        self._keep_checkpoints(context, catalog, data)
        run_retention = partial(self._run_retention, broker, catalog, data.path / "log")
        self._start_task("retention", run_retention, retention.INTERVAL_S)
        facts = await self._open_listeners(context, catalog, data, root)
        self._supervise_capture(catalog, facts)
        data.write_runtime(facts.as_dict())
        self._stack.callback(data.remove_runtime)
        logs.reserve_space()
        return facts

    def _supervise_capture(self, catalog: Catalog, facts: RuntimeDescription) -> None:
        """Start supervision. The process starts when a hub needs it; nothing waits for it."""
        if not self.settings.capture.run:
            return
        probe = capture_process.job_is_polling(
            self._children, self._capture_registry, self.clock.now_ms
        )
        child = capture_process.capture_child(self.settings, facts, probe)
        supervisor = capture_process.CaptureSupervisor(
            self._children, catalog, self._capture_registry, child, self.clock
        )
        self._passes.append(supervisor.record)
        supervisor.start()
        self._stack.push_async_callback(supervisor.close)

    def _keep_checkpoints(
        self, context: AmqpContext, catalog: Catalog, data: DataDirectory
    ) -> None:
        keeper = self._keeper = ServerCheckpointStore(
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
        """Starts before the listeners open; writes the last counts after they are closed."""
        ledger = SqliteUsageLedger(data.path / "catalog.sqlite")
        self._stack.callback(ledger.close)
        metering = self._metering = UsageRecorder(
            broker.accounts,
            catalog,
            ledger,
            clock=self.clock,
            loop=loop,
            process=uuid.uuid4().hex,
        )
        self._passes.append(metering.record)
        await metering.start()
        self._stack.push_async_callback(metering.stop)

    def sign_in_link(self) -> str | None:
        """An address that signs an administrator in to the portal once; None without a portal."""
        with contextlib.suppress(NotFound):
            return self._sign_in.sign_in_link("admin", AdminRole.ADMIN, now_ms=self.clock.now_ms())
        return None

    # --- listeners ------------------------------------------------------------------------------

    async def _open_listeners(
        self, context: AmqpContext, catalog: Catalog, data: DataDirectory, root: AuthorizationRule
    ) -> RuntimeDescription:
        settings, host, loop = self.settings, self.settings.host, context.loop
        certificate = self._prepare_certificate(data)
        tls = certificate.context
        server = AmqpServer(context)
        tokens = self._tokens = ServiceTokens(data, self.clock)
        portal = self._portal_sockets()
        self._sign_in = portal_process.PortalSignIn(
            None if portal is None else portal.url, data, tokens.verify
        )
        administration = self._build_management_context(context, catalog, data, server)
        management = self._management(context, administration, tokens)
        https = HttpServer(
            self._build_public_app(context, catalog, server, management),
            loop,
            guard=context.guard,
        )
        pages = self._administration(context.broker, server, None if portal is None else portal.url)
        checked = management_context.AdministrationChecks(
            ManagementMount(management, pages),
            hosts=HostNames(management_context.own_host_names(settings)),
            namespace_hosts=lambda: [host for each in catalog.namespaces() for host in each.hosts],
            verify=tokens.verify,
            metrics_need_token=not settings.is_loopback,
        )
        admin = HttpServer(checked, loop)
        # Closed in reverse order: AMQP connections close while their WebSockets are still open.
        self._stack.push_async_callback(https.close, grace_s=_GRACE_S)
        self._stack.push_async_callback(server.close, grace_s=_GRACE_S)
        self._stack.push_async_callback(admin.close, grace_s=_GRACE_S)
        self._stack.callback(
            catalog.subscribe(
                lambda change: server.revalidate_grants() if change.affects_links else None
            )
        )
        amqp_port = None
        if settings.amqp_port is not None:
            amqp_port = await open_listener(server, host, settings.amqp_port, "--amqp-port")
        amqps_port = await open_listener(server, host, settings.amqps_port, "--amqps-port", tls)
        https_port = await open_listener(https, host, settings.https_port, "--https-port", tls)
        admin_tls = None if settings.is_loopback else tls
        admin_port = await open_listener(
            admin, host, settings.admin_port, "--admin-port", admin_tls
        )
        facts = RuntimeDescription.of(
            settings,
            root=root,
            amqp_port=amqp_port,
            amqps_port=amqps_port,
            https_port=https_port,
            admin_port=admin_port,
            admin_token=data.admin_token(now_ms=self.clock.now_ms()),
            ca_file=certificate.files.ca_file,
            portal=None if portal is None else portal.url,
        )
        self._endpoints = management_context.endpoints_of(facts, data.admin_tokens().tenant_id)
        self._start_process_tokens(context, data, tokens)
        self._stack.push_async_callback(self._children.close)
        if portal is not None:
            child = portal_process.portal_child(settings, facts, portal, certificate.files, data)
            self._portal = child if not settings.is_loopback else None
            self._children.start(child)
        self._start_task(
            "certificate reload", self._reload_certificate, certificates.RELOAD_INTERVAL_S
        )
        return facts

    def _start_process_tokens(
        self, context: AmqpContext, data: DataDirectory, tokens: ServiceTokens
    ) -> None:
        """Write the tokens of the portal and the capture job, and renew them."""
        settings = self.settings
        needed = {ProcessRole.PORTAL: settings.portal, ProcessRole.CAPTURE: settings.capture.run}
        roles = [role for role in needed if needed[role]]
        process_tokens = ProcessTokens(data.path, tokens, self.clock, context.reads, roles)
        with contextlib.suppress(OSError):  # a full disk: the first pass retries, and reports it
            process_tokens.write()
        self._stack.callback(process_tokens.remove)
        self._start_task("process tokens", process_tokens.renew, RENEW_INTERVAL_S)

    def _prepare_certificate(self, data: DataDirectory) -> certificates.ReloadableCertificate:
        def prepare() -> certificates.Certificates:
            return certificates.prepare_certificates(
                data.path / "tls", self.settings, now_ms=self.clock.now_ms()
            )

        certificate = self._certificate = certificates.ReloadableCertificate(
            prepare, self.clock.now_ms
        )
        finding = readiness.judge_certificate(certificate.validity, now_ms=self.clock.now_ms())
        if finding.state is not readiness.State.OK:
            _log.warning("certificate_check state=%s text=%s", finding.state, finding.text)
        return certificate

    def _build_management_context(
        self, context: AmqpContext, catalog: Catalog, data: DataDirectory, server: AmqpServer
    ) -> ManagementContext:
        history = self._keep_history(context, catalog, data, server)
        registry = self._capture_registry = CaptureRegistry(
            destinations_of(self.settings.capture, data.path)
        )
        self._capture = capture_process.CaptureMonitor(
            catalog,
            registry,
            lambda hub: context.broker.hub(hub.namespace, hub.name).next_sequences(),
            self.clock.now_ms,
        )
        # A second connection to the file: the usage recorder writes with its own, on its thread.
        ledger = SqliteUsageLedger(data.path / "catalog.sqlite")
        self._stack.callback(ledger.close)
        return ManagementContext(
            catalog=catalog,
            broker=context.broker,
            clock=self.clock,
            connections=management_context.GatewayConnections(server, self.clock),
            portal=self._sign_in,
            ledger=ledger,
            measure_lag=self.lag.measure,
            checkpoints=self._keeper,
            read_metrics=history.read,
            jobs=JobRegistry(),
            captures=registry,
            reads=context.reads,
            new_key=management_context.new_key,
            new_hub_id=new_hub_id,
            units_needed=management_context.required_units(context.broker),
            limit_set=self.settings.limits,
            tokens=self._tokens,
        )

    def _keep_history(
        self, context: AmqpContext, catalog: Catalog, data: DataDirectory, server: AmqpServer
    ) -> MetricHistory:
        store = SqliteMetricStore(data.path / "history.sqlite")
        self._stack.callback(store.close)
        history = MetricHistory(
            context.broker,
            catalog,
            self._keeper,
            store,
            connections=partial(management_context.hubs_of_connections, server),
            clock=self.clock,
            loop=context.loop,
        )
        self._passes.append(history.record)
        history.start()
        self._stack.push_async_callback(history.stop)
        return history

    def _management(
        self, context: AmqpContext, administration: ManagementContext, tokens: ServiceTokens
    ) -> ManagementApp:
        def endpoints() -> ServiceEndpoints:
            if self._endpoints is None:
                raise ServerBusy("Penstock is starting; try again in a moment.")
            return self._endpoints

        return ManagementApp(
            administration,
            verify=tokens.verify,
            endpoints=endpoints,
            new_id=context.new_id,
            log_refusal=partial(log_refusal, context.refusal_log, names_entity=False),
        )

    def _build_public_app(
        self,
        context: AmqpContext,
        catalog: Catalog,
        server: AmqpServer,
        management: ManagementApp,
    ) -> PublicApplication:
        """The application of the HTTPS port: publishing, management, and AMQP over WebSocket."""
        websocket = WebSocketEndpoint(server)
        publishing = PublishEndpoint(
            broker=context.broker,
            catalog=catalog,
            clock=self.clock,
            authorities=context.authorities,
            new_id=context.new_id,
            refusal_log=context.refusal_log,
        )
        self._answered = publishing.answered
        checkpoints = CheckpointEndpoint(
            broker=context.broker,
            catalog=catalog,
            keeper=self._keeper,
            clock=self.clock,
            authorities=context.authorities,
            new_id=context.new_id,
            refusal_log=context.refusal_log,
        )
        return PublicApplication(
            publishing=ManagementMount(management, publishing),
            websocket=Starlette(routes=[WebSocketRoute(path, websocket) for path in PATHS]),
            prefixes={CHECKPOINTS: checkpoints},
        )

    def _portal_sockets(self) -> portal_process.PortalSockets | None:
        settings = self.settings
        if not settings.portal:
            return None
        try:
            portal = portal_process.PortalSockets(settings)
        except OSError as error:
            raise listener_error(
                settings.host, settings.portal_port, "--portal-port", error
            ) from error
        self._stack.callback(portal.close)
        self._portal_note = portal.note
        return portal

    def _administration(self, broker: Broker, server: AmqpServer, portal: str | None) -> Starlette:
        """The pages of the administration port beside the management API."""
        collector = BrokerCollector(
            broker,
            lag=self.lag.hub_rows,
            connections=lambda: len(server.connections),
            connections_opened=lambda: server.opened,
            flushes=self._flushes,
            answered=self._answered,
            certificate_expires_ms=lambda: self._certificate.validity.not_after_ms,
        )
        assert self._capture is not None
        metrics = MetricsPage(collector.collect, partial(collect_capture, self._capture))
        health = readiness.health_routes(self._ended, self._readiness)
        routes = [
            *health,
            Route("/metrics", metrics, methods=["GET"]),
            portal_process.front_route(portal),
        ]
        return Starlette(routes=routes)

    # --- watching -------------------------------------------------------------------------------

    def _start_task(self, name: str, work: Work, interval_s: float) -> None:
        """Start a periodic task that `stop` ends, and whose passes `/ready` reports."""
        task = PeriodicTask(name, work, self.clock, interval_s=interval_s)
        self._passes.append(task.record)
        self._tasks.append(task)
        task.start()
        self._stack.push_async_callback(task.close)

    async def _run_retention(self, broker: Broker, catalog: Catalog, log: Path) -> str | None:
        problem = await retention.enforce_retention(broker)
        await unclaimed_logs.forget_deletions(log, catalog)
        if self._capture is not None:
            await self._capture.log_warnings()
        return problem

    async def _reload_certificate(self) -> str | None:
        certificate = self._certificate
        loaded = certificate.validity
        problem = await certificate.reload()
        if certificate.validity is not loaded and self._portal is not None:
            # The portal's process must load the files too; its sockets stay open meanwhile.
            await self._children.stop(self._portal.name)
            self._children.start(self._portal)
        return problem

    def _ended(self) -> str | None:
        """For `/health`: None, or why only a restart helps."""
        if self._logs.health().is_alive or not self._open:
            return None
        return "The committer has ended: no event can be stored until the service is restarted."

    async def _readiness(self) -> readiness.Readiness:
        subject = readiness.Subject(
            data=self.settings.data,
            now_ms=self.clock.now_ms(),
            certificate=self._certificate.validity,
            unclaimed=self._unclaimed.labels(),
            service=await self._service_state(),
        )
        return readiness.summarize(subject, readiness.run_checks(subject))

    async def _service_state(self) -> readiness.ServiceState:
        assert self._capture is not None
        captures = await self._capture.statuses()
        log_problem = self._ended() or await readiness.find_log_problem(self.broker)
        return readiness.ServiceState(
            is_open=self._open,
            log_problem=log_problem,
            portal=portal_process.check_portal(self._children),
            capture=self._capture.check(captures),
            passes=[
                readiness.committer_report(self._logs.health(), self.clock),
                *(record.report() for record in self._passes),
            ],
            warnings=[
                # Damaged ranges of the log: their events cannot be read, all others can.
                *self._logs.damage,
                *self._metering.notes,
                *self._capture.warnings(captures),
                *([self._portal_note] if self._portal_note else []),
            ],
        )
