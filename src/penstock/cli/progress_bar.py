"""How far a long command is: a bar on stderr where that is a terminal; a sentence at its end."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.cli.output import console, format_bytes, print_message

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_RATE_S = 3.0  # the rate shown is that of so many seconds
_LOOK_S = 0.2

Look = tuple[float, int, int]  # when, events, bytes


class ProgressBar:
    """Counts events and bytes. With a total of either the bar knows its end."""

    def __init__(
        self,
        verb: str,
        *,
        total: int | None = None,
        total_bytes: int | None = None,
        quiet: bool = False,
    ) -> None:
        """`verb` is what was done to events at the end: "Sent"."""
        self._verb = verb
        self._total = total
        self._total_bytes = total_bytes
        self._quiet = quiet
        self.events = 0
        self.bytes = 0
        self._started_s = time.monotonic()
        self._looks: deque[Look] = deque()
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        screen = console(stderr=True)
        if screen.is_terminal and not self._quiet and self._total != 1:
            self._begin(screen)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._progress is not None:
            self._show()
            self._progress.stop()
            self._progress = None

    def expect(self, total: int) -> None:
        """How many events it will be."""
        self._total = total
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)

    def add(self, events: int, size: int) -> None:
        now = time.monotonic()
        if not self._looks:  # what came before was connecting
            self._looks.append((now, self.events, self.bytes))
        self.events += events
        self.bytes += size
        if now - self._looks[-1][0] >= _LOOK_S:
            self._looks.append((now, self.events, self.bytes))
            while len(self._looks) > 2 and now - self._looks[0][0] > _RATE_S:
                self._looks.popleft()
            self._show()

    def note(self, text: str) -> None:
        """Why nothing moves; empty when it does again."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, note=text)
            self._progress.refresh()
        elif text and not self._quiet:
            print_message(text)

    def summary(self) -> str:
        """Sent 1,000 events (97.7 KB) in 0.5 s: 2,000/s, 195.3 KB/s."""
        took = max(time.monotonic() - self._started_s, 1e-6)
        events = "1 event" if self.events == 1 else f"{self.events:,} events"
        text = f"{self._verb} {events} ({format_bytes(self.bytes)}) in {took:.1f} s"
        if self.events > 1 and took >= 0.1:
            text += f": {self.events / took:,.0f}/s, {format_bytes(self.bytes / took)}/s"
        return text + "."

    def tell(self) -> None:
        """The summary, unless nobody wants to hear it."""
        if not self._quiet:
            print_message(self.summary())

    def _begin(self, screen: object) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn

        assert isinstance(screen, Console)
        columns: list[ProgressColumn] = [
            SpinnerColumn(),
            TextColumn("[bold]{task.fields[count]}[/]"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[size]}"),
            TextColumn("[yellow]{task.fields[note]}[/]"),
        ]
        if self._total is not None or self._total_bytes is not None:
            columns.insert(1, BarColumn(bar_width=20))
        self._progress = Progress(
            *columns, console=screen, transient=True, refresh_per_second=5, redirect_stdout=False
        )
        self._progress.start()
        ending = self._total if self._total is not None else self._total_bytes
        self._task = self._progress.add_task("", total=ending, **self._fields())

    def _show(self) -> None:
        if self._progress is not None and self._task is not None:
            done = self.events
            if self._total is None and self._total_bytes is not None:
                done = min(self.bytes + self.events, self._total_bytes)  # with their line ends
            self._progress.update(self._task, completed=done, **self._fields())

    def _fields(self) -> dict[str, Any]:
        total = "" if self._total is None else f" of {self._total:,}"
        took = time.monotonic() - self._started_s
        rates = (0.0, 0.0)
        if len(self._looks) > 1:
            first, last = self._looks[0], self._looks[-1]
            passed = max(last[0] - first[0], 1e-6)
            rates = ((last[1] - first[1]) / passed, (last[2] - first[2]) / passed)
        return {
            "count": f"{self.events:,}{total} events",
            "rate": f"{rates[0]:,.0f}/s",
            "size": f"{format_bytes(rates[1])}/s · {format_bytes(self.bytes)} · {took:.0f} s",
            "note": "",
        }
