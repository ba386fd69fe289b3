"""A terminal as an SVG: what is gone at the end moves, and the last screen needs no animation."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.terminal_svg import draw

SVG = "{http://www.w3.org/2000/svg}"
FRAMES = [(0.0, ["$ echo"]), (1.0, ["$ echo <a>"]), (3.0, ["$ echo <a>", "<a>"])]


def test_every_text_is_shown_in_its_time_and_the_last_screen_without_animation() -> None:
    root = ElementTree.fromstring(draw(FRAMES, title="echo", columns=40, hold_s=1.0))
    texts = {
        "".join(text.itertext()): text.attrib["class"].split() for text in root.iter(f"{SVG}text")
    }
    assert texts["$ echo"] == ["t0_1", "h"]
    assert texts["$ echo <a>"] == ["t1"]
    assert texts["<a>"] == ["t2"]
    (style,) = (style.text or "" for style in root.iter(f"{SVG}style"))
    moving = style.partition("prefers-reduced-motion:no-preference")[2]
    assert "kt0_1{0.00%{visibility:visible}25.00%{visibility:hidden}}" in moving
    assert "kt1{0%{visibility:hidden}25.00%{visibility:visible}}" in moving
    assert "kt2{0%{visibility:hidden}75.00%{visibility:visible}}" in moving
    assert moving.count("4.0s step-end infinite") == 3


def test_commands_and_kills_stand_out() -> None:
    svg = draw([(0.0, ["$ kill -9 %1", "$ # why"])], title="kill", columns=40, hold_s=1.0)
    assert "<tspan class='e'>kill -9 %1</tspan>" in svg
    assert "<tspan class='n'># why</tspan>" in svg
