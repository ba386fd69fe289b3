"""Log lines for operators on standard error: `event key=value`. Repeated warnings are limited.

A client that breaks the protocol ten thousand times must not fill the disk: of one message template
at most `BURST` lines per minute are written, then one with the number of omitted lines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TextIO

FORMAT = "%(asctime)s %(levelname)s %(name)s %(message)s"
BURST = 20
PERIOD_MS = 60_000
_TEMPLATES_MAX = 1024  # with more, all counts start again


class RepeatLimit(logging.Filter):
    """Lets the first `burst` records of a template through in each period."""

    def __init__(
        self, monotonic_ms: Callable[[], int], *, burst: int = BURST, period_ms: int = PERIOD_MS
    ) -> None:
        super().__init__()
        self._monotonic_ms = monotonic_ms
        self._burst = burst
        self._period_ms = period_ms
        self._seen: dict[tuple[str, str], list[int]] = {}  # started, written, left out

    def filter(self, record: logging.LogRecord) -> bool:
        """Informational lines are never limited, nor are warnings that are limited where they are
        written (`is_bounded`)."""
        if record.levelno < logging.WARNING or getattr(record, "is_bounded", False):
            return True
        now_ms = self._monotonic_ms()
        if len(self._seen) > _TEMPLATES_MAX:
            self._seen.clear()
        state = self._seen.setdefault((record.name, str(record.msg)), [now_ms, 0, 0])
        if now_ms - state[0] >= self._period_ms:
            left_out = state[2]
            state[:] = [now_ms, 0, 0]
            if left_out:
                record.msg = f"{record.msg} (and {left_out} more like it were left out)"
        if state[1] >= self._burst:
            state[2] += 1
            return False
        state[1] += 1
        return True


def set_up(level: str, monotonic_ms: Callable[[], int], stream: TextIO | None = None) -> None:
    """Install the only handler of the process; libraries log warnings only."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(logging.Formatter(FORMAT))
    handler.addFilter(RepeatLimit(monotonic_ms))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("uvicorn", "asyncio", "websockets"):
        logging.getLogger(chatty).setLevel(max(logging.WARNING, logging.getLogger().level))
