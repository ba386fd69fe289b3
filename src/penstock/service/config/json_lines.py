"""Where in a JSON text a path such as `UserConfig.NamespaceConfig[0].Name` stands.

The emulator's Config.json is refused by path; a person wants the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<sign>[{}\[\]:,])'
    r"|(?P<other>[^\s{}\[\]:,\"/]+)",
    re.DOTALL,
)
_PATH = re.compile(r"^(?P<file>.*?): (?P<path>[A-Za-z_][\w.\[\]]*)(?P<rest>[: ].*)$", re.DOTALL)
_BYTES_MAX = 1024 * 1024


def add_line_number(message: str, file: Path | None) -> str:
    """The message with the line put in, where it names a path of this file and no line yet."""
    found = _PATH.match(message)
    if file is None or found is None or found["file"] != str(file):
        return message
    with file.open(encoding="utf-8-sig", errors="replace") as opened:
        text = opened.read(_BYTES_MAX)
    if not text.lstrip().startswith(("{", "/")):
        return message
    lines = dict(line_numbers(text))
    path = found["path"]
    while path and path not in lines:  # the nearest that is there
        path = path.rpartition("[" if path.endswith("]") else ".")[0]
    if not path:
        return message
    return f"{file}, line {lines[path]}: {found['path']}{found['rest']}"


def line_numbers(text: str) -> Iterator[tuple[str, int]]:
    """Each key's and each item's path with its line. Good enough for messages."""
    stack: list[tuple[str, int | None]] = []  # what a value here is called; its index in a list
    path, key = "", ""
    for token in _TOKEN.finditer(text):
        if token.lastgroup == "comment":
            continue
        sign = token["sign"]
        line = text.count("\n", 0, token.start()) + 1
        in_list = bool(stack) and stack[-1][1] is not None
        if sign in ("}", "]"):
            if not stack:
                return
            stack.pop()
            path = stack[-1][0] if stack else ""
        elif sign == ",":
            if in_list:
                stack[-1] = (stack[-1][0], (stack[-1][1] or 0) + 1)
            key = ""
        elif sign == ":":
            continue
        elif not in_list and token["string"] is not None and not key:
            key = token["string"][1:-1]
            yield f"{path}.{key}".lstrip("."), line
        else:
            own = f"{path}[{stack[-1][1]}]" if in_list else f"{path}.{key}".strip(".")
            if in_list:
                yield own, line
            if sign in ("{", "["):
                stack.append((own, 0 if sign == "[" else None))
                path, key = own, ""
