"""Why a listener cannot be opened, in one sentence."""

from __future__ import annotations

import errno

from penstock.model.errors import ListenerError


def listener_error(host: str, port: int, flag: str, error: OSError) -> ListenerError:
    """`flag` is the option that chooses the port."""
    if error.errno == errno.EADDRINUSE:
        return ListenerError(
            f"Port {port} on {host} is taken by another program; "
            f"choose another with {flag} (0 takes any free one)."
        )
    return ListenerError(
        f"Cannot listen on {host} port {port} ({error.strerror or error}); see {flag} and --host."
    )
