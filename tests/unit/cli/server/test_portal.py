"""`penstock portal password`: lines that the portal's user file takes."""

from __future__ import annotations

import tomllib

import pytest
import typer
from typer.testing import CliRunner

from penstock.cli.server.portal import app
from penstock.management.permissions import AdminRole
from penstock.portal.users import read_users, verify_password


def _run(*words: str, given: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["password", *words], input=given)
    return done.exit_code, done.stdout


def test_line_is_one_that_signs_in() -> None:
    code, line = _run("alice", "--role", "operator", given="correct horse\n")
    assert code == 0
    assert "correct horse" not in line
    text = f"[users]\n{line}"
    assert list(tomllib.loads(text)["users"]) == ["alice"]
    user = read_users(text, "users.toml")["alice"]
    assert user.role is AdminRole.OPERATOR
    assert verify_password("correct horse", user.password)


@pytest.mark.parametrize(
    ("words", "given"),
    [
        (("alice", "--role", "god"), "correct horse\n"),
        (("alice",), "short\n"),
        (('a"b',), "correct horse\n"),
    ],
)
def test_mistake_is_refused(words: tuple[str, ...], given: str) -> None:
    code, line = _run(*words, given=given)
    assert code == typer.BadParameter.exit_code
    assert "scrypt" not in line
