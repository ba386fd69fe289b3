"""Tools of other languages: absent ones skip with one line, broken ones fail."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support import toolchains
from tests.support.toolchains import Absent, Preparation, Program


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchains, "BUILT", tmp_path / "built")


def program(folder: Path, output: str, *, needed: tuple[int, ...]) -> Program:
    """A program on no PATH that prints a version."""
    script = folder / "tool"
    script.write_text(f"#!{sys.executable}\nprint({output!r})\n")
    script.chmod(0o755)
    return Program((str(script),), ("--version",), lambda: needed, "tool.mod", "tool")


def preparation(*command: str, output: Path, source: Path) -> Preparation:
    return Preparation(
        ("tool",), (source,), lambda: [([sys.executable, "-c", *command], output.parent)], (output,)
    )


def test_missing_program_is_absent() -> None:
    missing = Program(("no-such-program",), (), lambda: (), "-", "-")
    with pytest.raises(Absent, match="no-such-program is not installed"):
        missing.find()


def test_older_program_is_absent_and_both_versions_are_named(tmp_path: Path) -> None:
    with pytest.raises(Absent, match=r"has version 1\.19\.8; tool\.mod asks for 1\.24"):
        program(tmp_path, "tool version v1.19.8", needed=(1, 24)).find()


@pytest.mark.parametrize("output", ["v20.20.2", "go version go1.26.8 linux", "javac 17.0.15"])
def test_sufficient_version_is_found(tmp_path: Path, output: str) -> None:
    found = program(tmp_path, output, needed=(1, 26)).find()
    assert found == str(tmp_path / "tool")


def test_preparation_that_fails_fails_the_test_with_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.write_text("1")
    failing = preparation(
        "raise SystemExit('no such module')", output=tmp_path / "out", source=source
    )
    monkeypatch.setitem(toolchains.PROGRAMS, "tool", program(tmp_path, "v1.0", needed=()))
    monkeypatch.setitem(toolchains.PREPARATIONS, "tool", failing)
    with pytest.raises(AssertionError, match="no such module"):
        toolchains.require("tool")


def test_preparation_runs_again_only_when_its_inputs_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, output = tmp_path / "source", tmp_path / "out"
    source.write_text("1")
    code = "open('out', 'a').write('x')"
    monkeypatch.setitem(toolchains.PROGRAMS, "tool", program(tmp_path, "v1.0", needed=()))
    monkeypatch.setitem(
        toolchains.PREPARATIONS, "tool", preparation(code, output=output, source=source)
    )
    for _ in range(2):
        toolchains.require("tool")
    assert output.read_text() == "x"
    source.write_text("2")
    toolchains.require("tool")
    assert output.read_text() == "xx"


def test_absent_tool_skips_with_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Program(("no-such-program",), (), lambda: (), "-", "-")
    monkeypatch.setitem(toolchains.PROGRAMS, "go", missing)
    with pytest.raises(pytest.skip.Exception, match=r"^no-such-program is not installed$"):
        toolchains.require("go")


def test_command_line_fails_when_a_tool_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = tmp_path / "source"
    source.write_text("1")
    failing = preparation("raise SystemExit(3)", output=tmp_path / "out", source=source)
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.setattr(toolchains, "PREPARATIONS", {"tool": failing})
    monkeypatch.setattr(toolchains, "PROGRAMS", {"tool": program(tmp_path, "v1", needed=())})
    assert toolchains.main() == 1
    assert "tool: FAILED" in capsys.readouterr().out


def test_version_of_each_project_file_is_read() -> None:
    assert toolchains.PROGRAMS["go"].needed() >= (1, 24)
    assert toolchains.PROGRAMS["node"].needed() >= (20, 0)
    assert toolchains.PROGRAMS["javac"].needed() >= (17,)


def test_runner_retries_nothing() -> None:
    """A failing test fails the run: `make test` is pytest itself, without a plugin for reruns."""
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--version", "--version"],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=toolchains.ROOT,
    )
    assert "rerun" not in (listed.stdout + listed.stderr).lower()
    makefile = (toolchains.ROOT / "Makefile").read_text()
    assert "--reruns" not in makefile and "--last-failed" not in makefile
