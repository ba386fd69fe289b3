"""The development certificate of brokers inside tests: one for the process, removed at its end."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import threading
import time
from pathlib import Path

from penstock.service.certificates import (
    ALWAYS_COVERED,
    Certificates,
    development_certificates,
    machine_names,
)

_lock = threading.Lock()
_made: tuple[int, Certificates] | None = None  # by whom: a forked process makes its own


def shared_certificates() -> Certificates:
    """Made at the first call (some ten milliseconds, and the import of X.509 code). The machine's
    own clock counts, not a broker's: it is the clients who judge it."""
    global _made
    with _lock:
        if _made is None or _made[0] != os.getpid():
            directory = Path(tempfile.mkdtemp(prefix="penstock-testing-"))
            atexit.register(shutil.rmtree, directory, ignore_errors=True)
            made = certificates_in(directory / "tls")
            _made = (os.getpid(), made)
        return _made[1]


def certificates_in(directory: Path) -> Certificates:
    now_ms = time.time_ns() // 1_000_000
    names = [*ALWAYS_COVERED, *machine_names()]
    return development_certificates(directory, names, now_ms=now_ms)
