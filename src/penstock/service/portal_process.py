"""The portal's process: its sockets, its settings, its state.

The service opens the sockets and the portal inherits them: the port is known at once, a port in use
is reported at start, and a connection that comes while the portal restarts waits instead of being
refused.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from penstock.io.tls import unverified_tls_context
from penstock.management.permissions import AdminRole, ProcessRole, Verified, actor_of
from penstock.model.clock import Clock
from penstock.model.errors import AuthFailed, NotFound
from penstock.portal.settings import PortalSettings, hash_token, to_environ
from penstock.portal.signing import issue_link
from penstock.service.admin_tokens import token_file
from penstock.service.certificates import Certificates
from penstock.service.child_processes import ChildProcess, ChildState
from penstock.service.config.settings import PORTAL_PORT, Settings
from penstock.service.data_directory import DataDirectory
from penstock.service.listeners import listener_error, open_sockets
from penstock.service.management_context import own_host_names
from penstock.service.readiness import Finding, State
from penstock.service.runtime_description import RuntimeDescription, public_host

NAME = "portal"
_ANSWER_BYTES_MAX = 1024


class PortalSockets:
    """Listening sockets. Raises ListenerError when the port is in use, unless it is the default:
    then any free port is used, and `note` says so."""

    def __init__(self, settings: Settings) -> None:
        self.note = ""
        host, port = settings.host, settings.portal_port
        try:
            self.sockets = self._open(host, port)
        except OSError as error:
            raise listener_error(host, port, "--portal-port", error) from error
        self.port = int(self.sockets[0].getsockname()[1])
        scheme = "http" if settings.is_loopback else "https"
        self.url = f"{scheme}://{public_host(settings)}:{self.port}"

    def _open(self, host: str, port: int) -> list[socket.socket]:
        try:
            return open_sockets(host, port)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or port != PORTAL_PORT:
                raise
        self.note = (
            f"Port {PORTAL_PORT} is in use by another program: the portal uses another one; "
            "choose it with --portal-port."
        )
        return open_sockets(host, 0)

    def close(self) -> None:
        for listening in self.sockets:
            listening.close()


def portal_child(
    settings: Settings,
    description: RuntimeDescription,
    sockets: PortalSockets,
    certificates: Certificates,
    data: DataDirectory,
    clock: Clock,
) -> ChildProcess:
    is_loopback, users_file = settings.is_loopback, settings.portal_users_file
    portal_settings = PortalSettings(
        admin_url=description.admin,
        token_file=str(token_file(data.path, ProcessRole.PORTAL)),
        admin_token_hash=hash_token(description.admin_token),
        secret=data.portal_secret(),
        revocations_file=str(data.path / "portal.revoked"),
        ca_file=description.ca_file,
        namespace=description.namespace,
        environment=settings.portal_environment or "",
        read_only=settings.portal_read_only,
        users_file=None if users_file is None else str(users_file.absolute()),
        mask=settings.portal_mask or "",
        prices=settings.prices,
        sockets=tuple(each.fileno() for each in sockets.sockets),
        certificate_file=None if is_loopback else str(certificates.certificate_file),
        key_file=None if is_loopback else str(certificates.key_file),
        https_url=description.https,
        trusted_proxies=settings.portal_trusted_proxies,
        hosts=own_host_names(settings),
    )
    # Not the service's own variables, some of which are keys.
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
    return ChildProcess(
        NAME,
        (sys.executable, "-m", "penstock.portal"),
        environ | to_environ(portal_settings),
        clock,
        probe=lambda: _is_alive(sockets, tls=not is_loopback),
        pass_fds=portal_settings.sockets,
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
        return issue_link(self._url, self._secret, user, role, now_ms=now_ms)

    def token_holder(self, token: str) -> Verified | None:
        """None also for the token of a process, with which no person signs in."""
        try:
            subject, roles = self._verify(token)
        except AuthFailed:
            return None
        return None if actor_of(subject, roles).process is not None else (subject, roles)


def check_portal(child: ChildProcess | None) -> Finding:
    if child is None or not child.is_started:
        return Finding(NAME, State.OFF, "not running: switched off")
    status = child.status
    if status.state is ChildState.RUNNING:
        return Finding(NAME, State.OK, "running")
    if status.state is ChildState.STARTING:
        return Finding(NAME, State.PENDING, "starting")
    text = f"ended with {status.last_exit}, starts again (restarts: {status.restarts})"
    return Finding(NAME, State.FAIL, text)


def front_route(portal: str | None) -> Route:
    """Redirects `/` of the administration port to the portal."""

    async def front(request: Request) -> Response:
        if portal is None:
            return PlainTextResponse("Penstock runs here, without its portal.\n")
        return RedirectResponse(portal + "/", status_code=307)

    return Route("/", front)


async def _is_alive(sockets: PortalSockets, *, tls: bool) -> bool:
    """Whether the portal answers. Its certificate is not verified: the sockets are ours."""
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
