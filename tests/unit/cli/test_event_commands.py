"""Every command that publishes or reads events: its success, and each exit code of
docs/reference/cli.md."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., str]

COMMANDS = {
    "send": "send {hub} --text hello",
    "tail": "tail {hub} --from earliest --no-follow",
    "get": "get {hub} --partition 0 --seq 0",
    "replay": "replay {hub} --into target",
    "export": "export {hub} events.jsonl",
    "import": "import {hub} stored.jsonl",
    "soak": "soak --hub {hub} --minutes 0.01 --rate 50/s",
    "bench send": "bench send --hub {hub} --count 10 --batch 5",
    "bench recv": "bench recv --hub {hub} --count 1",
    "bench e2e": "bench e2e --hub {hub} --rate 50 --duration 0.2",
}
WRONG_OPTIONS = {
    "send": ("--key a --partition 0", "partition"),
    "tail": ("--from yesterday", "yesterday"),
    "get": ("--format %q", "%q"),
    "replay": ("--speed fast", "fast"),
    "export": ("--format csv", "csv"),
    "import": ("--rate soon", "soon"),
    "soak": ("--minutes 0", "--minutes"),
    "bench send": ("--batch 0", "--batch"),
    "bench recv": ("--credit 0", "--credit"),
    "bench e2e": ("--size 1", "--size"),
}
each_command = pytest.mark.parametrize("command", COMMANDS)


@pytest.fixture
def stored(penstock: Run, tmp_path: Path) -> None:
    """An event hub `readings` whose partition 0 begins with `first`, `target`, a file to import."""
    penstock("hub create readings --if-absent")
    penstock("hub create target --if-absent")
    penstock("send readings --partition 0 --text first")
    (tmp_path / "stored.jsonl").write_text(json.dumps({"body": "from a file"}) + "\n")


@pytest.mark.usefixtures("stored")
@each_command
def test_success(penstock: Run, command: str, tmp_path: Path) -> None:
    printed = penstock(COMMANDS[command].format(hub="readings"))
    match command:
        case "send":
            assert "hello" in penstock("tail readings --from earliest --no-follow")
        case "tail" | "get":
            assert "first" in printed
        case "replay":
            assert "first" in penstock("tail target --from earliest --no-follow")
        case "export":
            assert "first" in (tmp_path / "events.jsonl").read_text()
        case "import":
            assert "from a file" in penstock("tail readings --from earliest --no-follow")
        case "soak":
            assert "lost" in printed
        case _:
            assert "seconds" in printed


@pytest.mark.usefixtures("stored")
@each_command
def test_unknown_hub_is_not_found(penstock: Run, command: str) -> None:
    penstock(COMMANDS[command].format(hub="nowhere"), code=3, said="nowhere")


@pytest.mark.usefixtures("stored")
@each_command
def test_wrong_key_is_denied(penstock: Run, command: str) -> None:
    text = penstock("policy connection-string RootManageSharedAccessKey").strip()
    before, _, _ = text.partition("SharedAccessKey=")
    wrong = f"{before}SharedAccessKey=bm9ib2R5J3Mga2V5"
    penstock(f"{COMMANDS[command].format(hub='readings')} --connection-string '{wrong}'", code=4)


@pytest.mark.usefixtures("stored")
@each_command
def test_without_a_service_nothing_is_found(penstock: Run, command: str) -> None:
    penstock(f"{COMMANDS[command].format(hub='readings')} --data absent", code=3, said="absent")


@each_command
def test_wrong_option_is_refused_before_a_service_is_looked_for(
    penstock: Run, command: str
) -> None:
    option, said = WRONG_OPTIONS[command]
    penstock(
        f"{COMMANDS[command].format(hub='readings')} {option} --data absent", code=2, said=said
    )


@pytest.mark.usefixtures("stored")
def test_errors_of_one_command(penstock: Run, tmp_path: Path) -> None:
    penstock("get readings --partition 0 --seq 999", code=3, said="999")
    penstock("tail readings --partition 9 --no-follow", code=3, said="'9'")
    penstock("tail readings --group nobody --no-follow", code=3, said="nobody")
    penstock("replay readings --into nowhere", code=3, said="nowhere")
    penstock("import readings absent.jsonl", code=3, said="absent.jsonl")
    (tmp_path / "bad.jsonl").write_text("{\n")
    penstock("import readings bad.jsonl", code=1, said="bad.jsonl")
    penstock("export readings events.jsonl")
    penstock("export readings events.jsonl", code=2, said="--force")
    penstock("send readings --text x --patience 0 --timeout 0s", code=2)
