"""JSON as colored lines of text, with parts that fold."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

_FOLDED_AT = 3  # levels that are not folded
_DEPTH_MAX = 24  # of elements in elements: browsers cut off deeper ones
_INDENT = 2  # of `penstock.formats.body_view`
_TOKEN = re.compile(
    r'(?P<k>"(?:[^"\\]|\\.)*"(?=\s*:))|(?P<s>"(?:[^"\\]|\\.)*"?)'
    r"|(?P<n>-?\d[\d.eE+-]*)|(?P<b>\b(?:true|false|null|NaN|-?Infinity)\b)"
)
Token = tuple[str, str]  # class (k, s, n, b or none) and text


class JsonLine(msgspec.Struct):
    tokens: list[Token]
    inner: list[JsonLine] = []


def json_lines(text: str, find: str = "") -> list[JsonLine]:
    """Lines of formatted JSON (indented by two), which may be cut off. `find` is marked."""
    top: list[JsonLine] = []
    open_: list[list[JsonLine]] = [top]
    for line in text.split("\n"):
        depth = (len(line) - len(line.lstrip(" "))) // _INDENT
        while len(open_) > 1 and depth <= _FOLDED_AT + len(open_) - 2:
            open_.pop()
        made = JsonLine(list(_mark(_tokens(line), find)), [])
        open_[-1].append(made)
        folds = line.endswith(("{", "[")) and depth >= _FOLDED_AT
        if folds and len(open_) < _DEPTH_MAX:
            open_.append(made.inner)
    return top


def _tokens(line: str) -> Iterator[Token]:
    end = 0
    for found in _TOKEN.finditer(line):
        if found.start() > end:
            yield "", line[end : found.start()]
        yield found.lastgroup or "", found[0]
        end = found.end()
    if end < len(line):
        yield "", line[end:]


def _mark(tokens: Iterator[Token], find: str) -> Iterator[Token]:
    """Found text is a token of its own."""
    if not find:
        yield from tokens
        return
    pattern = re.compile(f"({re.escape(find)})", re.IGNORECASE)
    for kind, text in tokens:
        for index, part in enumerate(pattern.split(text)):
            if part:
                yield (f"{kind} hl".strip() if index % 2 else kind), part
