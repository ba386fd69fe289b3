"""Listening sockets: accept, check the address, hold, TLS, and only then the protocol.

asyncio's own servers make a connection of whatever comes, and begin with TLS before anybody is
asked. Here the address is judged first, on the bare socket.
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
_ACCEPTED_AT_ONCE = 16  # then others have their turn
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
_TROUBLE_PAUSE_S = 0.1

MakeProtocol = Callable[[ConnectionSlot], asyncio.Protocol]


class Listeners:
    """The listening sockets of one door. `make` gives a new connection's protocol, which says
    `release` on its slot when the connection is lost."""

    def __init__(self, loop: asyncio.AbstractEventLoop, guard: Guard, make: MakeProtocol) -> None:
        self._loop = loop
        self._guard = guard
        self._make = make
        self._sockets: list[socket.socket] = []
        # One that accepts for each socket, and handshakes, with their places.
        self._tasks: dict[asyncio.Task[None], ConnectionSlot | None] = {}

    async def open(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Listen on every address of the host; the port. Raises OSError."""
        found = await self._loop.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        opened: list[socket.socket] = []
        try:
            for family, _, _, _, address in dict.fromkeys(found):
                where = (address[0], port, *address[2:])
                opened.append(_open_listening_socket(family, where))
                port = opened[0].getsockname()[1]  # 0 was any; it is the same for all of them
        except OSError:
            for each in opened:
                each.close()
            raise
        for each in opened:
            self._sockets.append(each)
            self._run(self._accept(each, tls))
        return port

    async def close(self) -> None:
        """Take nobody new; who is not through the handshake is sent away."""
        for task, slot in self._tasks.items():
            if slot is None or not slot.is_accepted:  # else its protocol would not hear of its end
                task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        for each in self._sockets:
            each.close()
        self._sockets.clear()

    def _run(
        self, work: Coroutine[object, object, None], slot: ConnectionSlot | None = None
    ) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = slot
        task.add_done_callback(self._tasks.pop)
        return task

    async def _accept(self, listening: socket.socket, tls: ssl.SSLContext | None) -> None:
        """Not by `sock_accept`: one that is cancelled at the wrong moment loses a socket."""
        while True:
            try:
                for _ in range(_ACCEPTED_AT_ONCE):
                    accepted, address = self._next(listening)
                    self._come_in(accepted, address[0], tls)
                await asyncio.sleep(0)
            except (BlockingIOError, InterruptedError):
                await self._somebody_at(listening)
            except ConnectionError:
                await asyncio.sleep(0)
            except OSError as error:
                log.warning("cannot accept connections: reason=%s", error.strerror or error)
                if error.errno in _EXHAUSTED:
                    self._guard.addresses.evict_oldest()
                await asyncio.sleep(_TROUBLE_PAUSE_S)

    def _next(self, listening: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        return listening.accept()

    async def _somebody_at(self, listening: socket.socket) -> None:
        came = asyncio.Event()
        self._loop.add_reader(listening, came.set)
        try:
            await came.wait()
        finally:
            self._loop.remove_reader(listening)

    def _come_in(self, accepted: socket.socket, host: str, tls: ssl.SSLContext | None) -> None:
        accepted.setblocking(False)
        slot = self._guard.admit(host)
        if slot is None:
            accepted.close()
            return
        task = self._run(self._connect(accepted, slot, tls), slot)
        slot.evict = task.cancel

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():  # before it had begun, maybe: then nobody else does it
                slot.release()
                accepted.close()

        task.add_done_callback(ended)

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
                raise ConnectionResetError("the peer did not wait")
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
            if not isinstance(error, OSError):  # CancelledError: evicted, or the door closes
                raise
            level = logging.WARNING if isinstance(error, ssl.SSLError) else logging.DEBUG
            log.log(level, "handshake failed: address=%s reason=%s", slot.address, error)


def _is_disconnected(accepted: socket.socket) -> bool:
    """Whether the peer has closed its side, whatever it has sent before. Where that cannot be
    told, reading will tell."""
    if not hasattr(select, "POLLRDHUP"):
        return False
    poll = select.poll()
    poll.register(accepted, select.POLLRDHUP)  # hangups and errors are told in any case
    return bool(poll.poll(0))


def _open_listening_socket(family: int, address: tuple[object, ...]) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        if os.name == "posix":  # elsewhere the option means that two may share the port
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
        made.listen(_BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
