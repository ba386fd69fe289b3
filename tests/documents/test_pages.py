"""Every code block of every page is run, parsed, or says why not. `page.py` has the directives."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.documents.page import Block, read_blocks
from tests.documents.session import Session
from tests.documents.syntax import find_syntax_error

ROOT = Path(__file__).resolve().parents[2]
TOP = ("README.md", "CONTRIBUTING.md")
PAGES = sorted([*TOP, *(str(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*.md"))])


def blocks_of(page: str) -> list[Block]:
    return read_blocks(page, ROOT / page)


SPARK_PAGES = [page for page in PAGES if "<!-- test: spark -->" in (ROOT / page).read_text()]


@pytest.mark.parametrize("page", PAGES)
def test_blocks_can_be_parsed(page: str) -> None:
    errors = [
        f"{block.place}: {error}"
        for block in blocks_of(page)
        if (error := find_syntax_error(block)) is not None
    ]
    assert errors == []


@pytest.mark.sdk
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page: str, tmp_path: Path) -> None:
    with Session(tmp_path, blocks_of(page)) as session:
        session.run()


@pytest.mark.sdk
@pytest.mark.full("documents")
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", SPARK_PAGES or [pytest.param("", marks=pytest.mark.skip)])
def test_blocks_run_with_spark(page: str, tmp_path: Path) -> None:
    with Session(tmp_path, blocks_of(page), with_spark=True) as session:
        session.run()
