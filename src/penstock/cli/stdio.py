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
from contextlib import AbstractContextManager, nullcontext, suppress
from pathlib import Path
from typing import Any, BinaryIO, TextIO

STDIO = Path("-")  # as the name of a file: stdin or stdout
_CHUNK_BYTES = 1024 * 1024
_CHUNKS_MAX = 8  # read, and not yet consumed


class StdoutClosed(Exception):
    """The reader of stdout is gone (`| head`)."""


def open_input(file: Path) -> AbstractContextManager[BinaryIO]:
    """The file, or stdin for `-`, which stays open."""
    return nullcontext(sys.stdin.buffer) if file == STDIO else file.open("rb")


class StdinReader:
    """The content of a file or pipe in chunks, each as soon as it arrives."""

    def __init__(self, source: BinaryIO) -> None:
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
            _call_in_loop(self._loop, self._chunks.put_nowait, chunk)


class StdoutWriter:
    """stdout. `write` returns when everything is written; it raises StdoutClosed if the reader is
    gone."""

    def __init__(self, target: TextIO | None = None) -> None:
        target = sys.stdout if target is None else target
        self.is_terminal = target.isatty()
        target.flush()
        self._fd = target.fileno()
        self._loop = asyncio.get_running_loop()
        self._work: queue.SimpleQueue[tuple[bytes, asyncio.Future[None]]] = queue.SimpleQueue()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        threading.Thread(target=self._write, name="penstock-stdout", daemon=True).start()
        threading.Thread(target=self._watch, name="penstock-pipe", daemon=True).start()

    async def wait_closed(self) -> None:
        """Raises StdoutClosed when the reader is gone, also while nothing is written."""
        await asyncio.shield(self._gone)  # a canceled wait must not end later writes
        raise StdoutClosed

    async def write(self, data: bytes) -> None:
        if self._gone.done():
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
            _call_in_loop(self._loop, _finish, written, error)

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
        _call_in_loop(self._loop, _finish, self._gone, None)


def _call_in_loop(loop: asyncio.AbstractEventLoop, *call: Any) -> None:
    with suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(*call)


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
