"""Thread pools whose threads exist before they are needed."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from penstock.model.errors import InternalError


class StartedThreads(ThreadPoolExecutor):
    """A `ThreadPoolExecutor` that starts all of its threads at construction, so that a limit on
    threads that is reached later (a container's, which Capture's Java shares) stops no work."""

    def __init__(self, count: int, name: str) -> None:
        """Raises InternalError where the system refuses to start `count` threads."""
        super().__init__(count, thread_name_prefix=name)
        started = threading.Barrier(count + 1)
        try:
            for _ in range(count):
                super().submit(started.wait)  # occupies its thread, so the next one is started too
        except RuntimeError as error:
            started.abort()
            self.shutdown()
            raise InternalError(
                f"The threads {name} could not be started: {error}. Raise the limit on threads or "
                f"processes of this user or container."
            ) from error
        started.wait()
