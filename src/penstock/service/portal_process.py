"""The portal's process: its sockets, what it is told, how it is.

The sockets are opened here and inherited: the port is known at once, a taken one is a clear
sentence, and a visitor who comes while the portal starts again waits a moment and is not refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import socket
import sys
from collections.abc import Callable, Mapping

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from penstock.io.tls import unverified_tls_context
from penstock.management.permissions import AdminRole, ProcessRole, Verified, actor_of
from penstock.model.errors import AuthFailed, NotFound
from penstock.model.usage import PRICE_FIELDS
from penstock.portal.settings import hash_token
from penstock.portal.sign_in_links import issue_link
from penstock.portal.users import PortalRole as PortalRole
from penstock.service.certificates import Certificates
from penstock.service.child_processes import ChildProcess, ChildProcesses, ChildState
from penstock.service.config.settings import PORTAL_PORT, Settings
from penstock.service.data_directory import DataDirectory
from penstock.service.management_context import own_host_names
from penstock.service.process_tokens import token_file
from penstock.service.readiness import Finding, State
from penstock.service.runtime_description import RuntimeDescription, public_host

NAME = "portal"
_BACKLOG = 128
_ANSWER_BYTES_MAX = 1024


class PortalSockets:
    """Listening before the portal is there. Raises OSError when the port is taken, unless it is
    the one that nobody chose: then any free one is taken, and `note` says so."""

    def __init__(self, settings: Settings) -> None:
        self.note = ""
        try:
            self.sockets = _open_listening_sockets(settings.host, settings.portal_port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or settings.portal_port != PORTAL_PORT:
                raise
            self.sockets = _open_listening_sockets(settings.host, 0)
            self.note = (
                f"Port {PORTAL_PORT} is taken by another program: the portal has another one; "
                "choose it with --portal-port."
            )
        self.port = int(self.sockets[0].getsockname()[1])
        scheme = "http" if settings.is_loopback else "https"
        self.url = f"{scheme}://{public_host(settings)}:{self.port}"

    def close(self) -> None:
        for each in self.sockets:
            each.close()


def _open_listening_sockets(host: str, port: int) -> list[socket.socket]:
    """127.0.0.1 takes ::1 along, as the doors do."""
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(_bind_socket(host, port))
        found = [first]
        if host == "127.0.0.1":
            try:
                found.append(opened.enter_context(_bind_socket("::1", first.getsockname()[1])))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != 0:
                    raise
        opened.pop_all()
        return found


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind((host, port))
        made.listen(_BACKLOG)
        made.setblocking(False)
    except BaseException:
        made.close()
        raise
    return made


def portal_child(
    settings: Settings,
    facts: RuntimeDescription,
    sockets: PortalSockets,
    certificates: Certificates,
    data: DataDirectory,
) -> ChildProcess:
    descriptors = [each.fileno() for each in sockets.sockets]
    told = {
        "PENSTOCK_ADMIN_URL": facts.admin,
        "PENSTOCK_ADMIN_TOKEN_FILE": str(token_file(data.path, ProcessRole.PORTAL)),
        "PENSTOCK_PORTAL_ADMIN_TOKEN_HASH": hash_token(facts.admin_token),
        "PENSTOCK_CA_FILE": facts.ca_file,
        "PENSTOCK_PORTAL_SECRET": data.portal_secret(),
        "PENSTOCK_PORTAL_REVOCATIONS_FILE": str(data.path / "portal.revoked"),
        "PENSTOCK_HTTPS_URL": facts.https,
        "PENSTOCK_PORTAL_SOCKETS": " ".join(str(each) for each in descriptors),
        "PENSTOCK_PORTAL_NAMESPACE": facts.namespace,
        "PENSTOCK_PORTAL_ENVIRONMENT": settings.portal_environment or "",
        "PENSTOCK_PORTAL_READ_ONLY": "1" if settings.portal_read_only else "",
        "PENSTOCK_PORTAL_USERS_FILE": str(settings.portal_users_file.absolute())
        if settings.portal_users_file is not None
        else "",
        "PENSTOCK_PORTAL_MASK": settings.portal_mask or "",
        "PENSTOCK_PORTAL_TRUSTED_PROXIES": str(settings.portal_trusted_proxies),
        "PENSTOCK_PORTAL_HOSTS": " ".join(own_host_names(settings)),
        "PENSTOCK_PORTAL_PRICES": json.dumps(_prices(settings)),
    }
    if not settings.is_loopback:
        told["PENSTOCK_PORTAL_CERTIFICATE_FILE"] = str(certificates.certificate_file)
        told["PENSTOCK_PORTAL_KEY_FILE"] = str(certificates.key_file)
    return ChildProcess(
        NAME,
        (sys.executable, "-m", "penstock.portal"),
        {**_plain_environment(os.environ), **told},
        probe=lambda: _answers(sockets, tls=not settings.is_loopback),
        pass_fds=descriptors,
    )


class PortalSignIn:
    """`management.operations.base.PortalAccess` of this service."""

    def __init__(
        self, url: str | None, data: DataDirectory, verify: Callable[[str], Verified]
    ) -> None:
        self._url = url
        self._secret = data.portal_secret()
        self._verify = verify

    def sign_in_link(self, user: str, role: AdminRole, *, now_ms: int) -> str:
        if self._url is None:
            raise NotFound("The service runs without its portal: start it without --no-portal.")
        return issue_link(self._url, self._secret, user, PortalRole(role), now_ms=now_ms)

    def token_holder(self, token: str) -> Verified | None:
        """None also for the token of a process: no person signs in with it."""
        try:
            subject, roles = self._verify(token)
        except AuthFailed:
            return None
        return None if actor_of(subject, roles).process is not None else (subject, roles)


def check_portal(children: ChildProcesses) -> Finding:
    for status in children.status():
        if status.name == NAME:
            if status.state is ChildState.RUNNING:
                return Finding(NAME, State.OK, "running")
            if status.state is ChildState.STARTING:
                return Finding(NAME, State.PENDING, "starting")
            text = f"ended with {status.last_exit}, starts again (restarts: {status.restarts})"
            return Finding(NAME, State.FAIL, text)
    return Finding(NAME, State.OFF, "not running: switched off")


def front_route(portal: str | None) -> Route:
    """`/` of the administration port leads to the portal."""

    async def front(request: Request) -> Response:
        if portal is None:
            return PlainTextResponse("Penstock runs here, without its portal.\n")
        return RedirectResponse(portal + "/", status_code=307)

    return Route("/", front)


def _plain_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Without our own settings, some of which are keys."""
    return {name: value for name, value in environ.items() if not name.startswith("PENSTOCK_")}


def _prices(settings: Settings) -> dict[str, str]:
    prices = settings.prices
    if prices is None:
        return {}
    return {
        "currency": prices.currency,
        **{name: str(getattr(prices, name)) for name in PRICE_FIELDS},
    }


async def _answers(sockets: PortalSockets, *, tls: bool) -> bool:
    """Whether the portal says that it lives. Its certificate is ours: nothing is to be proven."""
    host = str(sockets.sockets[0].getsockname()[0])
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  # compared
    context = unverified_tls_context() if tls else None
    reader, writer = await asyncio.open_connection(host, sockets.port, ssl=context)
    try:
        writer.write(b"GET /alive HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        await writer.drain()
        answer = await reader.read(_ANSWER_BYTES_MAX)
    finally:
        writer.close()
    return answer.startswith(b"HTTP/1.1 200")
