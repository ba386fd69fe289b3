"""The C library's memory allocator in a long-lived service."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Sequence

_TUNABLES = "GLIBC_TUNABLES"
_SETTINGS = "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=1"


def restart_with_allocator_settings(arguments: Sequence[str]) -> None:
    """Execute this program again, in the same process, without glibc's thread caches and with one
    heap for all threads. The second call returns, with the environment as it was, for child
    processes. `arguments` are those that the program got; it does nothing in a process that was
    started with others, or without glibc.

    Freed blocks of up to 1 KB stay in the thread caches, between larger ones that then cannot be
    joined: the heap of a service with many short connections grew by 4 MB per hour. A heap for each
    thread that reads from the disk took 9 MB (docs/decisions.md). glibc reads the settings only
    when a process starts; those of the user come later and win.
    """
    tunables = os.environ.get(_TUNABLES, "")
    if tunables.startswith(_SETTINGS):
        os.environ[_TUNABLES] = tunables[len(_SETTINGS) + 1 :]
        if not os.environ[_TUNABLES]:
            del os.environ[_TUNABLES]
    elif _is_glibc() and sys.orig_argv[-len(arguments) :] == list(arguments):
        setting = f"{_SETTINGS}:{tunables}".rstrip(":")
        with contextlib.suppress(OSError):  # without it the service works as well
            os.execve(sys.executable, sys.orig_argv, {**os.environ, _TUNABLES: setting})  # noqa: S606


def _is_glibc() -> bool:
    try:
        return bool(os.confstr("CS_GNU_LIBC_VERSION"))
    except (AttributeError, OSError, ValueError):
        return False
