"""How far a long command is: a bar on stderr where that is a terminal; a sentence at its end."""

from __future__ import annotations

import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from penstock.cli.output import bytes_shown, console, talk

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

_RATE_S = 3.0  # the rate shown is that of about so many seconds
_LOOK_S = 0.2


class Counter:
    """Counts events and bytes. With a `total` of events the bar knows its end."""

    def __init__(self, verb: str, *, total: int | None = None, quiet: bool = False) -> None:
        """`verb` is what was done to events at the end: "Sent"."""
        self._verb = verb
        self._total = total
        self._quiet = quiet
        self.events = 0
        self.bytes = 0
        self._started_s = self._looked_s = time.monotonic()
        self._looked: tuple[int, int] = (0, 0)
        self._rates = (0.0, 0.0)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        screen = console(stderr=True)
        if screen.is_terminal and not self._quiet:
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
        self.events += events
        self.bytes += size
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_S:
            self._look(now)

    def note(self, text: str) -> None:
        """Why nothing moves; empty when it does again."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, note=text)
            self._progress.refresh()
        elif text and not self._quiet:
            talk(text)

    def summary(self) -> str:
        """Sent 1,000 events (97.7 KB) in 0.5 s: 2,000/s, 0.2 MB/s."""
        took = max(time.monotonic() - self._started_s, 1e-6)
        events = "1 event" if self.events == 1 else f"{self.events:,} events"
        text = f"{self._verb} {events} ({bytes_shown(self.bytes)}) in {took:.1f} s"
        if self.events > 1 and took >= 0.1:
            text += f": {self.events / took:,.0f}/s, {self.bytes / took / 2**20:.1f} MB/s"
        return text + "."

    def tell(self) -> None:
        """The summary, unless nobody wants to hear it."""
        if not self._quiet:
            talk(self.summary())

    def _begin(self, screen: object) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        assert isinstance(screen, Console)
        columns = [
            SpinnerColumn(),
            BarColumn(bar_width=20),
            TextColumn("[bold]{task.fields[count]}[/]"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[size]}"),
            TextColumn("[yellow]{task.fields[note]}[/]"),
        ]
        self._progress = Progress(
            *columns, console=screen, transient=True, refresh_per_second=5, redirect_stdout=False
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=self._total, **self._fields())

    def _look(self, now: float) -> None:
        passed = now - self._looked_s
        weight = min(1.0, passed / _RATE_S) if self._rates[0] else 1.0
        grown = (self.events - self._looked[0], self.bytes - self._looked[1])
        self._rates = (
            self._rates[0] + weight * (grown[0] / passed - self._rates[0]),
            self._rates[1] + weight * (grown[1] / passed - self._rates[1]),
        )
        self._looked, self._looked_s = (self.events, self.bytes), now
        self._show()

    def _show(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=self.events, **self._fields())

    def _fields(self) -> dict[str, Any]:
        total = "" if self._total is None else f" of {self._total:,}"
        took = time.monotonic() - self._started_s
        return {
            "count": f"{self.events:,}{total} events",
            "rate": f"{self._rates[0]:,.0f}/s",
            "size": f"{self._rates[1] / 2**20:.1f} MB/s · {bytes_shown(self.bytes)} · {took:.0f} s",
            "note": "",
        }
