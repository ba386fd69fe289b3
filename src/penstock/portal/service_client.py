"""Calls of the service for pages, in threads; equal reads are shared.

Reads that every user may see are shared for `TTL_MS`, so that the number of open tabs does not
matter. Changes are made with the name and role of the user.
"""

from __future__ import annotations

import asyncio
import logging
import queue
from collections import OrderedDict
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from penstock.io.http_client import HttpClient
from penstock.io.threads import StartedThreads
from penstock.management.client import ManagementClient
from penstock.management.resources import ConsumerGroupResource, EventHubResource, NamespaceResource
from penstock.model.clock import Clock
from penstock.model.errors import InternalError, NotFound, PenstockError, ServerBusy
from penstock.portal.sessions import PortalSession
from penstock.portal.settings import PortalSettings
from penstock.portal.users import PortalRole

log = logging.getLogger("penstock.portal")

T = TypeVar("T")
TTL_MS = 1_900  # tabs ask every two seconds
_THREADS = 4
_CHECKS_MAX = 4  # sign-ins that the service is asked about at a time: one at work, three waiting
_NOTES_MAX = 64  # sign-ins on their way into the audit log
_KEPT_MAX = 512
_TIMEOUT_S = 15.0
_PORTAL = "portal"


class ServiceHealth(msgspec.Struct, frozen=True):
    """The response of `/ready`, and how long it took."""

    status: str
    checks: dict[str, str]
    warnings: list[str] = []
    took_ms: int = 0


class PortalServiceClient:
    """Use it on the event loop, and close it with `close`. Methods raise PenstockError."""

    def __init__(self, settings: PortalSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._clients: queue.SimpleQueue[ManagementClient] = queue.SimpleQueue()
        for _ in range(_THREADS):
            self._clients.put(self._client())
        self._threads = StartedThreads(_THREADS, "portal-ask")
        # Visitors who are not signed in have a thread of their own: they cannot delay a page.
        self._sign_in_client = self._client()
        self._sign_in_thread = StartedThreads(1, "portal-sign-in")
        self._checks = 0
        self._notes: set[asyncio.Task[None]] = set()
        self._kept: OrderedDict[Hashable, tuple[int, asyncio.Task[Any]]] = OrderedDict()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._sign_in_thread.shutdown(wait=True, cancel_futures=True)
        self._sign_in_client.close()
        while not self._clients.empty():
            self._clients.get_nowait().close()

    async def act(self, session: PortalSession, work: Callable[[ManagementClient], T]) -> T:
        """Make a change as the user. All shared reads are discarded."""
        try:
            return await self._run(work, session.user, session.role)
        finally:
            self._kept.clear()

    async def ask(self, session: PortalSession, work: Callable[[ManagementClient], T]) -> T:
        """A read that needs a role or is recorded; it is not shared."""
        return await self._run(work, session.user, session.role)

    async def get_shared(
        self, key: Hashable, work: Callable[[ManagementClient], T], *, ttl_ms: int = TTL_MS
    ) -> T:
        """A read that every user may see, shared for `ttl_ms`."""
        now_ms = self._clock.monotonic_ms()
        known = self._kept.get(key)
        if known is None or known[0] <= now_ms:
            task = asyncio.create_task(self._run(work, _PORTAL, PortalRole.VIEWER))
            known = (now_ms + ttl_ms, task)
            self._kept[key] = known
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        try:
            # Shielded: a request that is canceled must not cancel the read of the others.
            found: T = await asyncio.shield(known[1])
        except Exception:
            if self._kept.get(key) is known:
                del self._kept[key]
            raise
        return found

    async def namespaces(self) -> list[NamespaceResource]:
        return await self.get_shared("namespaces", lambda client: client.namespaces(), ttl_ms=5_000)

    async def hubs(self, namespace: str) -> list[EventHubResource]:
        return await self.get_shared(
            ("hubs", namespace), lambda client: client.hubs(namespace), ttl_ms=5_000
        )

    async def partitions(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return await self.get_shared(
            ("partitions", namespace, hub), lambda client: client.partitions(namespace, hub)
        )

    async def groups(self, namespace: str, hub: str) -> list[ConsumerGroupResource]:
        return await self.get_shared(
            ("groups", namespace, hub), lambda client: client.groups(namespace, hub), ttl_ms=5_000
        )

    async def lag(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return await self.get_shared(
            ("lag", namespace, hub), lambda client: client.lag(namespace, hub)
        )

    async def hub(self, namespace: str, name: str) -> EventHubResource:
        for _ in range(2):
            for hub in await self.hubs(namespace):
                if hub.name.casefold() == name.casefold():
                    return hub
            # It may have been created just now: read the list again.
            self.forget(("hubs", namespace))
        raise NotFound(f"There is no event hub '{name}' in the namespace '{namespace}'.")

    def forget(self, key: Hashable) -> None:
        self._kept.pop(key, None)

    async def root_connection_string(self, namespace: str) -> str:
        """For reading and sending events in a visitor's place; recorded as the portal's look."""
        keys = await self._run(
            lambda client: client.keys(namespace, None, "RootManageSharedAccessKey"),
            _PORTAL,
            PortalRole.ADMIN,
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
        note = asyncio.create_task(self._note(session, address, refused_name))
        self._notes.add(note)
        note.add_done_callback(self._notes.discard)

    async def _note(
        self, session: PortalSession | None, address: str, refused_name: str | None
    ) -> None:
        user, role = (
            (_PORTAL, PortalRole.ADMIN) if session is None else (session.user, session.role)
        )

        def work() -> None:
            client = self._sign_in_client
            client.on_behalf_of = _on_behalf_of(user, role)
            client.note_sign_in(address, refused_name=refused_name)

        try:
            await asyncio.get_running_loop().run_in_executor(self._sign_in_thread, work)
        except PenstockError as error:
            log.warning("sign-in not in the audit log: from=%s reason=%s", address, error)

    async def health(self) -> ServiceHealth:
        return await self.get_shared("health", lambda client: self._ready())

    async def token_holder(self, token: str) -> tuple[str, list[str]] | None:
        """Subject and roles of an admin token; None for one that is not valid. Raises ServerBusy
        when too many are being checked. The service is asked in the portal's own name: a wrong
        token is no failed authentication of the portal's address."""
        if self._checks >= _CHECKS_MAX:
            raise ServerBusy("Too many people are signing in: try again in a moment.")

        def check() -> tuple[str, list[str]] | None:
            self._sign_in_client.on_behalf_of = None
            return self._sign_in_client.token_holder(token)

        self._checks += 1
        try:
            return await asyncio.get_running_loop().run_in_executor(self._sign_in_thread, check)
        finally:
            self._checks -= 1

    async def _run(self, work: Callable[[ManagementClient], T], user: str, role: PortalRole) -> T:
        def run() -> T:
            client = self._clients.get(timeout=_TIMEOUT_S)
            try:
                client.on_behalf_of = _on_behalf_of(user, role)
                return work(client)
            finally:
                self._clients.put(client)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _ready(self) -> ServiceHealth:
        """`/ready` needs no token, and has a body with status 503, too."""
        settings = self._settings
        with HttpClient(
            settings.admin_url, ca_file=settings.ca_file, timeout_s=_TIMEOUT_S
        ) as client:
            began_ms = self._clock.monotonic_ms()
            try:
                body = client.request("GET", "/ready").body
                found = msgspec.json.decode(body, type=ServiceHealth)
            except (OSError, msgspec.MsgspecError) as error:
                raise InternalError(f"The service cannot be reached: {error}.") from None
        took_ms = self._clock.monotonic_ms() - began_ms
        return msgspec.structs.replace(found, took_ms=took_ms)

    def _client(self) -> ManagementClient:
        settings = self._settings
        return ManagementClient(
            settings.admin_url,
            Path(settings.token_file),
            ca_file=settings.ca_file,
            timeout_s=_TIMEOUT_S,
        )


def _on_behalf_of(user: str, role: PortalRole) -> str:
    return f"{role.name.lower()} {quote(user, safe='')}"
