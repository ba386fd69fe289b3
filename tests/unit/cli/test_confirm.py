"""Nothing is destroyed by accident, and no script hangs at a question."""

from __future__ import annotations

import io

import pytest
import typer

from penstock.cli.confirm import confirm
from penstock.model.errors import ConfigurationError


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_dry_run_wins_over_yes(capsys: pytest.CaptureFixture[str]) -> None:
    assert not confirm("It goes.", "orders", yes=True, dry_run=True)
    assert capsys.readouterr().err == "It goes. (Dry run: nothing was changed.)\n"


def test_yes_asks_nobody() -> None:
    assert confirm("It goes.", "orders", yes=True, dry_run=False)


def test_without_a_terminal_yes_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("orders\n"))
    with pytest.raises(ConfigurationError, match="--yes"):
        confirm("It goes.", "orders", yes=False, dry_run=False)


@pytest.mark.parametrize(("typed", "done"), [("orders", True), ("order", False), ("", False)])
def test_terminal_types_the_name(monkeypatch: pytest.MonkeyPatch, typed: str, done: bool) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(f"{typed}\n"))
    if done:
        assert confirm("It goes.", "orders", yes=False, dry_run=False)
    else:
        with pytest.raises(typer.Exit) as ended:
            confirm("It goes.", "orders", yes=False, dry_run=False)
        assert ended.value.exit_code == 1
