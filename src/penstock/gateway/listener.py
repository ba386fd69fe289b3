"""Listening sockets: accept, check the address, hold, TLS handshake, and only then the protocol.

asyncio's own servers accept every connection and start TLS at once. Here the guard checks the
address first, before any TLS work is done.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import select
import socket
import ssl
from collections.abc import Callable, Coroutine

from penstock.gateway.guard import ConnectionSlot, Guard
from penstock.model import limits

log = logging.getLogger("penstock.gateway")

_BACKLOG = 512
_ACCEPTED_AT_ONCE = 16  # then other tasks run
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TROUBLE_PAUSE_S = 0.1

MakeProtocol = Callable[[ConnectionSlot], asyncio.Protocol]


class Listeners:
    """The listening sockets of one gateway. `make` creates the protocol of a connection, which
    releases its slot when the connection is lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard, make: MakeProtocol) -> None:
        self._loop = loop
        self._guard = guard
        self._make = make
        self._sockets: list[socket.socket] = []
        # One task per listening socket, and one with a slot per connection before its protocol.
        self._tasks: dict[asyncio.Task[None], ConnectionSlot | None] = {}

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen on every address of the host; return the port. Raises OSError."""
        infos = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(infos):
                bind_address = (address[0], port, *address[2:])
                opened.append(_open_listening_socket(family, bind_address))
                port = opened[0].getsockname()[1]  # all addresses get the port of the first
        except OSError:
            for listening in opened:
                listening.close()
            raise
        for listening in opened:
            self._sockets.append(listening)
            self._run(self._accept(listening, tls))
        return port

    async def close(self) -> None:
        """Accept no connection; close those whose handshake is not complete."""
        for task, slot in self._tasks.items():
            if slot is None or not slot.is_accepted:  # else its protocol closes it
                task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        for listening in self._sockets:
            listening.close()
        self._sockets.clear()

    def _run(
        self, work: Coroutine[object, object, None], slot: ConnectionSlot | None = None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = slot
        task.add_done_callback(self._tasks.pop)
        return task

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Not with `sock_accept`: canceled at the wrong moment, it loses a socket."""
        while True:
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    accepted, address = self._next(listening)
                    self._admit(accepted, address[0], tls)
                await asyncio.sleep(0)
            except (BlockingIOError, InterruptedError):
                await self._wait_readable(listening)
            except ConnectionError:
                await asyncio.sleep(0)
            except OSError as error:
                log.warning("accept failed reason=%s", error.strerror or error)
                if error.errno in _EXHAUSTED:
                    self._guard.addresses.evict_oldest()
                await asyncio.sleep(_TROUBLE_PAUSE_S)

    def _next(self, listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        return listening.accept()

    async def _wait_readable(self, listening: socket.socket) -> None:
        readable = asyncio.Event()
        self._loop.add_reader(listening, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(listening)

    def _admit(self, accepted: socket.socket, host: str, tls: ssl.SSLContext | None) -> None:
        accepted.setblocking(False)
        slot = self._guard.admit(host)
        if slot is None:
            accepted.close()
            return
        task = self._run(self._connect(accepted, slot, tls), slot)
        slot.evict = task.cancel

        def on_done(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # possibly before it started, so its own handler did not run
                slot.release()
                accepted.close()

        task.add_done_callback(on_done)

    async def _connect(
        self, accepted: socket.socket, slot: ConnectionSlot, tls: ssl.SSLContext | None
    ) -> None:
        try:
            if slot.hold_ms:
                await asyncio.sleep(slot.hold_ms / 1000)
            if tls is not None:
                await slot.budget.turn(limits.TLS_HANDSHAKE_US)
                slot.budget.charge(0, limits.TLS_HANDSHAKE_US)
            if (slot.hold_ms or tls is not None) and _is_disconnected(accepted):
                raise ConnectionResetError("the peer disconnected while it waited")
            transport, _ = await self._loop.connect_accepted_socket(
                lambda: self._make(slot),
                accepted,
                ssl=tls,
                ssl_handshake_timeout=limits.TLS_DEADLINE_S if tls is not None else None,
            )
            if not slot.is_accepted:
                slot.accepted(transport)
        except BaseException as error:
            slot.release()
            with contextlib.suppress(OSError):
                accepted.close()
            if not isinstance(error, OSError):  # CancelledError: evicted, or the listener closes
                raise
            level = logging.WARNING if isinstance(error, ssl.SSLError) else logging.DEBUG
            log.log(level, "handshake failed address=%s reason=%s", slot.address, error)


def _is_disconnected(accepted: socket.socket) -> bool:
    """Whether the peer has closed its side, even if it sent data before. Where the system cannot
    report that, False: reading finds out."""
    if not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(accepted, select.POLLRDHUP)  # hangups and errors are always reported
    return bool(poll.poll(0))


def _open_listening_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # on Windows two processes could then share the port
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
        listening.setblocking(False)
    except OSError:
        listening.close()
        raise
    return listening
