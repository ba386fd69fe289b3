"""The portal put together, and run on sockets that are open already."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from pathlib import Path

import uvicorn

from penstock.model.clock import Clock, SystemClock
from penstock.portal.backend import Backend
from penstock.portal.masking import Mask
from penstock.portal.pages import PUBLIC, ROUTES
from penstock.portal.reading import Events
from penstock.portal.sessions import Guesses, Sessions
from penstock.portal.settings import PortalSettings
from penstock.portal.users import Users
from penstock.portal.web import Application, Portal

_KEEP_ALIVE_S = 30
_GRACE_S = 2
_CONNECTIONS_MAX = 500


def build(settings: PortalSettings, clock: Clock | None = None) -> tuple[Application, Backend]:
    """The application, and what is to be closed after it."""
    clock = clock or SystemClock()
    backend = Backend(settings, clock)
    portal = Portal(
        settings=settings,
        backend=backend,
        sessions=Sessions(settings.admin_token, lifetime_ms=settings.session_hours * 3_600_000),
        users=Users(None if settings.users_file is None else Path(settings.users_file)),
        guesses=Guesses(),
        clock=clock,
        events=Events(backend, settings.ca_file),
        mask=Mask(settings.mask),
    )
    return Application(portal, ROUTES, PUBLIC), backend


async def serve(settings: PortalSettings) -> None:
    """Until SIGTERM."""
    application, backend = build(settings)
    config = uvicorn.Config(
        application,
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        date_header=True,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_GRACE_S,
        limit_concurrency=_CONNECTIONS_MAX,
        h11_max_incomplete_event_size=64 * 1024,
        ws="none",
        ssl_certfile=settings.certificate_file,
        ssl_keyfile=settings.key_file,
    )
    if config.is_ssl:
        config.load()
        assert config.ssl is not None
        config.ssl.minimum_version = ssl.TLSVersion.TLSv1_2
    server = _Server(config)
    sockets = [socket.socket(fileno=each) for each in settings.sockets]
    try:
        await server.serve(sockets=sockets)
    finally:
        backend.close()


class _Server(uvicorn.Server):
    """Ends by SIGTERM, quietly, as one that is told to."""

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._stop)
        loop.add_signal_handler(signal.SIGINT, self._stop)
        await self._serve(sockets)

    def _stop(self) -> None:
        self.should_exit = True


def set_up_logs(level: int = logging.INFO) -> None:
    """To standard error, which the service reads: the level first, so that it is kept."""
    logging.basicConfig(level=level, format="%(levelname)s %(name)s %(message)s", force=True)
    for chatty in ("uvicorn", "uvicorn.error", "asyncio", "httptools"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
