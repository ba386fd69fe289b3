"""Threads that read from disk, and warn about slow reads."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

from penstock.broker.reader import Reader
from penstock.io.threads import StartedThreads
from penstock.model import slow_operations

_P = ParamSpec("_P")
_T = TypeVar("_T")


class ReadThreads(StartedThreads):
    """Measures each read from its start, without the time it waited for a thread."""

    def submit(self, fn: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> Future[_T]:

        def measured() -> _T:
            began_s = time.monotonic()
            try:
                return fn(*args, **kwargs)
            finally:
                slow_operations.warn_if_slow(
                    "read", (time.monotonic() - began_s) * 1000, **_reader_fields(fn)
                )

        return super().submit(measured)


def _reader_fields(work: Callable[..., object]) -> dict[str, object]:
    reader = getattr(work, "__self__", None)
    if not isinstance(reader, Reader):
        return {}
    return {"group": reader.group, "partition": reader.partition}
