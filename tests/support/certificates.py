"""A development certificate for servers inside tests, and a handshake in memory."""

from __future__ import annotations

import ssl
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


def handshake(server: ssl.SSLContext, client: ssl.SSLContext, name: str | None) -> ssl.SSLObject:
    """Both ends in memory, no socket; returns the client's."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    near = client.wrap_bio(to_client, to_server, server_hostname=name)
    far = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(10):
        done = True
        for end in (near, far):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                done = False
        if done:
            return near
    raise AssertionError("the handshake did not end")
