"""HTML by construction: text is escaped because there is no other way to put it in.

Everything that a page shows may come from an attacker (an event's body, a key, a hub's metadata).
A `str` is always text; an `int` is shown with thousands separators. Only `el` makes markup, and it
checks what browsers run: tags and attributes are the programmer's own words, addresses have a
harmless scheme.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from html import escape
from urllib.parse import quote, urlencode

from penstock.formats.body_view import escape_invisible

_NAME = re.compile(r"[a-z][a-z0-9-]*")
_VOID = frozenset(("br", "hr", "img", "input", "link", "meta", "path", "circle", "rect", "line"))
_ADDRESSES = frozenset(("href", "src", "action", "formaction"))
_HARMLESS = re.compile(r"(https?://|/(?!/)|#|\?|$)", re.IGNORECASE)


class Html:
    """Markup, made by the functions below."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


def el(tag: str, *children: object, **attributes: object) -> Html:
    """One element. An attribute's name loses a trailing underscore and gets hyphens for others
    (`class_`, `data_live`); None and False leave it out, True is an attribute without a value."""
    assert _NAME.fullmatch(tag), tag
    parts = ["<", tag]
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        real = name.rstrip("_").replace("_", "-")
        assert _NAME.fullmatch(real), real
        assert not real.startswith("on"), "handlers belong into a script"
        assert real != "style", "styles belong into the style sheet"
        if value is True:
            parts.append(f" {real}")
            continue
        text = str(value)
        if real in _ADDRESSES and _HARMLESS.match(text) is None:
            text = "#"  # javascript: and the like lead nowhere
        parts.append(f' {real}="{escape(escape_invisible(text))}"')
    parts.append(">")
    if tag in _VOID:
        assert not children
        return Html("".join(parts))
    parts.append(_inner(children))
    parts.append(f"</{tag}>")
    return Html("".join(parts))


def document(root: Html) -> bytes:
    return ("<!doctype html>\n" + root.text).encode("utf-8", "replace")


def path(*segments: str, **query: object) -> str:
    """An address of ours: every segment and value escaped. Empty segments, and values that are
    None, are left out."""
    text = "/" + "/".join(quote(segment, safe="$") for segment in segments if segment)
    known = {name.rstrip("_"): str(value) for name, value in query.items() if value is not None}
    return f"{text}?{urlencode(known)}" if known else text


def _inner(children: Iterable[object]) -> str:
    parts: list[str] = []
    for child in children:
        if child is None or child is False:
            continue
        if isinstance(child, Html):
            parts.append(child.text)
        elif isinstance(child, str):
            parts.append(escape(escape_invisible(child)))
        elif isinstance(child, int):
            parts.append(f"{child:,}")
        elif isinstance(child, Iterable):
            parts.append(_inner(child))
        else:
            raise TypeError(f"{type(child).__name__} cannot be shown.")
    return "".join(parts)
