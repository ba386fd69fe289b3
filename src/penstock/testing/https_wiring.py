"""The HTTPS endpoint of a broker inside a test; imported when a test first uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute

from penstock.auth.grant import Grant
from penstock.auth.sas import Authority
from penstock.catalog.api import Catalog
from penstock.checkpoints.server_store import ServerCheckpointStore
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.amqp.websocket import PATHS, WebSocketEndpoint
from penstock.gateway.http.checkpoints import PREFIX as CHECKPOINTS
from penstock.gateway.http.checkpoints import CheckpointEndpoint
from penstock.gateway.http.endpoint import DataPlaneEndpoint
from penstock.gateway.http.publish import PublishEndpoint
from penstock.gateway.http.request import HttpRequest
from penstock.gateway.http.routes import RequestTarget
from penstock.gateway.http.server import HttpServer, PublicApplication
from penstock.model.entities import Right
from penstock.service.lag_report import follow_catalog
from penstock.testing.faults import FaultBoard


def open_https_server(
    amqp: AmqpServer,
    *,
    catalog: Catalog,
    authorities: Callable[[], Sequence[Authority]],
    board: FaultBoard,
    data: Path,
    stack: contextlib.AsyncExitStack,
    grace_s: float,
) -> HttpServer:
    """Publishing, AMQP over WebSocket, and checkpoints, which are stored in a file below `data`."""
    context = amqp.context
    store = ServerCheckpointStore(
        data / "checkpoints.sqlite", now_ms=context.clock.now_ms, loop=context.loop
    )
    stack.push_async_callback(store.close)
    stack.callback(follow_catalog(store, catalog))
    shared: dict[str, Any] = {
        "broker": context.broker,
        "catalog": catalog,
        "clock": context.clock,
        "authorities": authorities,
        "new_id": context.new_id,
        "refusal_log": context.refusal_log,
    }
    publishing, checkpoints = _Publishing(**shared), _Checkpoints(store=store, **shared)
    publishing.board = checkpoints.board = board
    websocket = WebSocketEndpoint(amqp)
    application = PublicApplication(
        publishing=publishing,
        websocket=Starlette(routes=[WebSocketRoute(path, websocket) for path in PATHS]),
        prefixes={CHECKPOINTS: checkpoints},
    )
    server = HttpServer(application, context.loop, guard=context.guard)
    # AMQP connections are closed while the WebSockets below them are still open.
    stack.push_async_callback(server.close, grace_s=grace_s)
    stack.push_async_callback(amqp.close, grace_s=grace_s)
    return server


class _FaultyTokens(DataPlaneEndpoint):
    """Refuses tokens while a fault says so."""

    board: FaultBoard

    def _authorize(self, request: HttpRequest, target: RequestTarget, right: Right) -> Grant:
        self.board.check_token()
        return super()._authorize(request, target, right)


class _Publishing(_FaultyTokens, PublishEndpoint):
    pass


class _Checkpoints(_FaultyTokens, CheckpointEndpoint):
    pass
