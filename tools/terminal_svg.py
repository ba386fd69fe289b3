"""A recorded terminal as an SVG that moves by CSS alone, since GitHub shows images without scripts.

The last screen stays where the reader asked for less motion, and where CSS animation is not known.
"""

from __future__ import annotations

from collections.abc import Sequence
from xml.sax.saxutils import escape

_CHARACTER, _LINE, _MARGIN, _HEAD = 8.43, 19, 16, 34  # pixels, at a font size of 14
_FONT = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono','Liberation Mono',monospace"
_PROMPT = "$ "

Frame = tuple[float, list[str]]  # seconds since the first one; the lines of the screen


def draw(frames: Sequence[Frame], *, title: str, columns: int, hold_s: float) -> str:
    """The frames again and again, the last one for `hold_s` seconds."""
    total_s = frames[-1][0] + hold_s
    rows = max(len(lines) for _, lines in frames)
    width = round(columns * _CHARACTER + 2 * _MARGIN)
    height = _HEAD + rows * _LINE + _MARGIN
    texts, rules = [], []
    for row in range(rows):
        for text, begin, end in _spans(frames, row):
            is_last = end == len(frames)
            name = f"t{begin}" + ("" if is_last else f"_{end}")
            rules.append((name, begin, end))
            y = _HEAD + (row + 1) * _LINE - 5
            state = "" if is_last else " h"
            texts.append(f"<text class='{name}{state}' y='{y}'>{_markup(text)}</text>")
    animations = "".join(
        _animation(name, frames, begin, end, total_s) for name, begin, end in sorted(set(rules))
    )
    style = (
        f"text{{font:14px {_FONT};white-space:pre;fill:#e6edf3}}"
        ".c{fill:#7ee787}.b{font-weight:600}.e{fill:#ff7b72;font-weight:600}"
        ".n{fill:#9198a1}.h{visibility:hidden}"
        f"@media (prefers-reduced-motion:no-preference){{{animations}}}"
    )
    dots = "".join(
        f"<circle cx='{20 + 18 * index}' cy='17' r='5.5' fill='{color}'/>"
        for index, color in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{width}' height='{height}' "
        f"viewBox='0 0 {width} {height}' role='img' aria-label='{escape(title)}'>"
        f"<style>{style}</style>"
        f"<rect x='.5' y='.5' width='{width - 1}' height='{height - 1}' rx='9' fill='#0d1117' "
        f"stroke='#30363d'/>{dots}"
        f"<text class='n' x='{width / 2:.0f}' y='22' text-anchor='middle'>{escape(title)}</text>"
        f"<g transform='translate({_MARGIN})'>\n" + "\n".join(texts) + "\n</g></svg>\n"
    )


def _spans(frames: Sequence[Frame], row: int) -> list[tuple[str, int, int]]:
    """Text of a row, with the first frame that shows it and the first that does not."""
    found: list[tuple[str, int, int]] = []
    for number, (_, lines) in enumerate(frames):
        text = lines[row] if row < len(lines) else ""
        if found and found[-1][0] == text:
            found[-1] = (text, found[-1][1], number + 1)
        else:
            found.append((text, number, number + 1))
    return [span for span in found if span[0].strip()]


def _animation(name: str, frames: Sequence[Frame], begin: int, end: int, total_s: float) -> str:
    def part(frame: int) -> str:
        return f"{100 * frames[frame][0] / total_s:.2f}%"

    steps = "0%{visibility:hidden}" if begin else ""
    steps += f"{part(begin)}{{visibility:visible}}"
    steps += "" if end == len(frames) else f"{part(end)}{{visibility:hidden}}"
    return (
        f"@keyframes k{name}{{{steps}}}"
        f".{name}{{animation:k{name} {total_s:.1f}s step-end infinite}}"
    )


def _markup(text: str) -> str:
    """Prompts and commands apart from what the commands print."""
    if text.startswith(_PROMPT):
        command = text.removeprefix(_PROMPT)
        kind = "e" if command.startswith("kill -9") else "n" if command.startswith("#") else "b"
        return f"<tspan class='c'>$</tspan> <tspan class='{kind}'>{escape(command)}</tspan>"
    return escape(text)
