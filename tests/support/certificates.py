"""A development certificate for servers inside tests."""

from __future__ import annotations

import time
from pathlib import Path

from penstock.service.certificates import (
    ALWAYS_COVERED,
    Certificates,
    development_certificates,
    machine_names,
)


def certificates_in(directory: Path) -> Certificates:
    hosts = [*ALWAYS_COVERED, *machine_names()]
    return development_certificates(directory, hosts, now_ms=time.time_ns() // 1_000_000)
