"""Calls of the service for pages, in threads; equal reads are shared.

Reads that every user may see are shared for `TTL_MS` or longer, so that the number of open tabs
does not matter. Changes are made with the name and role of the user.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec

from penstock.io.http_client import HttpClient
from penstock.io.threads import StartedThreads
from penstock.management.client import ManagementClient
from penstock.management.resources import EventHubResource, NamespaceResource
from penstock.model.clock import Clock
from penstock.model.errors import InternalError, PenstockError, ServerBusy
from penstock.portal.sessions import PortalSession
from penstock.portal.settings import PortalSettings

log = logging.getLogger("penstock.portal")

P = ParamSpec("P")
T = TypeVar("T")
Resource = TypeVar("Resource", EventHubResource, NamespaceResource)
TTL_MS = 1_900  # tabs ask every two seconds
_TTLS_MS = {  # of reads by the name of their method
    **dict.fromkeys(("namespaces", "hubs", "groups", "_read_history"), 5_000),
    **dict.fromkeys(("grants", "capture_destinations", "usage"), 10_000),
}
_THREADS = 4
_CHECKS_MAX = 4  # sign-ins that the service is asked about at a time: one at work, three waiting
_NOTES_MAX = 64  # sign-ins on their way into the audit log
_SHARED_MAX = 512
_TIMEOUT_S = 15.0
_POINTS = 180  # of a chart
_AS_VIEWER, _AS_ADMIN = "viewer portal", "admin portal"  # `ManagementClient.on_behalf_of`


class ServiceHealth(msgspec.Struct, frozen=True):
    """The response of `/ready`, and how long it took."""

    status: str
    checks: dict[str, str]
    warnings: list[str] = []
    took_ms: int = 0


class _ClientThreads:
    """Threads that call the service, with a client for each of them."""

    def __init__(self, settings: PortalSettings, name: str, count: int) -> None:
        self._threads = StartedThreads(count, name)
        self._clients: queue.SimpleQueue[ManagementClient] = queue.SimpleQueue()
        url, token = settings.admin_url, Path(settings.token_file)
        for _ in range(count):
            client = ManagementClient(url, token, ca_file=settings.ca_file, timeout_s=_TIMEOUT_S)
            self._clients.put(client)

    async def run(self, on_behalf_of: str | None, work: Callable[[ManagementClient], T]) -> T:
        def run() -> T:
            client = self._clients.get_nowait()
            try:
                client.on_behalf_of = on_behalf_of
                return work(client)
            finally:
                self._clients.put(client)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._clients.empty():
            self._clients.get_nowait().close()


class PortalServiceClient:
    """Use it on the event loop, and close it with `close`. Methods raise PenstockError."""

    def __init__(self, settings: PortalSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._threads = _ClientThreads(settings, "portal-ask", _THREADS)
        # Visitors who are not signed in have a thread of their own: they cannot delay a page.
        self._sign_in_thread = _ClientThreads(settings, "portal-sign-in", 1)
        self._checks = asyncio.Semaphore(_CHECKS_MAX)
        self._notes: set[asyncio.Task[None]] = set()
        # Reads by method and arguments: when they expire, and their results.
        self._shared: OrderedDict[Hashable, tuple[int, asyncio.Task[Any]]] = OrderedDict()

    def close(self) -> None:
        self._threads.close()
        self._sign_in_thread.close()

    async def act(self, session: PortalSession, work: Callable[[ManagementClient], T]) -> T:
        """Make a change, or a read that needs a role or is recorded, as the user. All shared reads
        are discarded."""
        try:
            return await self._threads.run(session.on_behalf_of, work)
        finally:
            self._shared.clear()

    async def read(
        self,
        method: Callable[Concatenate[ManagementClient, P], T],
        *args: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call a method that reads what every user may see. The result is shared."""
        now_ms = self._clock.monotonic_ms()
        key = (method, args, tuple(options.items()))
        shared = self._shared.get(key)
        if shared is None or shared[0] <= now_ms:
            call = self._threads.run(_AS_VIEWER, lambda client: method(client, *args, **options))
            ttl_ms = _TTLS_MS.get(method.__name__, TTL_MS)
            shared = self._shared[key] = (now_ms + ttl_ms, asyncio.create_task(call))
            self._shared.move_to_end(key)
            while len(self._shared) > _SHARED_MAX:
                self._shared.popitem(last=False)
        try:
            # Shielded: a request that is canceled must not cancel the read of the others.
            result: T = await asyncio.shield(shared[1])
        except Exception:
            if self._shared.get(key) is shared:
                del self._shared[key]
            raise
        return result

    async def find(
        self,
        name: str,
        method: Callable[Concatenate[ManagementClient, P], list[Resource]],
        *args: P.args,
        **options: P.kwargs,
    ) -> Resource | None:
        """The resource of this name, in any case, in the list that the method reads."""
        for _ in range(2):
            for resource in await self.read(method, *args, **options):
                if resource.name.casefold() == name.casefold():
                    return resource
            # It may have been created just now: read the list again.
            self._shared.pop((method, args, tuple(options.items())), None)
        return None

    async def history(
        self, namespace: str, hub: str | None, names: tuple[str, ...], span_ms: int
    ) -> dict[str, Any]:
        """Metrics of the last `span_ms`, in steps of at least ten seconds; all metrics if `names`
        is empty."""
        return await self.read(self._read_history, namespace, hub, names, span_ms)

    def _read_history(
        self,
        client: ManagementClient,
        namespace: str,
        hub: str | None,
        names: tuple[str, ...],
        span_ms: int,
    ) -> dict[str, Any]:
        now_ms = self._clock.now_ms()
        return client.metric_history(
            namespace, hub, names=names, since_ms=now_ms - span_ms, until_ms=now_ms, points=_POINTS
        )

    async def health(self) -> ServiceHealth:
        return await self.read(self._read_health)

    def _read_health(self, _: ManagementClient) -> ServiceHealth:
        """`/ready` needs no token, and has a body with status 503, too."""
        settings, began_ms = self._settings, self._clock.monotonic_ms()
        try:
            with HttpClient(
                settings.admin_url, ca_file=settings.ca_file, timeout_s=_TIMEOUT_S
            ) as client:
                body = client.request("GET", "/ready").body
            health = msgspec.json.decode(body, type=ServiceHealth)
        except (OSError, msgspec.MsgspecError) as error:
            raise InternalError(f"The service cannot be reached: {error}.") from None
        return msgspec.structs.replace(health, took_ms=self._clock.monotonic_ms() - began_ms)

    async def root_connection_string(self, namespace: str) -> str:
        """For reading and sending events in a visitor's place; recorded as the portal's look."""
        keys = await self._threads.run(
            _AS_ADMIN, lambda client: client.keys(namespace, None, "RootManageSharedAccessKey")
        )
        return keys.primary_connection_string

    def note_sign_in(
        self, session: PortalSession | None, address: str, refused_name: str | None
    ) -> None:
        """Into the audit log, without waiting for it. Logged when the service does not take it, or
        when too many are on their way."""
        if len(self._notes) >= _NOTES_MAX:
            log.warning("sign-in not in the audit log: from=%s reason=too many at a time", address)
            return
        on_behalf_of = _AS_ADMIN if session is None else session.on_behalf_of
        note = asyncio.create_task(self._note_sign_in(on_behalf_of, address, refused_name))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _note_sign_in(
        self, on_behalf_of: str, address: str, refused_name: str | None
    ) -> None:
        try:
            await self._sign_in_thread.run(
                on_behalf_of, lambda client: client.note_sign_in(address, refused_name=refused_name)
            )
        except PenstockError as error:
            log.warning("sign-in not in the audit log: from=%s reason=%s", address, error)

    async def token_holder(self, token: str) -> tuple[str, list[str]] | None:
        """Subject and roles of an admin token; None for one that is not valid. Raises ServerBusy
        when too many are being checked. The service is asked in the portal's own name: a wrong
        token is no failed authentication of the portal's address."""
        if self._checks.locked():
            raise ServerBusy("Too many people are signing in: try again in a moment.")
        async with self._checks:
            return await self._sign_in_thread.run(None, lambda client: client.token_holder(token))
