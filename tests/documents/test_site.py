"""The site of the documents: built without a warning, complete, and independent of other hosts."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import toolchains

ROOT = Path(__file__).resolve().parents[2]
ZENSICAL = Path(sys.executable).parent / "zensical"
BUILD_DEADLINE_S = 60
BROWSER_DEADLINE_MS = 30_000
# What a browser loads by itself: not links that a reader may follow.
LOADED = re.compile(
    r"""(?:<(?:script|img|iframe|source)\b[^>]*\bsrc|<link\b[^>]*\bhref)="([^"]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", project / "docs")
    shutil.copy(ROOT / "zensical.toml", project)
    built = subprocess.run(
        [ZENSICAL, "build", "--strict", "--config-file", project / "zensical.toml"],
        env=os.environ | {"NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_DEADLINE_S,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return project / "build" / "site"


def test_every_page_is_built(site: Path) -> None:
    pages = {file.relative_to(ROOT / "docs").with_suffix("") for file in ROOT.glob("docs/**/*.md")}
    built = {file.relative_to(site).with_suffix("") for file in site.rglob("*.html")}
    assert built - {Path("404")} == pages


def test_pages_load_nothing_from_another_host(site: Path) -> None:
    loaded = {
        (str(page.relative_to(site)), target)
        for page in site.rglob("*.html")
        for target in LOADED.findall(page.read_text())
    }
    assert len(loaded) > 30
    assert [(page, target) for page, target in loaded if re.match(r"(\w+:)?//", target)] == []


def test_search_works_from_the_file_system(site: Path) -> None:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    chromium = toolchains.require("chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(BROWSER_DEADLINE_MS)
        requested: list[str] = []
        page.on("request", lambda request: requested.append(request.url))
        page.goto((site / "index.html").as_uri())
        page.keyboard.press("Control+k")
        page.keyboard.type("group commit")
        page.get_by_role("link", name=re.compile("Durability")).first.wait_for()
        browser.close()
    assert [url for url in requested if not url.startswith(("file:", "data:", "blob:"))] == []
