"""A worker's process, made ready for tasks that move much memory."""

from __future__ import annotations

import ctypes
import functools
import gc

# glibc's mallopt. Memory that goes back to the system comes again page by page, and on a virtual
# machine the first touch of a page can be a visit to the host: a task keeps what the next batch
# needs again.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * 1024 * 1024
_LARGE_BYTES = 32 * 1024 * 1024  # the most that glibc allows


@functools.cache
def configure_worker() -> None:
    """Once in a process, before its first task.

    Spark collects garbage behind every task, looking at each object of every imported module; what
    is there now stays, and is not looked at again.
    """
    gc.freeze()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # another C library, which has its own ways
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
