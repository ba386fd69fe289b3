"""Thread pools whose threads exist before they are needed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.model.errors import InternalError

_START_S = 60.0  # a machine that is that busy cannot serve


class StartedThreads(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that starts all of its threads at construction, so that a limit on
    threads that is reached later (a container's, which Capture's Java shares) stops no work."""

    def __init__(self, count: int, name: str) -> None:
        """Raises InternalError where the system refuses to start `count` threads."""
        super().__init__(count, thread_name_prefix=name)
        started = threading.Barrier(count + 1, timeout=_START_S)
        try:
            for _ in range(count):
                super().submit(started.wait)  # occupies its thread, so the next one is started too
            started.wait()
        except RuntimeError as error:  # BrokenBarrierError is one
            started.abort()
            self.shutdown()
            raise InternalError(
                f"The threads {name} could not be started: "
                f"{str(error) or f'they did not run within {_START_S:g} s'}. "
                f"Raise the limit on threads or processes of this user or container."
            ) from error
