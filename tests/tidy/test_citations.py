"""Every citation of a document resolves: the file exists, and so does the section.

Looked at are comments and docstrings of Python files, and the whole text of other source files.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

FOLDERS = ("src", "tests", "benchmarks", "tools")
ROOT_FILES = ("setup.py", "pyproject.toml")
OTHER_SUFFIXES = frozenset((".pyx", ".pxd", ".js", ".mjs", ".go", ".java", ".sh", ".toml"))
NUMBERED = "protocol.md"  # the only document with numbered sections

_DOCUMENT = re.compile(r"[\w./-]*\b[\w-]+\.md\b")
_SECTION = r"(?:E[1-9]\d?|\d+(?:\.\d+)?)\b"
_SECTIONS = re.compile(rf"\s+{_SECTION}(?:(?:\s*[,-]\s*|\s+(?:and|to)\s+){_SECTION})*")
_NUMBER = re.compile(_SECTION)
_RULE = re.compile(r"\bE[1-9]\d?\b")
_STYLE = re.compile(r"\bstyle \d+\b")  # of a guide that is not in the repository
_ANY = re.compile(rf"\.md\b|{_RULE.pattern}|{_STYLE.pattern}")  # most files cite nothing
_HEADING = re.compile(r"^#{2,4} (E\d+|\d+(?:\.\d+)?)(?:\. | |$)", re.MULTILINE)


@pytest.fixture(scope="module")
def sections(root: Path) -> frozenset[str]:
    """The numbers of the sections and of the encoding rules."""
    numbers = _HEADING.findall((root / "docs" / NUMBERED).read_text())
    assert len(numbers) == len(set(numbers)), "a section number occurs twice"
    return frozenset(numbers)


def test_citations_resolve(
    repository_files: list[Path], root: Path, sections: frozenset[str]
) -> None:
    unresolved = [
        f"{name}:{line}: {fault}"
        for file in repository_files
        if _is_source(name := file.relative_to(root))
        for line, text in _texts(file)
        for fault in _faults(text, root, sections)
    ]
    assert unresolved == []


@pytest.mark.parametrize(
    ("text", "faults"),
    [
        ("(protocol.md 5.3)", []),
        ("protocol.md E1-E15, 13: each", []),
        ("(protocol.md 3 and 13), then 77", []),
        ("docs/explanation/security.md, README.md", []),
        ("E0 -> F0", []),
        ("(protocol.md 5.3, 9.9)", ["no section 9.9 in protocol.md"]),
        ("(E4, E23)", ["no section E23 in protocol.md"]),
        ("docs/absent.md", ["no document docs/absent.md"]),
        ("(decisions.md 3)", ["decisions.md has no numbered sections"]),
        ("(style " + "16)", ["no document for 'style " + "16'"]),
    ],
)
def test_the_check_sees_what_does_not_resolve(
    text: str, faults: list[str], root: Path, sections: frozenset[str]
) -> None:
    assert _faults(text, root, sections) == faults


def _is_source(name: Path) -> bool:
    if name.name in ROOT_FILES and len(name.parts) == 1:
        return True
    return name.parts[0] in FOLDERS and (name.suffix == ".py" or name.suffix in OTHER_SUFFIXES)


def _faults(text: str, root: Path, sections: frozenset[str]) -> list[str]:
    faults = [f"no document for '{style}'" for style in _STYLE.findall(text)]
    cited = set(_RULE.findall(text))
    for match in _DOCUMENT.finditer(text):
        document = match.group()
        following = _SECTIONS.match(text, match.end())
        if not any((folder / document).is_file() for folder in (root, root / "docs")):
            faults.append(f"no document {document}")
        elif Path(document).name == NUMBERED:
            cited.update(_NUMBER.findall(following.group()) if following else ())
        elif following:
            faults.append(f"{document} has no numbered sections")
    faults += [f"no section {number} in {NUMBERED}" for number in sorted(cited - sections)]
    return faults


def _texts(file: Path) -> Iterator[tuple[int, str]]:
    """Texts that may hold a citation, each with its first line; a comment of several lines is one
    text, since a citation may be broken."""
    source = file.read_text()
    if file.suffix != ".py":
        yield from enumerate(source.splitlines(), 1)
        return
    if _ANY.search(source) is None:
        return
    yield from _docstrings(ast.parse(source))
    yield from _comments(source)


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Strings that are statements: docstrings, and those that follow an attribute."""
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Constant)
            and isinstance(node.value.value, str)
        ):
            yield node.lineno, node.value.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    begin, end, parts = 0, 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line = token.start[0]
        if line != end + 1:
            if parts:
                yield begin, " ".join(parts)
            begin, parts = line, []
        end = line
        parts.append(token.string.lstrip("# "))
    if parts:
        yield begin, " ".join(parts)
