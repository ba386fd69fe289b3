"""tools/setup.py: which level is installed when, and what it prints meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tools import setup


class Installer:
    """Replaces what runs pip and uv; notes what would be installed and removed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        venv = root / ".venv"
        venv.mkdir(parents=True)
        monkeypatch.setattr(setup, "ROOT", root)
        monkeypatch.setattr(setup, "VENV", venv)
        monkeypatch.setattr(setup, "STAMP", venv / "setup-stamp")
        monkeypatch.setattr(setup, "LOCK", root / "requirements.lock")
        (root / "src").mkdir()
        (root / "pyproject.toml").write_text("[project]\n")
        (root / "setup.py").write_text("")
        self.lock = root / "requirements.lock"
        self.lock.write_text(
            "# 'make serve' installs: pyspark typer\n"
            "cython==3.1 \\\n    --hash=sha256:1\npyspark==4.2 \\\n    --hash=sha256:2\n"
            "python-qpid-proton==0.40 \\\n    --hash=sha256:3\nruff==0.9 \\\n    --hash=sha256:4\n"
            "setuptools==80 \\\n    --hash=sha256:5\ntyper==1.0 \\\n    --hash=sha256:6\n"
            "uv==0.5 \\\n    --hash=sha256:7\n"
        )
        self.installed: list[str] = []
        self.kept: set[str] = set()
        self.fails = False
        monkeypatch.setattr(setup, "create_venv", lambda: None)
        monkeypatch.setattr(setup, "install_entries", self._install)
        monkeypatch.setattr(setup, "install_penstock", lambda: self.installed.append("penstock"))
        monkeypatch.setattr(setup, "remove_strangers", self._keep)

    def _install(self, entries: list[str], *, quiet: bool = False) -> bool:
        self.installed += [entry.partition("==")[0] for entry in entries]
        return not self.fails

    def _keep(self, known: set[str]) -> None:
        self.kept = known

    def build(self, level: str) -> list[str]:
        """What a run for the level installs; empty if nothing is to be done."""
        self.installed.clear()
        if not setup.is_up_to_date(level):
            setup.build_environment(level)
        return list(self.installed)


@pytest.fixture
def installer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    return Installer(monkeypatch, tmp_path / "checkout")


TOOLS = ["uv", "setuptools", "cython"]


def test_each_level_contains_the_one_before(installer: Installer) -> None:
    assert installer.build("wheel") == TOOLS
    assert installer.build("serve") == [*TOOLS, "pyspark", "typer", "penstock"]
    assert installer.kept == {*TOOLS, "pyspark", "typer", *setup.NOT_LOCKED}
    # Penstock is installed, from the same files: it is not built again.
    assert installer.build("all") == [*TOOLS, "pyspark", "ruff", "typer", "python-qpid-proton"]
    assert "ruff" in installer.kept


def test_an_environment_is_made_once_and_never_reduced(installer: Installer) -> None:
    installer.build("all")
    assert [installer.build(level) for level in setup.LEVELS] == [[], [], []]
    installer.lock.write_text(installer.lock.read_text() + "zope==1 \\\n    --hash=sha256:8\n")
    assert {"ruff", "zope", "penstock"} <= set(installer.build("serve"))
    assert "ruff" in installer.kept


def test_an_environment_of_before_there_were_levels_is_complete(installer: Installer) -> None:
    setup.STAMP.write_text("0" * 64)
    assert "ruff" in installer.build("serve")


def test_what_failed_is_done_again(installer: Installer) -> None:
    installer.build("serve")
    installer.lock.write_text(installer.lock.read_text().replace("4.2", "4.3"))
    installer.fails = True
    with pytest.raises(setup.SetupError, match="run the same command again"):
        installer.build("serve")
    installer.fails = False
    installer.lock.write_text(installer.lock.read_text().replace("4.3", "4.2"))  # as it was
    assert "pyspark" in installer.build("serve")


def test_a_lock_without_the_names_says_what_to_run(installer: Installer) -> None:
    installer.lock.write_text("uv==0.5 \\\n    --hash=sha256:7\n")
    with pytest.raises(setup.SetupError, match="make lock"):
        installer.build("serve")


def test_a_working_step_prints_a_line_before_two_seconds_are_over(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    progress = setup.Progress()
    assert progress.tick_s < 2
    monkeypatch.setattr(progress, "tick_s", 0.001)
    monkeypatch.setattr(setup, "progress", progress)
    sizes = iter((1_000_000, 4_000_000))
    monkeypatch.setattr(setup, "directory_bytes", lambda directory: next(sizes))
    progress.start("Setting up")
    progress.begin("packages")
    assert setup.run([sys.executable, "-c", "pass"])
    progress.end()
    lines = capfd.readouterr().out.splitlines()
    assert lines[:3] == ["Setting up", "packages ...", "packages ... 0 s"]
    assert lines[-1].startswith("packages: 3 MB in ")


def test_output_of_a_command_is_shown_only_when_it_fails(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert setup.run([sys.executable, "-c", "print('all is well')"])
    assert not setup.run([sys.executable, "-c", "raise SystemExit('no such package')"])
    assert not setup.run(["/nonexistent/uv"])
    captured = capfd.readouterr()
    assert "no such package" in captured.err
    assert "all is well" not in captured.out + captured.err


def test_an_unknown_level_is_a_usage_error() -> None:
    done = subprocess.run(
        [sys.executable, setup.__file__, "everything"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr == "usage: tools/setup.sh [wheel | serve | all]\n"


def test_packages_that_the_level_does_not_have_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("typing_extensions-4.1", "penstock-0.1.0", "penstock_eventhubs-0.2.0"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    commands: list[list[str]] = []

    def note(command: list[str]) -> bool:
        commands.append([str(word) for word in command])
        return True

    monkeypatch.setattr(setup, "VENV", tmp_path)
    monkeypatch.setattr(setup, "run", note)
    setup.remove_strangers({"typing-extensions", *setup.NOT_LOCKED})
    assert [command[-1] for command in commands] == ["penstock"]
    commands.clear()
    setup.remove_strangers({"typing-extensions", "penstock", *setup.NOT_LOCKED})
    assert commands == []


def test_a_second_make_waits_for_the_first_and_says_so(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "tools").mkdir()
    monkeypatch.setattr(setup, "ROOT", tmp_path)
    progress = setup.Progress()
    monkeypatch.setattr(setup, "progress", progress)
    first = setup.lock_environment()

    def release(seconds: float) -> None:
        assert seconds < 2
        os.close(first)

    monkeypatch.setattr(time, "sleep", release)
    os.close(setup.lock_environment())
    assert capfd.readouterr().out.startswith("waiting for another make")
