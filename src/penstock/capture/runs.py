"""Start, end, backfill and finish of capture runs: exactly which events belong to a run.

Pure. The service stores where the log stood when Capture was switched on or off, so what is
captured does not depend on when a job gets to it. A run that is over is finished by the next job,
with the settings that held when it was switched off. A backfill is a run that is over when it is
requested.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from penstock.model.capture import (
    CaptureHistory,
    CaptureRun,
    FileLocation,
    HubCapture,
    SequenceRange,
)

RUNS_MAX = 64  # unfinished ones
RANGES_MAX = 256  # captured ranges of one partition, with gaps between; the oldest is dropped first
LOCATIONS_MAX = 16  # before settings were changed


def start_run(
    capture: HubCapture, ends: Mapping[str, int], *, run_id: str, at_ms: int, created_ms: int = 0
) -> HubCapture:
    """The state with a new run that begins at `ends`, the next event of each partition.

    Names of its files are later than the hub's creation, also where the clock was set back since
    (earlier names belong to a deleted hub), and later than every name of another run.
    """
    past = capture.past or CaptureHistory()
    used_s = [progress.named_s for run in capture.runs for progress in run.reached.values()]
    named_s = max(max(at_ms, created_ms, past.last_file_ms) // 1000, *used_s, 0)
    new = CaptureRun(id=run_id, on_ms=at_ms, starts=dict(ends), named_s=named_s)
    return msgspec.structs.replace(capture, runs=[*capture.runs, new])


def end_run(
    capture: HubCapture,
    ends: Mapping[str, int],
    *,
    at_ms: int,
    description: Mapping[str, Any] | None = None,
) -> HubCapture:
    """The state without a run that goes on. Events before `ends` are still captured, by
    `description`, which held until now."""
    runs = []
    for run in capture.runs:
        if not run.is_over:
            stops = {key: max(first, ends.get(key, first)) for key, first in run.starts.items()}
            run = msgspec.structs.replace(run, off_ms=at_ms, stops=stops)
        if run.description is None and description is not None:
            run = msgspec.structs.replace(run, description=dict(description))
        runs.append(run)
    return msgspec.structs.replace(capture, runs=runs)


def plan_backfill(
    capture: HubCapture,
    starts: Mapping[str, int],
    *,
    new_id: Callable[[], str],
    at_ms: int,
    created_ms: int = 0,
) -> list[CaptureRun]:
    """New runs for the events from `starts` on that precede the current run and are in no other
    run, finished ones included. One run has at most one gap of each partition. Empty where there is
    nothing to capture or no current run."""
    current = next((run for run in capture.runs if not run.is_over), None)
    if current is None:
        return []
    covered = (capture.past or CaptureHistory()).covered
    gaps: dict[str, list[SequenceRange]] = {}
    for key, first in starts.items():
        end = current.starts.get(key, first)
        own = [(run.starts.get(key, 0), (run.stops or {}).get(key, 0)) for run in capture.runs]
        captured = merge_ranges([*covered.get(key, ()), *own])
        gaps[key] = list(find_gaps(min(first, end), end, captured))
    runs = []
    for index in range(max(map(len, gaps.values()), default=0)):
        ranges = {
            key: own[index] if index < len(own) else (current.starts.get(key, 0),) * 2
            for key, own in gaps.items()
        }
        runs.append(
            CaptureRun(
                id=new_id(),
                on_ms=at_ms,
                starts={key: first for key, (first, _) in ranges.items()},
                named_s=created_ms // 1000,
                # Names of its files end before those of the current run begin.
                off_ms=current.on_ms,
                stops={key: end for key, (_, end) in ranges.items()},
                is_backfill=True,
            )
        )
    return runs


def finish_run(capture: HubCapture, run: CaptureRun, **written: Any) -> HubCapture:
    """The state without a run that is over, all of whose events are in files. `written` has the
    run's files, events, lost, last_file and last_file_ms for the history."""
    past, new = capture.past or CaptureHistory(), CaptureHistory(**written)
    covered = dict(past.covered)
    for key, end in (run.stops or {}).items():
        ranges = [*covered.get(key, ()), (run.starts.get(key, end), end)]
        covered[key] = merge_ranges(ranges)[-RANGES_MAX:]
    last_file_ms, last_file = max(
        (past.last_file_ms, past.last_file), (new.last_file_ms, new.last_file)
    )
    history = CaptureHistory(
        files=past.files + new.files,
        events=past.events + new.events,
        lost=past.lost + new.lost,
        last_file=last_file,
        last_file_ms=last_file_ms,
        covered=covered,
    )
    others = [other for other in capture.runs if other.id != run.id]
    return msgspec.structs.replace(capture, runs=others, past=history)


def add_location(places: Sequence[FileLocation], place: FileLocation) -> list[FileLocation]:
    """Each location once, the newest last."""
    return [*(other for other in places if other != place), place][-LOCATIONS_MAX:]


def merge_ranges(ranges: Iterable[SequenceRange]) -> list[SequenceRange]:
    """
    >>> merge_ranges([(5, 9), (0, 3), (3, 4), (7, 12), (2, 2)])
    [(0, 4), (5, 12)]
    """
    merged: list[SequenceRange] = []
    for first, end in sorted(ranges):
        if first >= end:
            continue
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((first, end))
    return merged


def find_gaps(first: int, end: int, merged: Iterable[SequenceRange]) -> Iterable[SequenceRange]:
    """What of a range is in none of the others, which `merge_ranges` returned.

    >>> list(find_gaps(0, 10, [(2, 3), (5, 12)]))
    [(0, 2), (3, 5)]
    """
    for other_first, other_end in merged:
        if first < min(other_first, end):
            yield first, min(other_first, end)
        first = max(first, other_end)
    if first < end:
        yield first, end
