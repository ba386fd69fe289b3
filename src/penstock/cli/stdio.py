"""stdin and stdout beside an event loop: a thread of each, so that a slow pipe stops nobody.

The threads are daemons: one that waits for a keyboard, or for a pager that does not read, never
keeps the process alive.
"""

from __future__ import annotations

import asyncio
import os
import queue
import select
import sys
import threading
from collections.abc import AsyncIterator
from typing import Any, Protocol, TextIO

_CHUNK_BYTES = 1024 * 1024
_CHUNKS_MAX = 8  # read and not yet asked for


class _FileDescriptor(Protocol):
    def fileno(self) -> int: ...


class StdoutClosed(Exception):
    """Whoever read our output does so no longer (`| head`)."""


class StdinReader:
    """What a file gives, chunk by chunk, as soon as it is there."""

    def __init__(self, source: _FileDescriptor) -> None:
        self._fd = source.fileno()
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._room = threading.Semaphore(_CHUNKS_MAX)
        threading.Thread(target=self._read, name="penstock-stdin", daemon=True).start()

    @property
    def is_quiet(self) -> bool:
        """Nothing is there at this moment."""
        return self._chunks.empty()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            chunk = await self._chunks.get()
            self._room.release()
            if isinstance(chunk, OSError):
                raise chunk
            if not chunk:
                return
            yield chunk

    def _read(self) -> None:
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            self._room.acquire()
            try:
                chunk = os.read(self._fd, _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the loop is closed: nobody listens


class StdoutWriter:
    """stdout. `write` returns when all is written; it raises ReaderGone when nobody reads."""

    def __init__(self, target: TextIO | None = None) -> None:
        target = sys.stdout if target is None else target
        self.is_terminal = target.isatty()
        target.flush()
        self._fd = target.fileno()
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self.gone: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._write, name="penstock-stdout", daemon=True).start()
        threading.Thread(target=self._watch, name="penstock-pipe", daemon=True).start()

    async def write(self, data: bytes) -> None:
        if self.gone.done():
            raise StdoutClosed
        written: asyncio.Future[None] = self._loop.create_future()
        self._work.put((data, written))
        await written

    def _write(self) -> None:
        while True:
            data, written = self._work.get()
            error: BaseException | None = None
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._fd, view) :]
            except BrokenPipeError:
                error = StdoutClosed()
            except OSError as failed:
                error = failed
            self._tell(_finish, written, error)

    def _watch(self) -> None:
        """A pipe whose reader left says so, also while there is nothing to write."""
        if not hasattr(select, "poll"):
            return
        watched = select.poll()
        try:
            watched.register(self._fd, 0)
            watched.poll()
        except OSError:
            return
        self._tell(_finish, self.gone, None)

    def _tell(self, *call: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(*call)
        except RuntimeError:
            return  # the loop is closed: nobody listens


def _finish(waiting: asyncio.Future[None], error: BaseException | None) -> None:
    if waiting.done():
        return
    if error is None:
        waiting.set_result(None)
    else:
        waiting.set_exception(error)


def ignore_broken_pipe() -> None:
    """Nobody reads stdout: what Python would still flush at its end goes nowhere."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
