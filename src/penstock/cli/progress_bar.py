"""Progress of long commands: a bar on stderr if that is a terminal, and a sentence at the end."""

from __future__ import annotations

import time
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from penstock.cli.output import console, format_bytes, print_message

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

_RATE_S = 3.0  # the rates shown are averages of this time
_UPDATE_S = 0.2


@dataclass
class ProgressBar:
    """Counts events and bytes. With a total of either, the bar shows how much is left."""

    verb: str  # begins the sentence at the end: "Sent"
    _: KW_ONLY
    total: int | None = None
    total_bytes: int | None = None
    quiet: bool = False
    on_error: str = ""  # begins the sentence that counts the events before an error
    events: int = field(default=0, init=False)
    bytes: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self._started_s = time.monotonic()
        self._samples: list[tuple[float, int, int]] = []  # time, events, bytes; oldest first
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Self:
        screen = console(stderr=True)
        if screen.is_terminal and not self.quiet and self.total != 1:
            self._begin(screen)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._progress is not None:
            self._update()
            self._progress.stop()
            self._progress = None
        if error is None and not self.quiet:
            print_message(self.summary())
        elif error is not None and self.on_error and self.events:
            print_message(f"{self.on_error}: {self.events:,}.")

    def expect(self, total: int) -> None:
        """Set the number of events that will come."""
        self.total = total
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, total=total)

    def add(self, events: int, size: int) -> None:
        """Count events and the bytes of their bodies."""
        now = time.monotonic()
        if not self._samples:  # the time before was used to connect
            self._samples.append((now, self.events, self.bytes))
        self.events += events
        self.bytes += size
        if now - self._samples[-1][0] >= _UPDATE_S:
            recent = [sample for sample in self._samples[1:] if now - sample[0] <= _RATE_S]
            self._samples = [*(recent or self._samples[-1:]), (now, self.events, self.bytes)]
            self._update()

    def note(self, text: str) -> None:
        """Show why nothing happens; an empty text when it continues."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, note=text)
            self._progress.refresh()
        elif text and not self.quiet:
            print_message(text)

    def summary(self) -> str:
        """Sent 1,000 events (97.7 KB) in 0.5 s: 2,000/s, 195.3 KB/s."""
        took_s = max(time.monotonic() - self._started_s, 1e-6)
        events = "1 event" if self.events == 1 else f"{self.events:,} events"
        text = f"{self.verb} {events} ({format_bytes(self.bytes)}) in {took_s:.1f} s"
        if self.events > 1 and took_s >= 0.1:
            text += f": {self.events / took_s:,.0f}/s, {format_bytes(self.bytes / took_s)}/s"
        return text + "."

    def _begin(self, screen: Console) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

        total = self.total_bytes if self.total is None else self.total
        self._progress = Progress(
            SpinnerColumn(),
            *([] if total is None else [BarColumn(bar_width=20)]),
            TextColumn("[bold]{task.fields[count]}[/]"),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[size]}"),
            TextColumn("[yellow]{task.fields[note]}[/]"),
            console=screen,
            transient=True,
            refresh_per_second=5,
            redirect_stdout=False,
        )
        self._progress.start()
        self._task = self._progress.add_task("", total=total, **self._fields())

    def _update(self) -> None:
        if self._progress is not None and self._task is not None:
            completed = self.events
            if self.total is None and self.total_bytes is not None:
                completed = min(self.bytes + self.events, self.total_bytes)  # with line ends
            self._progress.update(self._task, completed=completed, **self._fields())

    def _fields(self) -> dict[str, Any]:
        total = "" if self.total is None else f" of {self.total:,}"
        took_s = time.monotonic() - self._started_s
        events_per_s = bytes_per_s = 0.0
        if len(self._samples) > 1:
            first, last = self._samples[0], self._samples[-1]
            passed_s = max(last[0] - first[0], 1e-6)
            events_per_s = (last[1] - first[1]) / passed_s
            bytes_per_s = (last[2] - first[2]) / passed_s
        return {
            "count": f"{self.events:,}{total} events",
            "rate": f"{events_per_s:,.0f}/s",
            "size": f"{format_bytes(bytes_per_s)}/s · {format_bytes(self.bytes)} · {took_s:.0f} s",
            "note": "",
        }
