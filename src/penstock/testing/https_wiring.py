"""The HTTPS endpoint of a broker inside a test; imported when a test first uses it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.auth import Authority
from penstock.catalog.api import Catalog
from penstock.checkpoints.server_store import ServerCheckpointStore
from penstock.gateway.amqp.context import AmqpContext
from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.amqp.websocket import PATHS, WebSocketEndpoint
from penstock.gateway.http import responses
from penstock.gateway.http.checkpoints import PREFIX as CHECKPOINTS
from penstock.gateway.http.checkpoints import CheckpointEndpoint
from penstock.gateway.http.publish import PublishEndpoint
from penstock.gateway.http.request import HttpRequest
from penstock.gateway.http.server import HttpServer, PublicApplication
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
    publishing = PublishEndpoint(
        broker=context.broker,
        catalog=catalog,
        clock=context.clock,
        authorities=authorities,
        new_id=context.new_id,
        refusal_log=context.refusal_log,
    )
    checkpoints = CheckpointEndpoint(
        broker=context.broker,
        catalog=catalog,
        keeper=keeper,
        clock=context.clock,
        authorities=authorities,
        new_id=context.new_id,
        refusal_log=context.refusal_log,
    )
    websocket = WebSocketEndpoint(amqp)
    application = PublicApplication(
        publishing=_FaultyTokens(publishing, context, board),
        websocket=Starlette(routes=[WebSocketRoute(path, websocket) for path in PATHS]),
        prefixes={CHECKPOINTS: _FaultyTokens(checkpoints, context, board)},
    )
    return HttpServer(application, context.loop, guard=context.guard)


class _FaultyTokens:
    """Refuses requests while a fault refuses tokens; passes the others to the application."""

    def __init__(self, app: ASGIApp, context: AmqpContext, board: FaultBoard) -> None:
        self._app = app
        self._context = context
        self._board = board

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        error = self._board.token_error()
        if error is None:
            await self._app(scope, receive, send)
            return
        now_ms = self._context.clock.now_ms()
        answer = responses.error_response(
            error,
            tracking_id=self._context.new_id(),
            tracker=self._context.new_id(),
            now_ms=now_ms,
        )
        await HttpRequest(scope, receive, send).answer(answer, responses.http_date(now_ms))
