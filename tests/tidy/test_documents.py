"""Markdown: relative links, anchors and pictures exist; lines are short enough to read and compare.

Nothing here uses the network: links to other hosts are not followed.
"""

from __future__ import annotations

import html.parser
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

LINE_LENGTH_MAX = 120
_MARKDOWN = MarkdownIt("commonmark").enable("table")


@pytest.fixture(scope="session")
def pages(repository_files: list[Path]) -> list[Path]:
    found = [file for file in repository_files if file.suffix == ".md"]
    assert len(found) > 20
    return found


def test_links_and_pictures_exist(pages: list[Path], root: Path) -> None:
    broken = [
        f"{page.relative_to(root)}:{line}: {target}: {problem}"
        for page in pages
        for line, target in find_links(page.read_text())
        if (problem := find_problem(page, target, root)) is not None
    ]
    assert broken == []


def test_lines_are_short(pages: list[Path], root: Path) -> None:
    long = [
        f"{page.relative_to(root)}:{number}: {len(line)} characters"
        for page in pages
        for number, line in enumerate(page.read_text().splitlines(), 1)
        if is_too_long(line)
    ]
    assert long == []


def test_every_page_is_in_the_navigation_of_the_site(root: Path) -> None:
    site = tomllib.loads((root / "zensical.toml").read_text())["project"]
    listed = list(_nav_pages(site["nav"]))
    docs = root / site["docs_dir"]
    written = {str(file.relative_to(docs)) for file in docs.rglob("*.md")}
    assert len(listed) == len(set(listed))
    assert set(listed) == written


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("b.md", None),
        ("b.md#a--heading-with-code", None),
        ("#own", None),
        ("b.md#by-hand", None),
        ("sub/", None),
        ("https://example.com/nothing", None),
        ("c.md", "there is no such file"),
        ("b.md#none", "there is no such heading"),
        ("b.md#twice", "two headings are called so"),
        ("../README.md", "a page of docs/ links to pages of docs/ only: the site has no others"),
    ],
)
def test_each_kind_of_broken_link_is_found(
    tmp_path: Path, target: str, problem: str | None
) -> None:
    docs = tmp_path / "docs"
    (docs / "sub").mkdir(parents=True)
    (tmp_path / "README.md").touch()
    (docs / "b.md").write_text(
        '# A & heading, with `code`\n\n<a id="by-hand"></a>\n\n## Twice\n\n## Twice\n'
    )
    page = docs / "a.md"
    page.write_text(f"# Own\n\n[x]({target})\n")
    assert list(find_links(page.read_text())) == [(3, target)]
    assert find_problem(page, target, tmp_path) == problem


def test_links_are_found_in_each_form() -> None:
    text = '[a](1) ![b](2)\n\n<img src="3">\n\n| [c](4) |\n|---|\n| <a href="5">d</a> |\n'
    text += "\n[e][f]\n\n[f]: 6\n\n`[g](7)`\n\n```\n[h](8)\n```\n"
    assert [target for _, target in find_links(text)] == ["1", "2", "3", "4", "5", "6"]


def test_the_length_check_excepts_what_cannot_be_broken() -> None:
    assert is_too_long("a word " * 18)
    assert not is_too_long("x" * 119)
    assert not is_too_long("| a cell of a table |" * 9)
    assert not is_too_long("  [a]: https://example.com/" + "x" * 120)


def _nav_pages(entry: Any) -> Iterator[str]:
    """The paths in a navigation: lists of tables of one title and its page or list."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from _nav_pages(part)


def is_too_long(line: str) -> bool:
    """A row of a table has to be one line, and a single long word (an address) has no break."""
    is_row = line.lstrip().startswith("|")
    words = line.split()
    is_word = len(words) <= 2 and max(map(len, words), default=0) > LINE_LENGTH_MAX / 2
    return len(line) >= LINE_LENGTH_MAX and not is_row and not is_word


def find_links(text: str) -> Iterator[tuple[int, str]]:
    """Line and target of links and pictures."""
    line = 0
    for token in _MARKDOWN.parse(text):
        line = token.map[0] + 1 if token.map else line
        for part in (token, *(token.children or ())):
            for target in _targets(part):
                yield line, target


def _targets(token: Token) -> list[str]:
    if token.type in ("html_block", "html_inline"):
        return _read_html(token.content).targets
    target = token.attrGet("href") or token.attrGet("src")
    return [str(target)] if target else []


def find_problem(page: Path, target: str, root: Path) -> str | None:
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    file = (page.parent / unquote(parts.path)).resolve() if parts.path else page.resolve()
    if not file.exists():
        return "there is no such file"
    docs = (root / "docs").resolve()
    if page.resolve().is_relative_to(docs) and not file.is_relative_to(docs):
        return "a page of docs/ links to pages of docs/ only: the site has no others"
    if not parts.fragment:
        return None
    count = _anchors(file)[unquote(parts.fragment)]
    if count == 0:
        return "there is no such heading"
    return "two headings are called so" if count > 1 else None


@cache
def _anchors(page: Path) -> Counter[str]:
    """How often each anchor is in the page: headings, and ids in HTML."""
    found: Counter[str] = Counter()
    tokens = _MARKDOWN.parse(page.read_text())
    for before, token in zip([None, *tokens], tokens, strict=False):
        if before is not None and before.type == "heading_open":
            found[slug(token)] += 1
        for part in (token, *(token.children or ())):
            if part.type in ("html_block", "html_inline"):
                found.update(_read_html(part.content).ids)
    return found


def slug(heading: Token) -> str:
    """As GitHub makes it, and the site (zensical.toml)."""
    text = "".join(part.content for part in heading.children or ())
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


class _Html(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.targets.append(value)
            elif name in ("id", "name") and value:
                self.ids.append(value)


def _read_html(text: str) -> _Html:
    parser = _Html()
    parser.feed(text)
    return parser
