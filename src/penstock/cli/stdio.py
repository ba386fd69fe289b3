"""stdin and stdout for an event loop: each has a thread, so that a slow pipe does not block it.

The threads are daemons: one that waits for a keyboard, or for a pager that does not read, does not
keep the process alive.
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
_CHUNKS_MAX = 8  # read, and not yet consumed


class _FileDescriptor(Protocol):
    def fileno(self) -> int: ...


class StdoutClosed(Exception):
    """The reader of stdout is gone (`| head`)."""


class StdinReader:
    """The content of a file or pipe in chunks, each as soon as it arrives."""

    def __init__(self, source: _FileDescriptor) -> None:
        self._fd = source.fileno()
        self._loop = asyncio.get_running_loop()
        self._chunks: asyncio.Queue[bytes | OSError] = asyncio.Queue()
        self._free_chunks = threading.Semaphore(_CHUNKS_MAX)
        threading.Thread(target=self._read, name="penstock-stdin", daemon=True).start()

    @property
    def is_quiet(self) -> bool:
        """No chunk is waiting."""
        return self._chunks.empty()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            chunk = await self._chunks.get()
            self._free_chunks.release()
            if isinstance(chunk, OSError):
                raise chunk
            if not chunk:
                return
            yield chunk

    def _read(self) -> None:
        chunk: bytes | OSError = b"-"
        while chunk and not isinstance(chunk, OSError):
            self._free_chunks.acquire()
            try:
                chunk = os.read(self._fd, _CHUNK_BYTES)
            except OSError as error:
                chunk = error
            try:
                self._loop.call_soon_threadsafe(self._chunks.put_nowait, chunk)
            except RuntimeError:
                return  # the loop is closed


class StdoutWriter:
    """stdout. `write` returns when everything is written; it raises StdoutClosed if the reader is
    gone, which `gone` signals also while nothing is written."""

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
            self._call_in_loop(_finish, written, error)

    def _watch(self) -> None:
        """Wait until the reader of a pipe closes it."""
        if not hasattr(select, "poll"):
            return
        poller = select.poll()
        try:
            poller.register(self._fd, 0)
            poller.poll()
        except OSError:
            return
        self._call_in_loop(_finish, self.gone, None)

    def _call_in_loop(self, *call: Any) -> None:
        try:
            self._loop.call_soon_threadsafe(*call)
        except RuntimeError:
            return  # the loop is closed


def _finish(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def ignore_broken_pipe() -> None:
    """Discard what Python would still flush to stdout at its end: its reader is gone."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
