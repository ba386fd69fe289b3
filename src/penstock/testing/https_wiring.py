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
from penstock.gateway.amqp.context import AmqpContext
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
from penstock.testing.fault_board import FaultBoard


def open_https_server(
    context: AmqpContext,
    *,
    catalog: Catalog,
    authorities: Callable[[], Sequence[Authority]],
    amqp: AmqpServer,
    board: FaultBoard,
    data: Path,
    stack: contextlib.AsyncExitStack,
) -> HttpServer:
    """Publishing, AMQP over WebSocket, and checkpoints, which are stored in a file below `data`."""
    keeper = ServerCheckpointStore(
        data / "checkpoints.sqlite", now_ms=context.clock.now_ms, loop=context.loop
    )
    stack.push_async_callback(keeper.close)
    stack.callback(follow_catalog(keeper, catalog))
    shared: dict[str, Any] = {
        "broker": context.broker,
        "catalog": catalog,
        "clock": context.clock,
        "authorities": authorities,
        "new_id": context.new_id,
        "refusal_log": context.refusal_log,
    }
    publishing, checkpoints = _Publishing(**shared), _Checkpoints(keeper=keeper, **shared)
    publishing.board = checkpoints.board = board
    websocket = WebSocketEndpoint(amqp)
    application = PublicApplication(
        publishing=publishing,
        websocket=Starlette(routes=[WebSocketRoute(path, websocket) for path in PATHS]),
        prefixes={CHECKPOINTS: checkpoints},
    )
    return HttpServer(application, context.loop, guard=context.guard)


class _FaultyTokens(DataPlaneEndpoint):
    """Refuses tokens while a fault says so."""

    board: FaultBoard

    def _authorize(self, request: HttpRequest, target: RequestTarget, right: Right) -> Grant:
        error = self.board.token_error()
        if error is not None:
            raise error
        return super()._authorize(request, target, right)


class _Publishing(_FaultyTokens, PublishEndpoint):
    pass


class _Checkpoints(_FaultyTokens, CheckpointEndpoint):
    pass
