"""`broker()`: a broker of its own for a test, in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Callable, Coroutine, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from penstock.io.event_loop import new_event_loop
from penstock.model import limits, names
from penstock.model.clock import Clock, ManualClock, SystemClock
from penstock.testing.fault_board import WAIT_S, FaultBoard
from penstock.testing.faults import Faults
from penstock.testing.published_events import PublishedEvent
from penstock.testing.wiring import BrokerOptions, InProcessService

T = TypeVar("T")

_HOUR = timedelta(hours=1)
_DEADLINE_S = 60.0  # for the broker's own answers; none takes a second


def broker(
    *,
    hubs: Sequence[str] | Mapping[str, int] = ("events",),
    partitions: int = limits.PARTITION_COUNT_DEFAULT,
    groups: Sequence[str] = (),
    throughput_units: int | None = None,
    retention: timedelta = timedelta(hours=limits.RETENTION_HOURS_DEFAULT),
    clock: Clock | None = None,
    data: Path | str | None = None,
    tls: bool = False,
    port: int = 0,
    namespace: str = "penstock",
) -> InProcessBroker:
    """A broker for a test: `with broker() as it:` or `async with broker() as it:`.

    `hubs` are names, or names with their partition counts; `partitions` is for those without one;
    `groups` are made in each hub beside `$Default`. Units are enforced if `throughput_units` says
    how many. Events are kept in memory, or durably below `data`, which a later broker finds again.
    With `tls`, `connection_string` is one for TLS; without, TLS can be had all the same. `port` is
    that of plain TCP: 0 is any free one.
    """
    counts = dict(hubs) if isinstance(hubs, Mapping) else dict.fromkeys(_names(hubs), partitions)
    hours, rest = divmod(retention, _HOUR)
    if rest:
        raise ValueError(f"retention is {retention}: whole hours are meant.")
    return InProcessBroker(
        BrokerOptions(
            namespace=names.namespace_name(namespace),
            hubs=counts,
            groups=tuple(_names(groups)),
            throughput_units=throughput_units,
            retention_hours=hours,
            clock=clock or SystemClock(),
            data=None if data is None else Path(data),
            port=port,
        ),
        tls=tls,
    )


class InProcessBroker:
    """Made by `broker()`. Its methods may be called by any thread, also inside an event loop: they
    answer within milliseconds, but for those that wait (and `wait_for` has an async twin)."""

    def __init__(self, options: BrokerOptions, *, tls: bool) -> None:
        self._options = options
        self._is_tls = tls
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._service: InProcessService | None = None
        self._stopping: asyncio.Event | None = None
        self._is_to_stop = False
        self._stopped: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._board = FaultBoard(self._run)
        self.faults = Faults(self._board)

    def __repr__(self) -> str:  # connection strings hold keys
        where = self._service.amqp if self._service is not None else "not running"
        return f"<penstock.testing.broker {where}>"

    # --- from start to stop ---------------------------------------------------------------------

    def start(self) -> InProcessBroker:
        """Returns when it can be connected to. Once for each `broker()`."""
        started = self._launch()
        try:
            started.result(_DEADLINE_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Returns when nothing of it is left: no thread, no socket, no file (but below `data`).
        Clients that are still connected are told so. Harmless when done before."""
        self._ask_to_stop()
        if self._thread is not None:
            self._thread.join(_DEADLINE_S)

    __enter__ = start

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    async def __aenter__(self) -> InProcessBroker:
        started = self._launch()
        try:
            await asyncio.shield(asyncio.wrap_future(started))
        except BaseException:
            await self._stop_async()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stop_async()

    # --- how to reach it ------------------------------------------------------------------------

    @property
    def namespace(self) -> str:
        return self._options.namespace

    @property
    def hubs(self) -> list[str]:
        service = self._require_service()
        return self._run(lambda: [hub.name for hub in service.catalog.hubs(self.namespace)])

    @property
    def amqp(self) -> str:
        """host:port of plain TCP."""
        return self._require_service().amqp

    @property
    def amqps(self) -> str:
        """host:port of TLS; opened when this is first asked for. The Python SDK takes no port from
        a TLS connection string: give it `custom_endpoint_address=f"sb://{broker.amqps}"`."""
        return self._await(self._require_service().amqps())

    @property
    def connection_string(self) -> str:
        """For plain TCP, which the SDKs take from `UseDevelopmentEmulator=true`; with `tls=True`
        the same as `tls_connection_string`."""
        return self.tls_connection_string if self._is_tls else self.emulator_connection_string

    @property
    def emulator_connection_string(self) -> str:
        service = self._require_service()
        return f"Endpoint=sb://{service.amqp};{service.key};UseDevelopmentEmulator=true;"

    @property
    def tls_connection_string(self) -> str:
        """For TLS, whose port is opened when this is first asked for; trust `ca_file`."""
        return f"Endpoint=sb://{self.amqps}/;{self._require_service().key}"

    @property
    def https_url(self) -> str:
        """Of REST publishing, AMQP over WebSocket and checkpoints; opened when first asked for."""
        return f"https://{self._await(self._require_service().https())}"

    @property
    def ca_file(self) -> str:
        """What TLS clients verify the broker with: a development certificate that the process
        makes once and removes at its end."""
        return str(self._run(self._require_service().certificates).ca_file)

    # --- looking inside -------------------------------------------------------------------------

    def published(self, hub: str = "events", partition: int | None = None) -> list[PublishedEvent]:
        """What the hub holds now, by partition and in its order there."""
        service = self._require_service()
        return self._run(lambda: service.published(hub, partition))

    def wait_for(
        self,
        hub: str = "events",
        count: int = 1,
        *,
        partition: int | None = None,
        timeout_s: float = WAIT_S,
    ) -> list[PublishedEvent]:
        """`published`, once it holds so many; else TimeoutError. This blocks: where the events
        come from the same event loop, use `wait_for_async`."""
        work = self._require_service().wait_for(hub, count, partition, timeout_s)
        return self._submit(work).result(timeout_s + _DEADLINE_S)

    async def wait_for_async(
        self,
        hub: str = "events",
        count: int = 1,
        *,
        partition: int | None = None,
        timeout_s: float = WAIT_S,
    ) -> list[PublishedEvent]:
        work = self._require_service().wait_for(hub, count, partition, timeout_s)
        return await asyncio.wrap_future(self._submit(work))

    # --- changing it ----------------------------------------------------------------------------

    def create_hub(
        self,
        name: str,
        *,
        partitions: int = limits.PARTITION_COUNT_DEFAULT,
        groups: Sequence[str] = (),
    ) -> None:
        service = self._require_service()
        self._run(lambda: service.create_hub(name, partitions, _names(groups)))

    def delete_hub(self, name: str) -> None:
        """Its links end with `amqp:not-found`."""
        service = self._require_service()
        self._run(lambda: service.catalog.delete_hub(self.namespace, name))

    def advance(self, time: timedelta) -> None:
        """Turn the ManualClock that was given: units come back, tokens run out, events grow old."""
        service, clock = self._require_service(), self._options.clock
        if not isinstance(clock, ManualClock):
            raise TypeError("advance() needs broker(clock=ManualClock()).")

        def turn() -> None:
            clock.advance(time // timedelta(milliseconds=1))
            service.broker.enforce_retention()
            service.rejudge()

        self._run(turn)

    # --- the broker's thread --------------------------------------------------------------------

    def _launch(self) -> concurrent.futures.Future[None]:
        if self._thread is not None:
            raise RuntimeError("This broker was started before: call broker() for another one.")
        started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._thread = threading.Thread(
            target=self._live, args=(started,), name="penstock-broker", daemon=True
        )
        self._thread.start()
        return started

    def _live(self, started: concurrent.futures.Future[None]) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._serve(started))
        finally:
            self._stopped.set_result(None)

    async def _serve(self, started: concurrent.futures.Future[None]) -> None:
        self._loop, self._stopping = asyncio.get_running_loop(), asyncio.Event()
        if self._is_to_stop:  # asked before there was anybody to hear it
            self._stopping.set()
        try:
            service = InProcessService(self._options, self._board)
            await service.start()
        except BaseException as error:  # noqa: BLE001 - whoever waits is told, whatever it is
            started.set_exception(error)
            return
        self.faults.watch(service.door, service.rejudge)
        self._service = service
        started.set_result(None)
        await self._stopping.wait()
        self._service = None
        await service.stop()

    def _ask_to_stop(self) -> None:
        self._is_to_stop = True
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(stopping.set)
            except RuntimeError:  # closed just now: somebody else has asked
                return

    async def _stop_async(self) -> None:
        """The caller's loop goes on meanwhile: clients that run on it can say goodbye."""
        self._ask_to_stop()
        if self._thread is not None:
            await asyncio.shield(asyncio.wrap_future(self._stopped))
            self._thread.join(_DEADLINE_S)  # it has nothing left to do

    def _require_service(self) -> InProcessService:
        if self._service is None:
            raise RuntimeError("The broker is not running: use it inside its `with` block.")
        return self._service

    def _run(self, work: Callable[[], T]) -> T:
        async def run() -> T:
            return work()

        return self._await(run())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return self._submit(work).result(_DEADLINE_S)

    def _submit(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        loop = self._loop
        if loop is None or self._service is None:
            work.close()
            raise RuntimeError("The broker is not running: use it inside its `with` block.")
        return asyncio.run_coroutine_threadsafe(work, loop)


def _names(given: Sequence[str]) -> Sequence[str]:
    """One name alone is a sequence of letters to Python, and meant as one to everybody else."""
    return [given] if isinstance(given, str) else given
