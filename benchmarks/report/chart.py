"""The chart of the docs, as SVG: bars per workload, Penstock's in a color of its own. The colors
follow the reader's light or dark scheme; the chart has its own background in both."""

from __future__ import annotations

from typing import Any
from xml.sax.saxutils import escape

_WIDTH = 860
_LEFT, _RIGHT = 150, 190  # the subject's name, the figure
_BAR, _GAP = 18, 5
_HEAD, _GROUP_HEAD, _GROUP_GAP = 64, 24, 16
_FONT = "font-family='system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif'"
# By class: light, dark.
_COLORS = {
    "paper": ("#ffffff", "#0d1117"),
    "frame": ("#d0d7de", "#30363d"),
    "ink": ("#1f2933", "#e6edf3"),
    "faint": ("#57606a", "#9198a1"),
    "ours": ("#0b7285", "#39c5cf"),
    "peer": ("#a8b3be", "#59636e"),
}


def draw(workloads: list[tuple[str, list[dict[str, Any]]]], subtitle: str) -> str:
    """`workloads`: a title and its rows, ours first; bars are relative within a workload."""
    parts: list[str] = []
    y = _HEAD
    for title, rows in workloads:
        parts.append(_text(16, y + 14, title[:1].upper() + title[1:], size=14, weight=600))
        y += _GROUP_HEAD
        most = max(row["events_per_s"] for row in rows)
        for row in rows:
            parts += _bar(y, row, most, rows[0])
            y += _BAR + _GAP
        y += _GROUP_GAP
    head = [
        _style(),
        f"<rect class='paper' x='0.5' y='0.5' width='{_WIDTH - 1}' height='{y - 1}' rx='8'/>",
        _text(16, 28, "Events per second, one broker core", size=18, weight=700),
        _text(16, 48, subtitle, size=12, color="faint"),
    ]
    size = f"width='{_WIDTH}' height='{y}' viewBox='0 0 {_WIDTH} {y}'"
    label = "role='img' aria-label='Events per second of Penstock and its peers'"
    body = "\n".join(head + parts)
    return f"<svg xmlns='http://www.w3.org/2000/svg' {size} {label} {_FONT}>\n{body}\n</svg>\n"


def _style() -> str:
    schemes = []
    for scheme in (0, 1):
        rules = [f".{name}{{fill:{colors[scheme]}}}" for name, colors in _COLORS.items()]
        rules.append(f".paper{{stroke:{_COLORS['frame'][scheme]}}}")
        schemes.append("".join(rules))
    light, dark = schemes
    return f"<style>{light}@media (prefers-color-scheme:dark){{{dark}}}</style>"


def _bar(y: int, row: dict[str, Any], most: float, ours: dict[str, Any]) -> list[str]:
    room = _WIDTH - _LEFT - _RIGHT
    width = max(2.0, room * row["events_per_s"] / most)
    is_ours = row is ours
    figure = format_rate(row["events_per_s"])
    if not is_ours:
        figure += f"   (Penstock: {format_ratio(ours['events_per_s'] / row['events_per_s'])})"
    middle = y + _BAR - 5
    return [
        _text(_LEFT - 8, middle, row["subject"], size=12, anchor="end"),
        f"<rect x='{_LEFT}' y='{y}' width='{width:.1f}' height='{_BAR}' rx='3' "
        f"class='{'ours' if is_ours else 'peer'}'/>",
        _text(_LEFT + width + 6, middle, figure, size=12, weight=600 if is_ours else 400),
    ]


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int,
    weight: int = 400,
    anchor: str = "start",
    color: str = "ink",
) -> str:
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' font-size='{size}' font-weight='{weight}' "
        f"text-anchor='{anchor}' class='{color}'>{escape(text)}</text>"
    )


def format_rate(events_per_s: float) -> str:
    """Three digits: 1.32 M, 482 k, 9.7 k.

    >>> format_rate(1_320_000), format_rate(482_400), format_rate(9_700), format_rate(12)
    ('1.32 M', '482 k', '9.7 k', '12')
    """
    if events_per_s >= 1e6:
        return f"{events_per_s / 1e6:.2f} M"
    if events_per_s >= 1e5:
        return f"{events_per_s / 1e3:.0f} k"
    return f"{events_per_s / 1e3:.1f} k" if events_per_s >= 1e3 else f"{events_per_s:.0f}"


def format_ratio(ratio: float) -> str:
    """
    >>> format_ratio(5.26), format_ratio(0.84), format_ratio(46.2)
    ('5.3x', '0.84x', '46x')
    """
    if ratio >= 10:
        return f"{ratio:.0f}x"
    return f"{ratio:.1f}x" if ratio >= 1 else f"{ratio:.2f}x"
