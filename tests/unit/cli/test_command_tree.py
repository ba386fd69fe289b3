"""The command tree: summaries, examples, exit codes, and the cost of `penstock --help`."""

from __future__ import annotations

import ast
import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from tools.cli_reference import updated

from penstock.cli.app import COMMANDS, app, describe_error, run, take_verbose
from penstock.cli.command_tree import CommandEntry, PenstockCommand, load
from penstock.cli.exit_codes import ExitCode, exit_code
from penstock.cli.help import walk_commands
from penstock.management.permissions import Forbidden
from penstock.model import errors

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "cli.md"


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


def test_every_command_has_examples_that_parse() -> None:
    """The examples name existing commands, options and values; the shell's part is left out."""
    leaves = {
        path: command
        for path, command in commands().items()
        if isinstance(command, PenstockCommand)
    }
    assert len(leaves) > 60
    for path, command in leaves.items():
        assert command.examples, f"{path} has no example"
        for example in command.examples:
            words = shlex.split(example)
            end = next((n for n, word in enumerate(words) if word in ("|", "<", ">")), None)
            words = words[:end]
            name = " ".join(words[: len(path.split())])
            assert name == path, example
            command.make_context(path, words[len(path.split()) :])  # raises a usage error


def test_help_shows_examples_and_plain_types(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ("hub create", "serve", "usage", "audit"):
        with pytest.raises(SystemExit):
            app([*words.split(), "--help"])
        text = capsys.readouterr().out
        assert f"Examples:\n  penstock {words}" in text
        assert not re.search(r"<(str|int|path|list)", text)
        assert "%Y" not in text


def test_cli_uses_no_private_module_and_no_sql() -> None:
    source = Path(load.__code__.co_filename).parent
    for file in source.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for module in modules:
                assert "._" not in module, f"{file.name}: {module}"
                assert module not in ("click", "sqlite3", "typer.rich_utils"), f"{file.name}"


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
    assert text == updated(text), "run `python -m tools.cli_reference docs/reference/cli.md`"


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
        (FileNotFoundError("x"), 3),
        (OSError("x"), 1),
        (typer.BadParameter("x"), 2),
        (typer.Abort(), 1),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Exception) else str(each),
)
def test_error_has_its_exit_code(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_exit_codes_are_those_of_the_document() -> None:
    assert [code.name for code in ExitCode] == [
        *("DONE", "FAILED", "USAGE", "NOT_FOUND", "DENIED", "THROTTLED", "TIMED_OUT")
    ]
    assert list(ExitCode) == list(range(7))


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


def _run(words: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
    with pytest.raises(SystemExit) as ended:
        run()
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty directory, and neither environment nor contexts name a service."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)


NO_SERVICE = (
    *("hub list", "hub show x", "hub create x", "hub delete x --yes", "hub partitions x"),
    *(
        "hub alter x --status Active",
        "namespace list",
        "namespace show x",
        "namespace create x12345",
    ),
    *("namespace delete x --yes", "namespace set-units x 2", "group list x", "group show x y"),
    *("group create x y", "group delete x y --yes", "group lag x", "group seek x y --to latest"),
    *("policy list", "policy show x", "policy create x -r send", "policy delete x --yes"),
    *(
        "policy rotate x --yes",
        "policy connection-string",
        "token make",
        "token admin --role Reader",
    ),
    *(
        "token revoke x",
        "connections list",
        "connections kill x --yes",
        "audit",
        "status",
        "health",
    ),
    *("portal url", "pipeline list", "capture status", "capture disable x", "capture backfill x"),
    *("send x -t hello", "send orders --lines -", "tail x", "get x -p 0 --seq 1"),
    *("replay x --into y", "export x x.jsonl", "soak", "bench send", "bench recv", "bench e2e"),
    *("grant penstock --throughput-units 40 --by me", "usage"),
)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize("words", NO_SERVICE)
def test_no_service_has_one_exit_code(
    words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert _run(words, monkeypatch) == ExitCode.NOT_FOUND
    assert re.match("penstock: (No service |There is no catalog)", capfd.readouterr().err)


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("tail x --from yesterday", "yesterday"),
        ("tail x --filter 'json.a >'", "--filter"),
        ("tail x --format %q", "%q"),
        ("tail x --timeout soon", "--timeout"),
        ("tail x --timeout 0", "above 0"),
        ("send x -t hello --rate fast", "fast"),
        ("send x -t hello --patience long", "--patience"),
        ("replay x --into y --from yesterday", "yesterday"),
        ("export x x.jsonl --from yesterday", "yesterday"),
        ("soak --rate fast", "fast"),
        ("hub create x --retention 90m", "whole hours"),
        ("hub alter x", "--retention"),
        ("policy create x -r everything", "everything"),
        ("policy create x", "--right"),
        ("policy connection-string --key both", "both"),
        ("namespace create second --units many", "neither a number nor unlimited"),
        ("namespace set-units x many", "neither a number nor unlimited"),
        ("group lag x --interval soon", "--interval"),
        ("group seek x y", "--to"),
        ("token make --publisher d", "--publisher needs --hub"),
        ("token make --ttl soon", "--ttl"),
        ("token admin --role Reader --ttl soon", "--ttl"),
        ("token admin --role Janitor", "'reader', 'operator', 'owner'"),
        ("health --wait soon", "not a duration"),
        ("grant penstock --by me", "--throughput-units or --partitions"),
        ("usage --day --month", "exclude each other"),
        ("usage --since yesterday", "--since"),
        ("context add x", "--data"),
        ("context add x --connection-string - --admin-token -", "stdin"),
        ("context use", "--none"),
        ("context show", "No context is in use"),
        ("pipeline run x.py --master a --remote b", "exclude each other"),
        ("pipeline run x.py --trigger 1s --available-now", "exclude each other"),
        ("pipeline run x.py --restart often", "often"),
        ("pipeline run x.py --conf a=b", "spark.NAME=VALUE"),
        ("pipeline run x.py --set a", "NAME=VALUE"),
        ("spark submit", "Name the job to run"),
        ("portal password alice --role god", "god"),
        ("completion tcsh", "tcsh"),
        ("audit -n 0", "--newest"),
        ("help hub nope", "no command 'hub nope'"),
    ],
)
def test_wrong_option_is_reported_before_a_service_is_looked_for(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(words, monkeypatch) == ExitCode.USAGE
    error = capsys.readouterr().err
    assert error.startswith("penstock: ")
    assert said in error


@pytest.mark.usefixtures("nowhere")
@pytest.mark.parametrize(
    "words",
    [
        *("log verify nowhere", "log dump nowhere.log", "backup copy", "restore nowhere"),
        *("hub create x --capture nowhere.json", "emulator import nowhere.json"),
        *("pipeline run nowhere.py", "context show nobody", "context use nobody"),
        *("context delete nobody --yes", "hub list --context nobody"),
    ],
)
def test_missing_file_or_name_has_one_exit_code(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _run(words, monkeypatch) == ExitCode.NOT_FOUND
    assert re.search("nowhere|nobody|penstock-data", capsys.readouterr().err)


def test_protocol_texts_are_shown_on_request_only() -> None:
    told = (
        "put-token on $cbs was refused with status 404: The messaging entity 'sb://localhost/nope' "
        "could not be found. To know more visit https://aka.ms/sbResourceMgrExceptions. "
        "TrackingId:f1d9, SystemTracker:gateway5, Timestamp:2026-11-17T08:39:34"
    )
    plain = "There is no event hub 'nope' in the namespace at localhost."
    assert describe_error(errors.NotFound(told)) == plain
    assert describe_error(errors.NotFound(told), is_verbose=True) == told
    with_names = errors.NotFound("There is no event hub 'nope' in penstock. There are: orders.")
    with_names.__cause__ = errors.NotFound(told)
    assert describe_error(with_names) == str(with_names)
    assert describe_error(with_names, is_verbose=True) == f"{with_names}\n{told}"


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
    assert describe_error(errors.PenstockError(told)) == plain
    assert describe_error(errors.PenstockError(told), is_verbose=True) == told


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
