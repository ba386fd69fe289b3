"""tools/release.py: what it refuses, asked through pip and an index of our own."""

from __future__ import annotations

import os
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tools import release

NAME = "penstock-eventhubs"
OURS = {"Author": ["Penstock contributors"]}


class Index:
    """The directory of a package index."""

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir()

    def add(self, name: str, metadata: str, *, file: str = "") -> None:
        directory = self._root / name
        directory.mkdir()
        file = file or f"{name.replace('-', '_')}-0.1-py3-none-any.whl"
        with zipfile.ZipFile(directory / file, "w") as wheel:
            info = f"{name.replace('-', '_')}-0.1.dist-info"
            text = f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1\n{metadata}"
            wheel.writestr(f"{info}/METADATA", text)
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
        (directory / "index.html").write_text(
            f'<!DOCTYPE html><a href="{file}" data-requires-python="&gt;=3.99">{file}</a>'
        )


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    directory = Index(tmp_path / "simple")
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        yield directory
        server.shutdown()
        thread.join()


def test_a_free_name_is_accepted(index: Index) -> None:
    assert release.check_name(NAME, OURS) == "not taken"


def test_our_own_earlier_version_is_accepted(index: Index) -> None:
    index.add(NAME, "Author: Penstock contributors\n")
    assert release.check_name(NAME, OURS) == "ours, version 0.1"


@pytest.mark.parametrize(
    "metadata",
    [
        "Summary: Lightweight flow tracing\nAuthor: Somebody Else\n",
        "Author: Penstock contributors\nProject-URL: Homepage, https://other.example\n",
        "",
    ],
)
def test_the_name_of_another_project_is_refused(index: Index, metadata: str) -> None:
    """Also when it asks for a Python that is not this one, as the project `penstock` does."""
    index.add(NAME, metadata)
    with pytest.raises(release.ReleaseError, match="belongs to another project"):
        release.check_name(NAME, OURS)


def test_a_name_whose_owner_cannot_be_seen_is_refused(index: Index) -> None:
    index.add(NAME, "", file="penstock_eventhubs-0.1.tar.gz")
    with pytest.raises(release.ReleaseError, match="whose it is cannot be checked"):
        release.check_name(NAME, OURS)


def test_files_that_pip_finds_elsewhere_are_not_the_index(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = Index(tmp_path / "links")
    local.add(NAME, "Author: Penstock contributors\n")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "links" / NAME))
    assert release.check_name(NAME, OURS) == "not taken"


def test_an_index_out_of_reach_is_a_refusal(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/simple")
    with pytest.raises(release.ReleaseError, match="could not be asked"):
        release.check_name(NAME, OURS)


def test_no_index_at_all_is_a_refusal(index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(release.ReleaseError, match="could not be asked"):
        release.check_name(NAME, OURS)


def test_our_distribution_says_whose_it_is() -> None:
    assert release.own_identity() == OURS
    assert release.NAME == NAME


def test_changelog_must_begin_with_the_version(tmp_path: Path) -> None:
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 0.3.0 (2026-11-20)\n\n## 0.2.0\n")
    release.check_changelog(tmp_path, "0.3.0")
    with pytest.raises(release.ReleaseError, match=r"begins with 0\.3\.0"):
        release.check_changelog(tmp_path, "0.2.0")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    (root / "file").write_text("")
    for command in (["init", "--quiet"], ["add", "file"], [*COMMIT, "first"]):
        git(root, *command)
    return root


COMMIT = ("-c", "user.name=T", "-c", "user.email=t@example.com", "commit", "--quiet", "-m")


def git(root: Path, *command: str) -> None:
    environ = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    subprocess.run(["git", *command], cwd=root, env=environ, check=True)


def test_files_that_are_not_in_the_commit_are_refused(checkout: Path) -> None:
    release.check_tree(checkout)
    (checkout / "other").write_text("")
    with pytest.raises(release.ReleaseError, match="other"):
        release.check_tree(checkout)
    with pytest.raises(release.ReleaseError, match="no git checkout"):
        release.check_tree(checkout.parent)


def test_upload_needs_the_tag_on_this_commit(checkout: Path) -> None:
    release.check_tag(checkout, "0.2.0", is_needed=False)
    with pytest.raises(release.ReleaseError, match=r"git tag -a v0\.2\.0"):
        release.check_tag(checkout, "0.2.0", is_needed=True)
    git(checkout, "tag", "v0.2.0")
    release.check_tag(checkout, "0.2.0", is_needed=True)
    git(checkout, *COMMIT, "second", "--allow-empty")
    with pytest.raises(release.ReleaseError, match="another commit"):
        release.check_tag(checkout, "0.2.0", is_needed=False)


@pytest.mark.parametrize("arguments", [[], ["--upload"]])
def test_nothing_is_uploaded_without_the_option(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded: list[Path] = []
    monkeypatch.setattr(release, "check_tag", lambda *, is_needed: None)
    monkeypatch.setattr(release, "check_and_build", lambda: [tmp_path / "wheel"])
    monkeypatch.setattr(release, "upload", uploaded.extend)
    assert release.main(arguments) == 0
    assert uploaded == ([tmp_path / "wheel"] if arguments else [])


def test_a_refusal_is_one_sentence_and_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*, is_needed: bool) -> None:
        raise release.ReleaseError("the tag v0.2.0 is on another commit.")

    monkeypatch.setattr(release, "check_tag", refuse)
    assert release.main([]) == 1
    assert capsys.readouterr().err == "Not released: the tag v0.2.0 is on another commit.\n"
