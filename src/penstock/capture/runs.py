"""From switching Capture on to switching it off: a run, and exactly which events are its own.

Pure. The service writes down where the log stood when Capture was switched on or off, so that what
is captured does not depend on when a job comes to it: a run that is over is finished by whoever
runs next. Captured history (`backfill`) is a run that is over when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

RUNS_MAX = 64  # that are over and not finished yet; the oldest makes room
ENDED_MAX = 32  # that are done and still told of; the oldest makes room
PLACES_MAX = 16  # where files were put before settings were changed


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`starts` is the first event of each partition that is wanted, `stops` the first that is not
    any more. Names of its files are later than `named_s`."""

    id: str
    on_ms: int
    starts: dict[str, int]
    named_s: int = 0
    off_ms: int | None = None
    stops: dict[str, int] | None = None
    is_backfill: bool = False  # of events from before: names in between may be taken

    @property
    def is_over(self) -> bool:
        return self.stops is not None


class Ended(Run, frozen=True, kw_only=True, omit_defaults=True):
    """A run that is over and done: all that it wanted is in files."""

    files: int = 0
    events: int = 0
    lost: int = 0
    last_file: str = ""
    last_file_ms: int = 0


class FilesPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where a hub's files were put under some settings, and what they are called there."""

    account: str
    container: str
    name_format: str


def runs_of(kept: object) -> list[Run]:
    """Of what the catalog keeps."""
    return msgspec.convert(kept or [], list[Run])


def kept_of(runs: Sequence[Run]) -> object:
    return msgspec.to_builtins(list(runs[-RUNS_MAX:]))


def switched_on(
    runs: Sequence[Run], ends: Mapping[str, int], *, run_id: str, at_ms: int, created_ms: int = 0
) -> list[Run]:
    """`ends` is the next event of each partition. Names are later than the hub's creation, also
    where the clock was set back since: those before it are of a hub that was deleted."""
    named_s = max(at_ms, created_ms) // 1000
    new = Run(id=run_id, on_ms=at_ms, starts=dict(ends), named_s=named_s)
    return [*runs, new]


def switched_off(runs: Sequence[Run], ends: Mapping[str, int], *, at_ms: int) -> list[Run]:
    """What came before that moment is still captured."""
    return [
        run
        if run.is_over
        else msgspec.structs.replace(run, off_ms=at_ms, stops=_not_before(run.starts, ends))
        for run in runs
    ]


def backfilled(
    runs: Sequence[Run],
    ended: Sequence[Run],
    starts: Mapping[str, int],
    *,
    new_id: Callable[[], str],
    at_ms: int,
    created_ms: int = 0,
) -> list[Run]:
    """Runs of what lies before the running one and in none of the others, ended ones included:
    one for each gap between them. None when there is nothing, or no running one."""
    current = next((run for run in runs if not run.is_over), None)
    if current is None:
        return []
    # Never behind the running one: so all runs stand in one order in every partition.
    reached = {key: min(first, current.starts.get(key, first)) for key, first in starts.items()}
    made = []
    for run in sorted((*ended, *runs), key=lambda each: sum(each.starts.values())):
        stops = {key: max(reached[key], run.starts.get(key, 0)) for key in reached}
        if stops != reached:
            # Names of its files end before those of the run that follows begin.
            off_ms = current.on_ms if run.is_backfill else run.on_ms
            made.append(
                Run(
                    id=new_id(),
                    on_ms=at_ms,
                    starts=dict(reached),
                    named_s=created_ms // 1000,
                    off_ms=off_ms,
                    stops=stops,
                    is_backfill=True,
                )
            )
        if run is current:
            break
        ends = run.stops or {}
        reached = {key: max(stops[key], ends.get(key, 0)) for key in reached}
    return made


def finished(runs: Sequence[Run], run_id: str) -> tuple[list[Run], Run | None]:
    """Without one that is over and done; and that one."""
    done = next((run for run in runs if run.id == run_id and run.is_over), None)
    return [run for run in runs if run is not done], done


def ended_of(kept: object) -> list[Ended]:
    return msgspec.convert(kept or [], list[Ended])


def with_ended(kept: object, run: Run, **wrote: Any) -> object:
    """What the catalog keeps of runs that are done, with one more."""
    fields = {name: getattr(run, name) for name in run.__struct_fields__}
    return msgspec.to_builtins([*ended_of(kept), Ended(**fields, **wrote)][-ENDED_MAX:])


def places_of(kept: object) -> list[FilesPlace]:
    return msgspec.convert(kept or [], list[FilesPlace])


def with_place(kept: object, place: FilesPlace) -> object:
    """What the catalog keeps of places that are left, with one more, each once."""
    others = [each for each in places_of(kept) if each != place]
    return msgspec.to_builtins([*others, place][-PLACES_MAX:])


def _not_before(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
    return {key: max(first, ends.get(key, first)) for key, first in starts.items()}
