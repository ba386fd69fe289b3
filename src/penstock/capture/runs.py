"""From switching Capture on to switching it off: a run, and exactly which events are its own.

Pure. The service writes down where the log stood when Capture was switched on or off, so that what
is captured does not depend on when a job comes to it: a run that is over is finished by whoever
runs next. Captured history (`backfill`) is a run that is over when it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

RUNS_MAX = 16  # that are over and not finished yet; the oldest makes room


class Run(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`starts` is the first event of each partition that is wanted, `stops` the first that is not
    any more. Names of its files are later than `named_s`."""

    id: str
    on_ms: int
    starts: dict[str, int]
    named_s: int = 0
    off_ms: int | None = None
    stops: dict[str, int] | None = None

    @property
    def is_over(self) -> bool:
        return self.stops is not None


def runs_of(kept: object) -> list[Run]:
    """Of what the catalog keeps."""
    return msgspec.convert(kept or [], list[Run])


def kept_of(runs: Sequence[Run]) -> object:
    return msgspec.to_builtins(list(runs[-RUNS_MAX:]))


def switched_on(
    runs: Sequence[Run], ends: Mapping[str, int], *, run_id: str, at_ms: int
) -> list[Run]:
    """`ends` is the next event of each partition."""
    new = Run(id=run_id, on_ms=at_ms, starts=dict(ends), named_s=at_ms // 1000)
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
    runs: Sequence[Run], starts: Mapping[str, int], *, run_id: str, at_ms: int
) -> Run | None:
    """A run of what lies before the running one; None when nothing does."""
    current = next((run for run in runs if not run.is_over), None)
    if current is None:
        return None
    own = {key: min(first, current.starts.get(key, first)) for key, first in starts.items()}
    stops = {key: current.starts.get(key, first) for key, first in own.items()}
    if own == stops:
        return None
    return Run(id=run_id, on_ms=at_ms, starts=own, off_ms=current.on_ms, stops=stops)


def finished(runs: Sequence[Run], run_id: str) -> list[Run]:
    """Without one that is over and done."""
    return [run for run in runs if run.id != run_id or not run.is_over]


def _not_before(starts: Mapping[str, int], ends: Mapping[str, int]) -> dict[str, int]:
    return {key: max(first, ends.get(key, first)) for key, first in starts.items()}
