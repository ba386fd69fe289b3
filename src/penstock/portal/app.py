"""Builds the portal, and runs it on sockets that are already open."""

from __future__ import annotations

import logging
import socket
import ssl
from pathlib import Path

import uvicorn

from penstock.model.clock import Clock, SystemClock
from penstock.portal.address_limits import RequestRate
from penstock.portal.application import PortalApplication
from penstock.portal.event_browser import EventBrowser
from penstock.portal.field_mask import FieldMask
from penstock.portal.page_request import Portal
from penstock.portal.pages import PUBLIC, ROUTES
from penstock.portal.revocations import Revocations
from penstock.portal.server import (
    CONNECTIONS_MAX,
    CONNECTIONS_PER_ADDRESS_MAX,
    ConnectionLimits,
    PortalServer,
)
from penstock.portal.service_client import PortalServiceClient
from penstock.portal.sessions import FailedSignIns, SessionCookies
from penstock.portal.settings import PortalSettings
from penstock.portal.signing import Signer
from penstock.portal.users import PasswordChecks, Users

_KEEP_ALIVE_S = 30
_GRACE_S = 2


def build(
    settings: PortalSettings, clock: Clock | None = None
) -> tuple[PortalApplication, PortalServiceClient]:
    """The application, and the client that must be closed after it."""
    clock = clock or SystemClock()
    backend = PortalServiceClient(settings, clock)
    signer = Signer(settings.secret)
    file = settings.revocations_file
    revocations = Revocations(None if file is None else Path(file), now_ms=clock.now_ms())
    lifetime_ms = settings.session_hours * 3_600_000
    portal = Portal(
        settings=settings,
        backend=backend,
        sessions=SessionCookies(signer, revocations, lifetime_ms=lifetime_ms),
        signer=signer,
        revocations=revocations,
        users=Users(None if settings.users_file is None else Path(settings.users_file)),
        hashing=PasswordChecks(),
        guesses=FailedSignIns(),
        rate=RequestRate(),
        clock=clock,
        events=EventBrowser(backend, settings.ca_file),
        mask=FieldMask(settings.mask),
    )
    return PortalApplication(portal, ROUTES, PUBLIC), backend


async def serve(settings: PortalSettings) -> None:
    """Serve until SIGTERM."""
    application, backend = build(settings)
    # A proxy's one address is many visitors.
    per_address = CONNECTIONS_MAX if settings.trusted_proxies else CONNECTIONS_PER_ADDRESS_MAX
    server = PortalServer(_config(application, settings), ConnectionLimits(per_address=per_address))
    sockets = [socket.socket(fileno=each) for each in settings.sockets]
    try:
        await server.serve(sockets=sockets)
    finally:
        backend.close()


def _config(application: PortalApplication, settings: PortalSettings) -> uvicorn.Config:
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,  # a query may hold a sign-in link
        lifespan="off",
        server_header=False,
        date_header=True,
        proxy_headers=False,  # `portal_trusted_proxies` says whom to believe
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        ws="none",
        ssl_certfile=settings.certificate_file,
        ssl_keyfile=settings.key_file,
    )
    config.load()
    if config.ssl is not None:
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    return config


def set_up_logs(level: int = logging.INFO) -> None:
    """Log to standard error, which the service reads with the level of each line."""
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s", force=True)
    for chatty in ("uvicorn", "uvicorn.error", "asyncio", "httptools"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
