"""The code blocks of a Markdown page, each with the directives of the comments before it.

A directive is an HTML comment on a line of its own, before the block:

    <!-- test: skip REASON -->   not run; its syntax is still checked (sh, python)
    <!-- test: spark -->         run in `make test-full ARGS=documents` only
    <!-- test: background -->    keeps running until the end of the page
    <!-- test: file NAME -->     written to NAME, not run by itself
    <!-- test: output -->        what the block before prints; `...` matches anything

A Python block that begins with a comment `# NAME.py` is a file, too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

RUN = ("sh", "python", "sql")
PARSED = ("toml", "json", "yaml")
DIRECTIVES = ("skip", "spark", "background", "file", "output")
# Kinds that say together what they say alone.
COMBINATIONS = ({"spark", "background"}, {"spark", "output"})
_WITH_ARGUMENT = ("skip", "file")
_FENCE = re.compile(r"( *)(`{3,}|~{3,})\s*([\w+-]*)")
_DIRECTIVE = re.compile(r"\s*<!-- test: *(\S*) *(.*?) *-->\s*$")
_LIKE_DIRECTIVE = re.compile(r"(?<!`)<!--\s*test\b")  # not one that a page cites
_NAMED = re.compile(r"# (\w+\.py)\n")


class PageError(Exception):
    """A block or directive that the runner does not understand, with page and line."""


@dataclass
class Block:
    """One fenced block; `line` is that of its fence."""

    page: str
    line: int
    language: str
    text: str
    directives: dict[str, str] = field(default_factory=dict)

    @property
    def file(self) -> str | None:
        """Where the block is written instead of being run."""
        if "file" in self.directives:
            return self.directives["file"]
        named = _NAMED.match(self.text) if self.language == "python" else None
        return named[1] if named else None

    @property
    def is_spark(self) -> bool:
        return "spark" in self.directives

    @property
    def is_output(self) -> bool:
        return "output" in self.directives

    @property
    def is_run(self) -> bool:
        """Whether the block is a program that the test runs."""
        return (
            self.language in RUN
            and self.file is None
            and not self.is_output
            and "skip" not in self.directives
        )

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


def read_blocks(page: str, file: Path) -> list[Block]:
    """All fenced blocks of a page in their order; raises PageError."""
    return parse_blocks(page, file.read_text())


def parse_blocks(page: str, text: str) -> list[Block]:
    blocks: list[Block] = []
    lines = text.splitlines()
    pending: dict[str, str] = {}
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        fence = _FENCE.match(line)
        if fence is None:
            pending = _add_directive(f"{page}:{number}", line, pending)
            continue
        indent, marks, language = len(fence[1]), fence[2], fence[3]
        start = number
        while number < len(lines) and not lines[number].strip().startswith(marks):
            number += 1
        if number == len(lines):
            raise PageError(f"{page}:{start}: this block has no end")
        body = "".join(_unindent(each, indent) + "\n" for each in lines[start:number])
        number += 1
        block = Block(page, start, language, body, pending)
        _check(block, blocks)
        blocks.append(block)
        pending = {}
    return blocks


def _add_directive(place: str, line: str, pending: dict[str, str]) -> dict[str, str]:
    """The directives before the next block, after this line, which is not a fence."""
    directive = _DIRECTIVE.match(line)
    if directive is None:
        if _LIKE_DIRECTIVE.search(line):
            raise PageError(f"{place}: write <!-- test: NAME ARGUMENT --> on a line of its own")
        if pending and line.strip():
            raise PageError(f"{place}: a directive stands directly before its block")
        return pending
    name, argument = directive[1], directive[2]
    if name not in DIRECTIVES:
        raise PageError(f"{place}: no directive {name!r}; there are {', '.join(DIRECTIVES)}")
    if bool(argument) != (name in _WITH_ARGUMENT):
        needs = "needs a reason or name" if name in _WITH_ARGUMENT else "takes no argument"
        raise PageError(f"{place}: the directive {name} {needs}")
    if name in pending:
        raise PageError(f"{place}: the directive {name} stands here twice")
    combined = {*pending, name}
    if len(combined) > 1 and combined not in COMBINATIONS:
        raise PageError(f"{place}: these do not go together: {', '.join([*pending, name])}")
    return pending | {name: argument}


def _check(block: Block, before: list[Block]) -> None:
    if "background" in block.directives and block.language not in ("sh", "python"):
        raise PageError(f"{block.place}: only sh and python run in the background")
    if block.language == "sql" and block.is_run and not block.is_spark:
        raise PageError(f"{block.place}: sql runs with Spark: add the directive spark, or skip")
    if block.file is not None and (Path(block.file).is_absolute() or ".." in block.file):
        raise PageError(f"{block.place}: a file has a name in the page's directory")
    if block.is_output and not (before and before[-1].is_run):
        raise PageError(f"{block.place}: output belongs directly after a block that is run")
    if block.is_output and before[-1].is_spark:
        block.directives.setdefault("spark", "")


def _unindent(line: str, indent: int) -> str:
    """A block within a list is indented as its fence is."""
    return line[indent:] if line[:indent].isspace() else line
