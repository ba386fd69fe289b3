"""The command tree: what it says of itself is what its commands say, and starting it is cheap."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from tools.cli_reference import updated

from penstock.cli.app import COMMANDS, app, exit_code, run, sentence, take_verbose
from penstock.cli.command_tree import CommandEntry, load
from penstock.cli.help import walk_commands
from penstock.management.permissions import Forbidden
from penstock.model import errors

DOCUMENT = Path(__file__).parents[3] / "docs" / "cli.md"


@functools.cache
def commands() -> dict[str, Any]:
    root: Any = typer.main.get_command(app)
    return {
        path: found
        for path, found, _ in walk_commands(root, typer.Context(root, info_name="penstock"))
    }


@pytest.mark.parametrize("entry", COMMANDS, ids=lambda entry: entry.name)
def test_entry_says_what_its_command_says(entry: CommandEntry) -> None:
    command = load(entry)
    assert command.help.partition("\n")[0] == entry.summary
    assert len(entry.summary) <= 65  # one line of `penstock --help` at 80 columns


def test_every_command_has_help_and_every_argument_a_name() -> None:
    for path, command in commands().items():
        assert command.help, path
        for parameter in command.params:
            if parameter.param_type_name == "argument":
                assert parameter.display_name_raw.isupper() or "|" in parameter.display_name_raw


def test_what_destroys_has_a_dry_run() -> None:
    destroying = [
        path
        for path in commands()
        if path.split()[-1] in ("delete", "kill", "rotate", "seek", "restore", "alter")
    ]
    assert len(destroying) >= 9
    for path in destroying:
        options = {option for each in commands()[path].params for option in each.opts}
        assert "--dry-run" in options, path


def test_lists_and_shows_give_json() -> None:
    for path, command in commands().items():
        if path.split()[-1] in ("list", "show", "lag", "partitions", "status", "audit", "verify"):
            assert "--output" in {option for each in command.params for option in each.opts}, path


def test_help_imports_no_command_and_no_table() -> None:
    """What keeps `penstock --help` below a third of a second."""
    code = (
        "import sys\n"
        "sys.argv = ['penstock', '--help']\n"
        "from penstock.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'rich', 'asyncio', 'msgspec', 'sqlite3', 'fastapi'}\n"
        "heavy.add('penstock.cli.entities.hub')\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "group" in done.stdout


def test_document_holds_the_commands_as_they_are() -> None:
    text = DOCUMENT.read_text()
    assert text == updated(text), "run `python -m tools.cli_reference docs/cli.md`"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFound("x"), 3),
        (errors.AuthFailed("x"), 4),
        (Forbidden("x"), 4),
        (errors.ServerBusy("x"), 5),
        (errors.OperationTimedOut("x"), 6),
        (TimeoutError("x"), 6),
        (errors.ConfigurationError("x"), 2),
        (errors.ArgumentError("x"), 1),
        (errors.ArgumentOutOfRange("x"), 1),
        (errors.AlreadyExists("x"), 1),
        (errors.DataDirectoryError("x"), 1),
        (OSError("x"), 1),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else str(each),
)
def test_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("sned", "penstock: No such command 'sned'. Did you mean 'send'? See `penstock --help`.\n"),
        ("hub create", "penstock: Missing argument 'NAME'. See `penstock hub create --help`.\n"),
    ],
)
def test_usage_errors_have_the_form_of_all_errors(
    words: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", *words.split()])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 2
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("words", ["hub list", "send orders --lines -", "tail orders"])
def test_no_service_has_one_exit_code(
    words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["penstock", *words.split(), "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("penstock: No service ")


def test_protocol_texts_are_shown_on_request_only() -> None:
    told = (
        "put-token on $cbs was refused with status 404: The messaging entity 'sb://localhost/nope' "
        "could not be found. To know more visit https://aka.ms/sbResourceMgrExceptions. "
        "TrackingId:f1d9, SystemTracker:gateway5, Timestamp:2026-11-17T08:39:34"
    )
    plain = "There is no event hub 'nope' in the namespace at localhost."
    assert sentence(errors.NotFound(told)) == plain
    assert sentence(errors.NotFound(told), is_verbose=True) == told
    with_names = errors.NotFound("There is no event hub 'nope' in penstock. There are: orders.")
    with_names.__cause__ = errors.NotFound(told)
    assert sentence(with_names) == str(with_names)
    assert sentence(with_names, is_verbose=True) == f"{with_names}\n{told}"


@pytest.mark.parametrize(
    ("told", "plain"),
    [
        (
            "The messaging entity 'sb://ns/a/b/ConsumerGroups/nobody' could not be found. To know "
            "more visit https://aka.ms/sbResourceMgrExceptions. TrackingId:f1d9, SystemTracker:x",
            "There is no consumer group 'nobody' of the event hub 'a/b' in the namespace at ns.",
        ),
        (
            "put-token on $cbs was refused with status 401: InvalidSignature: The token has an "
            "invalid signature. TrackingId:f1d9, SystemTracker:x, Timestamp:2026",
            "The name or the key of the shared access policy is wrong: check the connection "
            "string.",
        ),
    ],
    ids=["group", "key"],
)
def test_frequent_refusals_are_in_plain_words(told: str, plain: str) -> None:
    assert sentence(errors.PenstockError(told)) == plain
    assert sentence(errors.PenstockError(told), is_verbose=True) == told


@pytest.mark.parametrize(
    ("arguments", "own", "is_verbose"),
    [
        (["send", "x", "-v"], ["send", "x"], True),
        (["--verbose", "tail", "x"], ["tail", "x"], True),
        (["tail", "x", "--", "-v"], ["tail", "x", "--", "-v"], False),
        (["spark", "submit", "-v"], ["spark", "submit", "-v"], False),
        ([], [], False),
    ],
)
def test_verbose_may_stand_anywhere(arguments: list[str], own: list[str], is_verbose: bool) -> None:
    assert take_verbose(arguments) == (own, is_verbose)
