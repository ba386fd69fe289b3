"""`broker()`: a broker for a test, in this process, on a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from penstock.io.event_loop import EventLoopThread
from penstock.model import limits, names
from penstock.model.clock import Clock, ManualClock, SystemClock
from penstock.testing.faults import WAIT_S, FaultBoard, Faults
from penstock.testing.published_events import PublishedEvent
from penstock.testing.wiring import BrokerOptions, InProcessService

T = TypeVar("T")

_DEADLINE_S = 60.0  # for calls to the broker's thread; none takes a second


class InProcessBroker:
    """A broker for a test: `with broker() as it:` or `async with broker() as it:`.

    Any thread may call its methods, also inside an event loop: they return within milliseconds,
    except `wait_for`, which has an async form.
    """

    def __init__(
        self,
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
    ) -> None:
        """`hubs` are names, or names with their partition counts; `partitions` is for those without
        one; `groups` are created in each hub in addition to `$Default`. Units are enforced if
        `throughput_units` is given. Events are stored in memory, or durably below `data`, where a
        later broker finds them. With `tls`, `connection_string` uses TLS, which is available either
        way. `port` is the port of plain TCP; 0 means any free one.
        """
        hours, remainder = divmod(retention, timedelta(hours=1))
        if remainder:
            raise ValueError(f"retention is {retention}: whole hours are expected.")
        if not isinstance(hubs, Mapping):
            hubs = dict.fromkeys(_names(hubs), partitions)
        self._options = BrokerOptions(
            namespace=names.namespace_name(namespace),
            hubs=dict(hubs),
            groups=tuple(_names(groups)),
            throughput_units=throughput_units,
            retention_hours=hours,
            clock=clock or SystemClock(),
            data=None if data is None else Path(data),
            port=port,
        )
        self._is_tls = tls
        self._thread: EventLoopThread | None = None
        self._service: InProcessService | None = None
        self._board = FaultBoard(lambda work: self._run(lambda _: work()))
        self.faults = Faults(self._board)

    def __repr__(self) -> str:  # connection strings hold keys
        where = self.amqp if self._service is not None else "not running"
        return f"<penstock.testing.broker {where}>"

    def start(self) -> InProcessBroker:
        """Return when clients can connect. May be called once for each `broker()`."""
        started = self._launch()
        try:
            started.result(_DEADLINE_S)
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Return when no thread, no socket and no file (except below `data`) is left. Connections
        of clients are closed. May be called again."""
        if self._thread is not None:
            self._thread.close(_DEADLINE_S)

    __enter__ = start

    def __exit__(self, *_: object) -> None:
        self.stop()

    async def __aenter__(self) -> InProcessBroker:
        started = self._launch()
        try:
            await asyncio.shield(asyncio.wrap_future(started))
        except BaseException:
            await self._stop_async()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stop_async()

    @property
    def namespace(self) -> str:
        return self._options.namespace

    @property
    def hubs(self) -> list[str]:
        return self._run(lambda service: [hub.name for hub in service.catalog.hubs(self.namespace)])

    @property
    def amqp(self) -> str:
        """host:port of plain TCP."""
        return self._require_service().address("amqp")

    @property
    def amqps(self) -> str:
        """host:port of TLS; the port opens on first use. The Python SDK takes no port from a TLS
        connection string: give it `custom_endpoint_address=f"sb://{broker.amqps}"`."""
        return self._await(self._require_service().open_tls("amqps"))

    @property
    def connection_string(self) -> str:
        """For plain TCP, which the SDKs take from `UseDevelopmentEmulator=true`; with `tls=True`
        the same as `tls_connection_string`."""
        return self.tls_connection_string if self._is_tls else self.emulator_connection_string

    @property
    def emulator_connection_string(self) -> str:
        return (
            f"Endpoint=sb://{self.amqp};{self._require_service().key};UseDevelopmentEmulator=true;"
        )

    @property
    def tls_connection_string(self) -> str:
        """For TLS, whose port opens on first use; clients trust `ca_file`."""
        return f"Endpoint=sb://{self.amqps}/;{self._require_service().key}"

    @property
    def https_url(self) -> str:
        """For REST publishing, AMQP over WebSocket and checkpoints; the port opens on first use."""
        address = self._await(self._require_service().open_tls("https"))
        return f"https://{address}"

    @property
    def ca_file(self) -> str:
        """The CA file for TLS clients, of a development certificate that the process creates once
        and removes at its end."""
        return str(self._run(InProcessService.certificates).ca_file)

    def published(self, hub: str = "events", partition: int | None = None) -> list[PublishedEvent]:
        """The events that the hub holds now, by partition and in order."""
        return self._run(lambda service: service.published(hub, partition))

    def wait_for(
        self,
        hub: str = "events",
        count: int = 1,
        *,
        partition: int | None = None,
        timeout_s: float = WAIT_S,
    ) -> list[PublishedEvent]:
        """`published`, once there are `count` events; raises TimeoutError. This blocks: if the
        events come from the same event loop, use `wait_for_async`."""
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

    def create_hub(
        self,
        name: str,
        *,
        partitions: int = limits.PARTITION_COUNT_DEFAULT,
        groups: Sequence[str] = (),
    ) -> None:
        self._run(lambda service: service.create_hub(name, partitions, _names(groups)))

    def delete_hub(self, name: str) -> None:
        """Delete the hub; its links end with `amqp:not-found`."""
        self._run(lambda service: service.catalog.delete_hub(self.namespace, name))

    def advance(self, time: timedelta) -> None:
        """Advance the broker's ManualClock: units refill, tokens expire, events expire."""
        clock = self._options.clock
        if not isinstance(clock, ManualClock):
            raise TypeError("advance() needs broker(clock=ManualClock()).")

        def advance_clock(service: InProcessService) -> None:
            clock.advance(time // timedelta(milliseconds=1))
            service.broker.enforce_retention()
            self._board.recheck_tokens()

        self._run(advance_clock)

    # --- the broker's thread --------------------------------------------------------------------

    def _launch(self) -> Future[None]:
        if self._thread is not None:
            raise RuntimeError("This broker was started before: call broker() for another one.")
        started: Future[None] = Future()
        self._thread = EventLoopThread("penstock-broker", partial(self._serve, started))
        return started

    async def _serve(self, started: Future[None], stopping: asyncio.Event) -> None:
        try:
            service = InProcessService(self._options, self._board)
            await service.start()
        except BaseException as error:  # noqa: BLE001 - passed to the thread that waits
            started.set_exception(error)
            return
        self._service = service
        started.set_result(None)
        await stopping.wait()
        self._service = None
        await service.stop()

    async def _stop_async(self) -> None:
        """The caller's loop keeps running, so that clients on it can close their connections."""
        if self._thread is not None:
            await asyncio.shield(asyncio.wrap_future(self._thread.stop()))
            self._thread.close(_DEADLINE_S)  # it has nothing left to do

    def _require_service(self) -> InProcessService:
        if self._service is None:
            raise RuntimeError("The broker is not running: use it inside its `with` block.")
        return self._service

    def _run(self, work: Callable[[InProcessService], T]) -> T:
        """The result of `work`, called on the broker's thread."""
        service = self._require_service()

        async def run() -> T:
            return work(service)

        return self._await(run())

    def _await(self, work: Coroutine[Any, Any, T]) -> T:
        return self._submit(work).result(_DEADLINE_S)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        assert self._thread is not None  # set before the service
        return self._thread.submit(work)


broker = InProcessBroker


def _names(value: Sequence[str]) -> Sequence[str]:
    """A single name may be given instead of a sequence of names."""
    return [value] if isinstance(value, str) else value
