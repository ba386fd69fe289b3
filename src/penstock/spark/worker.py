"""Settings of Python worker processes, for tasks that allocate much memory."""

from __future__ import annotations

import ctypes
import functools
import gc

# glibc's mallopt. Memory that is returned to the system comes back page by page, and on a virtual
# machine the first access to a page may trap into the host: a task keeps what the next batch needs.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT_BYTES = 32 * 1024 * 1024
_LARGE_BYTES = 32 * 1024 * 1024  # the most that glibc allows


@functools.cache
def configure_worker() -> None:
    """Tune this process, once, before its first task.

    Spark runs a garbage collection after every task. `gc.freeze` excludes the objects of the
    modules that are imported by now, which stay anyway.
    """
    gc.freeze()
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return  # not glibc
    mallopt(_TRIM_THRESHOLD, _KEPT_BYTES)
    mallopt(_MMAP_THRESHOLD, _LARGE_BYTES)
