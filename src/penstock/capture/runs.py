"""From switching Capture on to switching it off: a run, and exactly which events are its own.

Pure. The service writes down where the log stood when Capture was switched on or off, so that what
is captured does not depend on when a job comes to it: a run that is over is finished by whoever
runs next, with the settings that held when it was switched off. Captured history (`backfill`) is a
run that is over when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.capture.windows import UNKNOWN, WindowStart

RUNS_MAX = 64  # that are not finished yet
SPANS_MAX = 256  # of one partition that are captured, with gaps between; the oldest makes room
PLACES_MAX = 16  # where files were put before settings were changed

Span = tuple[int, int]  # from the first event to before the second


class RunProgress(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """How far a run is in one partition, as its job reported: enough for a job that has lost
    everything to cut the windows behind it as they would have been cut."""

    sequence: int
    opened_ms: int
    named_s: int
    window: int

    @property
    def place(self) -> WindowStart:
        return WindowStart(self.sequence, UNKNOWN, self.opened_ms, self.named_s, self.window)


class CaptureRun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`starts` is the first event of each partition that is wanted, `stops` the first that is not
    any more. Names of its files are later than `named_s`. `description` is the captureDescription
    of a run that is over; one that goes on has the hub's."""

    id: str
    on_ms: int
    starts: dict[str, int]
    named_s: int = 0
    off_ms: int | None = None
    stops: dict[str, int] | None = None
    is_backfill: bool = False  # of events from before: names in between may be taken
    description: dict[str, Any] | None = None
    reached: dict[str, RunProgress] = {}

    @property
    def is_over(self) -> bool:
        return self.stops is not None


class CaptureHistory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """All runs that are over and done: what they wrote, and which events are in those files."""

    files: int = 0
    events: int = 0
    lost: int = 0
    last_file: str = ""
    last_file_ms: int = 0
    covered: dict[str, list[Span]] = {}


class FileLocation(msgspec.Struct, frozen=True, kw_only=True):
    """Where a hub's files were put under some settings, and what they are called there."""

    account: str
    container: str
    name_format: str


def load_runs(kept: object) -> list[CaptureRun]:
    """Of what the catalog keeps."""
    return msgspec.convert(kept or [], list[CaptureRun])


def dump_runs(runs: Sequence[CaptureRun]) -> object:
    return _to_builtins(list(runs))


def start_run(
    runs: Sequence[CaptureRun],
    ends: Mapping[str, int],
    *,
    run_id: str,
    at_ms: int,
    created_ms: int = 0,
    past: CaptureHistory | None = None,
) -> list[CaptureRun]:
    """`ends` is the next event of each partition. Names are later than the hub's creation, also
    where the clock was set back since (those before it are of a hub that was deleted), and later
    than all that are known of other runs."""
    named_s = max(at_ms, created_ms, (past or CaptureHistory()).last_file_ms) // 1000
    reached_s = [each.named_s for run in runs for each in run.reached.values()]
    new = CaptureRun(id=run_id, on_ms=at_ms, starts=dict(ends), named_s=max(named_s, *reached_s, 0))
    return [*runs, new]


def end_run(
    runs: Sequence[CaptureRun],
    ends: Mapping[str, int],
    *,
    at_ms: int,
    description: Mapping[str, Any] | None = None,
) -> list[CaptureRun]:
    """What came before that moment is still captured, as the description said until then."""
    over = [
        run
        if run.is_over
        else msgspec.structs.replace(run, off_ms=at_ms, stops=_not_before(run.starts, ends))
        for run in runs
    ]
    if description is None:
        return over
    return [
        run
        if run.description is not None
        else msgspec.structs.replace(run, description=dict(description))
        for run in over
    ]


def plan_backfill(
    runs: Sequence[CaptureRun],
    past: CaptureHistory,
    starts: Mapping[str, int],
    *,
    new_id: Callable[[], str],
    at_ms: int,
    created_ms: int = 0,
) -> list[CaptureRun]:
    """Runs of what lies before the running one and in none of the others, those that are done
    included: in each partition one gap after the other. None when there is nothing, or no running
    one."""
    current = next((run for run in runs if not run.is_over), None)
    if current is None:
        return []
    gaps: dict[str, list[Span]] = {}
    for key, first in starts.items():
        end = current.starts.get(key, first)
        own = [(run.starts.get(key, 0), (run.stops or {}).get(key, 0)) for run in runs]
        taken = merge_ranges([*past.covered.get(key, ()), *own])
        gaps[key] = list(_gaps_between(min(first, end), end, taken))
    made = []
    for index in range(max(map(len, gaps.values()), default=0)):
        spans = {
            key: those[index] if index < len(those) else (current.starts.get(key, 0),) * 2
            for key, those in gaps.items()
        }
        made.append(
            CaptureRun(
                id=new_id(),
                on_ms=at_ms,
                starts={key: first for key, (first, _) in spans.items()},
                named_s=created_ms // 1000,
                # Names of its files end before those of the running one begin.
                off_ms=current.on_ms,
                stops={key: end for key, (_, end) in spans.items()},
                is_backfill=True,
            )
        )
    return made


def remove_finished_run(
    runs: Sequence[CaptureRun], run_id: str
) -> tuple[list[CaptureRun], CaptureRun | None]:
    """Without one that is over and done; and that one."""
    done = next((run for run in runs if run.id == run_id and run.is_over), None)
    return [run for run in runs if run is not done], done


def load_history(kept: object) -> CaptureHistory:
    return msgspec.convert(kept or {}, CaptureHistory)


def add_to_history(
    past: CaptureHistory,
    run: CaptureRun,
    *,
    files: int = 0,
    events: int = 0,
    lost: int = 0,
    last_file: str = "",
    last_file_ms: int = 0,
) -> object:
    """What the catalog keeps of runs that are done, with one more."""
    covered = {key: list(spans) for key, spans in past.covered.items()}
    for key, end in (run.stops or {}).items():
        spans = [*covered.get(key, ()), (run.starts.get(key, end), end)]
        covered[key] = merge_ranges(spans)[-SPANS_MAX:]
    newest = max((past.last_file_ms, past.last_file), (last_file_ms, last_file))
    return _to_builtins(
        CaptureHistory(
            files=past.files + files,
            events=past.events + events,
            lost=past.lost + lost,
            last_file=newest[1],
            last_file_ms=newest[0],
            covered=covered,
        )
    )


def load_locations(kept: object) -> list[FileLocation]:
    return msgspec.convert(kept or [], list[FileLocation])


def add_location(kept: object, place: FileLocation) -> object:
    """What the catalog keeps of places that are left, with one more, each once."""
    others = [each for each in load_locations(kept) if each != place]
    return msgspec.to_builtins([*others, place][-PLACES_MAX:])


def merge_ranges(spans: Iterable[Span]) -> list[Span]:
    """
    >>> merged([(5, 9), (0, 3), (3, 4), (7, 12), (2, 2)])
    [(0, 4), (5, 12)]
    """
    found: list[Span] = []
    for first, end in sorted(spans):
        if first >= end:
            continue
        if found and first <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((first, end))
    return found


def _gaps_between(first: int, end: int, taken: Sequence[Span]) -> Iterable[Span]:
    """What of a range is in none of the spans, which are merged."""
    for start, behind in taken:
        if first < min(start, end):
            yield first, min(start, end)
        first = max(first, behind)
    if first < end:
        yield first, end


def _to_builtins(value: object) -> object:
    """As JSON has it: the catalog keeps nothing else, no tuple either."""
    return msgspec.json.decode(msgspec.json.encode(value))


def _not_before(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
    return {key: max(first, ends.get(key, first)) for key, first in starts.items()}
