"""Charts of a page: what static/chart.js draws from an attribute of plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from penstock.formats.quantities import (
    format_duration,
    format_moment,
    format_number,
    format_size,
)
from penstock.model import metrics
from penstock.portal.page_request import PageRequest

RANGES_MS = {
    "15min": ("15 min", 900_000),
    "1h": ("1 h", 3_600_000),
    "6h": ("6 h", 21_600_000),
    "24h": ("24 h", 86_400_000),
    "7d": ("7 d", 604_800_000),
}
RANGE_DEFAULT = "1h"
_SPANS_MS = (300_000, 900_000, 1_800_000, 3_600_000, 21_600_000, 86_400_000, 604_800_000)
_NOTED_AFTER_MS = 1_500  # a sample is written a moment after its step
_SERIES_MAX = 5
IN, OUT = 1, 2  # colors: in is always the first, out the second
Values = Sequence[float | None]


class Series(msgspec.Struct, frozen=True):
    name: str
    color: int  # 1 to 6
    values: list[float | None]


class Chart(msgspec.Struct, frozen=True, kw_only=True):
    """`unit` is "B" for bytes, "ms" for milliseconds, else empty. Values begin with the first one
    that is known: chart.js fits the axis to them."""

    title: str
    unit_label: str
    series: list[Series]
    end_ms: int
    step_ms: int
    range_ms: int
    unit: str = ""
    kind: str = "lines"
    is_count: bool = False
    left_out: int = 0
    limit: float | None = None
    limit_name: str = ""
    begins_ms: int = 0  # of the values, if they begin after the range does

    @property
    def data(self) -> dict[str, Any]:
        """For the attribute."""
        return {
            "series": [msgspec.to_builtins(each) for each in self.series],
            "end": self.end_ms / 1000,
            "step": self.step_ms / 1000,
            "range": self.range_ms / 1000,
            "unit": self.unit,
            "kind": self.kind,
            "counts": self.is_count,
            "limit": self.limit,
            "limitName": self.limit_name,
            "note": f"no data before {format_moment(self.begins_ms)[11:]}",
        }

    @property
    def label(self) -> str:
        latest = ", ".join(f"{each.name} {self.latest(each)} now" for each in self.series)
        keys = "Arrow keys move along the time axis."
        return f"{self.title}, {self.unit_label}: {latest or 'no data'}. {keys}"

    def latest(self, series: Series) -> str:
        value = next((value for value in reversed(series.values) if value is not None), None)
        return format_size(value) if self.unit == "B" else format_number(value)


def chosen_range(visit: PageRequest) -> str:
    wanted = visit.query.get("range", RANGE_DEFAULT)
    return wanted if wanted in RANGES_MS else RANGE_DEFAULT


def time_ranges() -> list[tuple[str | None, str]]:
    """The parameter of an address and the label of each range; None for the default."""
    return [(None if key == RANGE_DEFAULT else key, label) for key, (label, _) in RANGES_MS.items()]


async def history(visit: PageRequest, hub: str | None, names: tuple[str, ...]) -> dict[str, Any]:
    """Metric history of the namespace or a hub over the chosen range. Of a young service it is the
    shortest span that holds the data, in shorter steps."""
    range_ms = RANGES_MS[chosen_range(visit)][1]
    series = await visit.backend.history(visit.namespace, hub, names, range_ms)
    span_ms = min(range_ms, _fitting_span_ms(series))
    if span_ms < range_ms:
        series = await visit.backend.history(visit.namespace, hub, names, span_ms)
    now_ms = visit.portal.clock.now_ms()
    lasted_ms = _lasted_ms(series["at_ms"], series["step_ms"], now_ms)
    return {**series, "last_ms": lasted_ms, "range_ms": range_ms}


def _fitting_span_ms(series: Mapping[str, Any]) -> int:
    at_ms = series["at_ms"]
    known = [
        index
        for values in series["values"].values()
        for index, value in enumerate(values)
        if value is not None
    ]
    if not known:
        return _SPANS_MS[0]
    age_ms = at_ms[-1] + 2 * series["step_ms"] - at_ms[min(known)]
    return next((span_ms for span_ms in _SPANS_MS if span_ms >= age_ms), _SPANS_MS[-1])


def _lasted_ms(at_ms: Sequence[int], step_ms: int, now_ms: int) -> int:
    """How much of the newest step is in the numbers: they are noted when ten seconds are over."""
    if not at_ms:
        return step_ms
    noted_ms = (now_ms - _NOTED_AFTER_MS) // metrics.STEP_MS * metrics.STEP_MS
    return min(max(noted_ms - at_ms[-1], metrics.STEP_MS), step_ms)


def per_second(series: Mapping[str, Any], name: str) -> list[float | None]:
    """Of a counter; the newest step is shorter while it lasts, or every curve would end in a fall.

    >>> series = {"values": {"x": [40, None, 10]}, "step_ms": 20_000, "last_ms": 10_000}
    >>> per_second(series, "x")
    [2.0, None, 1.0]
    """
    values: Sequence[int | None] = series["values"].get(name, [])
    lasted = [series["step_ms"]] * (len(values) - 1) + [series["last_ms"]]
    return [
        None if value is None else round(value * 1000 / max(1, ms), 3)
        for value, ms in zip(values, lasted[-len(values) :] if values else [], strict=True)
    ]


def chart(
    history: Mapping[str, Any],
    title: str,
    unit_label: str,
    series: Mapping[str, tuple[int, Values]],
    **options: Any,
) -> Chart:
    """`series` are color and values by name; `options` are fields of `Chart`."""
    at_ms, step_ms = history["at_ms"], history["step_ms"]
    shown = list(series.items())[:_SERIES_MAX]
    known = [
        index for _, (_, values) in shown for index, each in enumerate(values) if each is not None
    ]
    first, end = min(known, default=len(at_ms)), len(at_ms)
    if known and max(known) == end - 2:
        end -= 1  # the newest step has no value yet
    return Chart(
        title=title,
        unit_label=unit_label,
        series=[Series(name, color, list(values)[first:end]) for name, (color, values) in shown],
        end_ms=at_ms[end - 1] if at_ms else 0,
        step_ms=step_ms,
        range_ms=history["range_ms"],
        left_out=max(0, len(series) - _SERIES_MAX),
        begins_ms=at_ms[first] if first < len(at_ms) else 0,
        **options,
    )


def spark_path(values: Values, *, width: int = 88, height: int = 20) -> str:
    """The path of a small line; empty if fewer than two values are known.

    >>> spark_path([0, 10, None, 5])
    'M0.0 18.0L29.3 2.0L88.0 10.0'
    """
    known = [(index, value) for index, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    most = max(max(value for _, value in known), 1e-9)
    step = width / (len(values) - 1)
    points = (
        f"{index * step:.1f} {height - 2 - value / most * (height - 4):.1f}"
        for index, value in known
    )
    return "M" + "L".join(points)


def step_label(history: Mapping[str, Any]) -> str:
    """How long one step of a history is: "30 s"."""
    return format_duration(history["step_ms"] / 1000)
