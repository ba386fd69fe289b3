"""Open the listeners of the service. A listener on 127.0.0.1 also listens on ::1, for clients that
resolve localhost to it first."""

from __future__ import annotations

import contextlib
import errno
import socket
import ssl

from penstock.gateway.amqp.server import AmqpServer
from penstock.gateway.http.server import HttpServer
from penstock.model.errors import ListenerError

_BACKLOG = 128


async def open_listener(
    server: AmqpServer | HttpServer,
    host: str,
    port: int,
    flag: str,
    tls: ssl.SSLContext | None = None,
) -> int:
    """Return the port. `flag` is the option that chooses it. Raises ListenerError."""
    try:
        chosen = await server.listen(host, port, tls)
    except OSError as error:
        raise listener_error(host, port, flag, error) from error
    if host == "127.0.0.1":
        try:
            await server.listen("::1", chosen, tls)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and port != 0:
                raise listener_error("::1", port, flag, error) from error
    return chosen


def open_sockets(host: str, port: int) -> list[socket.socket]:
    """Listening sockets for a process that inherits them. Raises OSError."""
    with contextlib.ExitStack() as opened:
        first = opened.enter_context(_bind_socket(host, port))
        sockets = [first]
        if host == "127.0.0.1":
            try:
                sockets.append(opened.enter_context(_bind_socket("::1", first.getsockname()[1])))
            except OSError as error:
                if error.errno == errno.EADDRINUSE and port != 0:
                    raise
        opened.pop_all()
        return sockets


def _bind_socket(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    bound.setblocking(False)
    return bound


def listener_error(host: str, port: int, flag: str, error: OSError) -> ListenerError:
    """`flag` is the option that chooses the port."""
    if error.errno == errno.EADDRINUSE:
        return ListenerError(
            f"Port {port} on {host} is in use by another program; "
            f"choose another with {flag} (0 takes any free one)."
        )
    return ListenerError(
        f"Cannot listen on {host} port {port} ({error.strerror or error}); see {flag} and --host."
    )
