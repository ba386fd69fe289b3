"""The service, as pages ask for it: in threads, once for everybody who asks the same.

However many tabs are open, a number is asked for once every other second: reads that everybody may
see are shared for `TTL_MS`. What somebody does is done in their name and with their role.
"""

from __future__ import annotations

import asyncio
import http.client
import queue
import ssl
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from penstock.management.client import GroupInfo, HubInfo, ManagementClient, NamespaceInfo
from penstock.model.clock import Clock
from penstock.model.errors import InternalError, NotFound
from penstock.portal.sessions import Session
from penstock.portal.settings import PortalSettings
from penstock.portal.users import Role

T = TypeVar("T")
TTL_MS = 1_900  # tabs ask every two seconds
_THREADS = 4
_KEPT_MAX = 512
_TIMEOUT_S = 15.0
_PORTAL = "portal"
_ANSWER_BYTES_MAX = 1024 * 1024


class ServiceHealth(msgspec.Struct, frozen=True):
    """What `/ready` says, and how long it took to say so."""

    status: str
    checks: dict[str, str]
    warnings: list[str] = []
    took_ms: int = 0


class Backend:
    """Closed with `close`. Its methods raise penstock's errors."""

    def __init__(self, settings: PortalSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._clients: queue.SimpleQueue[ManagementClient] = queue.SimpleQueue()
        for _ in range(_THREADS):
            self._clients.put(self._client(settings.admin_token))
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="portal-ask")
        self._kept: OrderedDict[Hashable, tuple[int, asyncio.Task[Any]]] = OrderedDict()

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        while not self._clients.empty():
            self._clients.get_nowait().close()

    async def act(self, session: Session, work: Callable[[ManagementClient], T]) -> T:
        """In the visitor's name. What was known before is asked for again."""
        try:
            return await self._run(work, session.user, session.role)
        finally:
            self._kept.clear()

    async def ask(self, session: Session, work: Callable[[ManagementClient], T]) -> T:
        """A look that only some may take, or that is recorded: never shared."""
        return await self._run(work, session.user, session.role)

    async def shared(
        self, key: Hashable, work: Callable[[ManagementClient], T], *, ttl_ms: int = TTL_MS
    ) -> T:
        """What every visitor may see."""
        now_ms = self._clock.monotonic_ms()
        known = self._kept.get(key)
        if known is None or known[0] <= now_ms:
            task = asyncio.create_task(self._run(work, _PORTAL, Role.VIEWER))
            known = (now_ms + ttl_ms, task)
            self._kept[key] = known
            self._kept.move_to_end(key)
            while len(self._kept) > _KEPT_MAX:
                self._kept.popitem(last=False)
        try:
            # Shielded: a visitor who leaves does not take the answer from the others.
            found: T = await asyncio.shield(known[1])
        except Exception:
            if self._kept.get(key) is known:
                del self._kept[key]
            raise
        return found

    async def namespaces(self) -> list[NamespaceInfo]:
        return await self.shared("namespaces", lambda client: client.namespaces(), ttl_ms=5_000)

    async def hubs(self, namespace: str) -> list[HubInfo]:
        return await self.shared(
            ("hubs", namespace), lambda client: client.hubs(namespace), ttl_ms=5_000
        )

    async def partitions(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return await self.shared(
            ("partitions", namespace, hub), lambda client: client.partitions(namespace, hub)
        )

    async def groups(self, namespace: str, hub: str) -> list[GroupInfo]:
        return await self.shared(
            ("groups", namespace, hub), lambda client: client.groups(namespace, hub), ttl_ms=5_000
        )

    async def lag(self, namespace: str, hub: str) -> list[dict[str, Any]]:
        return await self.shared(("lag", namespace, hub), lambda client: client.lag(namespace, hub))

    async def hub(self, namespace: str, name: str) -> HubInfo:
        for _ in range(2):
            for hub in await self.hubs(namespace):
                if hub.name.casefold() == name.casefold():
                    return hub
            # Somebody else may have made it this moment: what is not there is asked for again.
            self.forget(("hubs", namespace))
        raise NotFound(f"There is no event hub '{name}' in the namespace '{namespace}'.")

    def forget(self, key: Hashable) -> None:
        self._kept.pop(key, None)

    async def root_connection_string(self, namespace: str) -> str:
        """For reading and sending events in a visitor's place; recorded as the portal's look."""
        keys = await self._run(
            lambda client: client.keys(namespace, None, "RootManageSharedAccessKey"),
            _PORTAL,
            Role.ADMIN,
        )
        return keys.primary_connection_string

    async def note_sign_in(
        self, session: Session | None, address: str, refused_name: str | None
    ) -> None:
        user, role = (_PORTAL, Role.ADMIN) if session is None else (session.user, session.role)
        await self._run(
            lambda client: client.note_sign_in(address, refused_name=refused_name), user, role
        )

    async def health(self) -> ServiceHealth:
        return await self.shared("health", lambda client: self._ready())

    async def check_token(self, token: str) -> None:
        """Unauthorized and its like when the service does not know it."""

        def check() -> None:
            with self._client(token) as client:
                client.namespaces()

        await asyncio.get_running_loop().run_in_executor(self._threads, check)

    async def _run(self, work: Callable[[ManagementClient], T], user: str, role: Role) -> T:
        def run() -> T:
            client = self._clients.get(timeout=_TIMEOUT_S)
            try:
                client.on_behalf_of = f"{role.name.lower()} {quote(user, safe='')}"
                return work(client)
            finally:
                self._clients.put(client)

        return await asyncio.get_running_loop().run_in_executor(self._threads, run)

    def _ready(self) -> ServiceHealth:
        """It answers without a token, and with 503 too."""
        parts = urlsplit(self._settings.admin_url)
        assert parts.hostname is not None
        connection: http.client.HTTPConnection
        if parts.scheme == "https":
            tls = ssl.create_default_context(cafile=self._settings.ca_file)
            connection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=_TIMEOUT_S, context=tls
            )
        else:
            connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=_TIMEOUT_S)
        began_ms = self._clock.monotonic_ms()
        try:
            connection.request("GET", "/ready")
            body = connection.getresponse().read(_ANSWER_BYTES_MAX)
            found = msgspec.json.decode(body, type=ServiceHealth)
        except (OSError, http.client.HTTPException, msgspec.MsgspecError) as error:
            raise InternalError(f"The service cannot be reached: {error}.") from None
        finally:
            connection.close()
        took_ms = self._clock.monotonic_ms() - began_ms
        return msgspec.structs.replace(found, took_ms=took_ms)

    def _client(self, token: str) -> ManagementClient:
        settings = self._settings
        return ManagementClient(
            settings.admin_url, token, ca_file=settings.ca_file, timeout_s=_TIMEOUT_S
        )
