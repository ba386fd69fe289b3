"""The C library's memory allocator in a long-lived service."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

_TUNABLES = "GLIBC_TUNABLES"
_NO_THREAD_CACHES = "glibc.malloc.tcache_count=0"


def restart_without_thread_caches(arguments: Sequence[str]) -> None:
    """Execute this program again, in the same process, with glibc's thread caches switched off. The
    second call returns, with the environment as it was, for child processes. `arguments` are those
    that the program got; it does nothing in a process that was started with others, or without
    glibc.

    Freed blocks of up to 1 KB stay in these caches, between larger ones that then cannot be joined:
    the heap of a service with many short connections grew by 4 MB per hour (docs/decisions.md).
    glibc reads the setting only when a process starts.
    """
    tunables = os.environ.get(_TUNABLES, "").split(":")
    if _NO_THREAD_CACHES in tunables:
        tunables.remove(_NO_THREAD_CACHES)
        os.environ[_TUNABLES] = ":".join(tunables)
        if not any(tunables):
            del os.environ[_TUNABLES]
    elif _is_glibc() and sys.orig_argv[-len(arguments) :] == list(arguments):
        setting = ":".join([*filter(None, tunables), _NO_THREAD_CACHES])
        with contextlib.suppress(OSError):  # without it the service works as well
            os.execve(sys.executable, sys.orig_argv, {**os.environ, _TUNABLES: setting})  # noqa: S606


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, OSError, ValueError):
        return False
