"""Every command of the administration succeeds, and ends with the documented code where it must.

tests/system/test_cli.py drives the commands as users do. Events: test_event_commands.py.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_command_tree import commands

Run = Callable[..., str]


def rows(text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(text)
    return found


def test_hub_and_groups(penstock: Run) -> None:
    penstock("hub create life -p 4 --retention 7d --metadata note", said="Created the event hub")
    penstock("hub create life", code=1, said="exists already")
    (hub,) = rows(penstock("hub create life --if-absent -o json", said="exists already"))
    assert (hub["partition_count"], hub["retention_hours"]) == (4, 168)
    assert "life" in penstock("hub list")
    penstock("hub alter life --retention 1d", code=2, said="pass --yes")
    penstock("hub alter life --retention 1d --dry-run", said="retention 1d instead of 7d")
    penstock("hub alter life --retention 1d --yes", said="Changed the event hub")
    assert rows(penstock("hub show life -o json"))[0]["groups"] == ["$Default"]
    assert len(rows(penstock("hub partitions life -o json"))) == 4
    assert "partition" in penstock("hub partitions life")
    penstock("group create life billing --metadata mine", said="Created the consumer group")
    penstock("group create life billing", code=1, said="exists already")
    penstock("group create life billing --if-absent", said="exists already")
    assert "billing" in penstock("group list life")
    assert rows(penstock("group show life billing -o json"))[0]["partitions"] == 4
    assert len(rows(penstock("group lag life -g billing -o json"))) == 4
    penstock("group lag life --watch -o json", code=2, said="a JSON list has an end")
    watched = penstock("group lag life -g billing --watch --interval 200ms --count 2 -o jsonl")
    assert len(watched.splitlines()) == 8
    penstock("group seek life billing --to earliest --dry-run", said="Dry run")
    penstock("group seek life billing --to earliest --yes", said="checkpoints of 'billing'")
    penstock("group delete life billing --yes", said="Deleted the consumer group")
    penstock("group show life billing", code=3)
    penstock("hub delete life", code=2, said="There is no terminal to confirm it on")
    penstock("hub delete life --dry-run", said="0 events (0 B) in 4 partitions")
    penstock("hub delete life --yes", said="Deleted the event hub 'life'")
    penstock("hub show life", code=3, said="does not exist")


def test_namespaces_and_grants(penstock: Run) -> None:
    penstock("namespace create second-one --units 2", said="2 throughput units")
    penstock("namespace create second-one", code=1, said="exists already")
    penstock("namespace set-units second-one unlimited", said="counted, not enforced")
    penstock("namespace set-units second-one 3 --max-units 8", said="3 throughput units, up to 8")
    assert "second-one" in penstock("namespace list")
    assert rows(penstock("namespace show second-one -o json"))[0]["units"] == 3
    penstock("grant second-one --throughput-units 40 --by anna", said="up to 40")
    penstock("namespace delete second-one --dry-run", said="0 event hubs and 0 events")
    penstock("namespace delete second-one --yes", said="Deleted the namespace")
    penstock("namespace show second-one", code=3)


def test_policies_and_tokens(penstock: Run) -> None:
    penstock("policy create devices -r send --hub events", said="it may send")
    penstock("policy create devices -r send --hub events", code=1, said="exists already")
    assert "devices" in penstock("policy list --hub events")
    assert "devices" in penstock("policy list --all")
    assert "hidden" in penstock("policy show devices --hub events")
    text = penstock("policy connection-string devices --hub events").strip()
    assert text in penstock("policy show devices --hub events --reveal -o json")
    penstock("policy rotate devices --hub events --dry-run", said="lose access")
    penstock("policy rotate devices --hub events --key both --yes", said="Replaced both keys")
    assert penstock("policy connection-string devices --hub events").strip() != text
    assert penstock("token make --policy devices --hub events --publisher 'd 1'").startswith(
        "SharedAccessSignature sr=sb%3A%2F%2Flocalhost"
    )
    penstock("token make --policy nobody", code=3, said="no policy 'nobody'")
    penstock("policy delete devices --hub events --yes", said="Deleted the policy")
    penstock("policy show devices --hub events", code=3, said="no policy 'devices'")
    (token,) = rows(penstock("token admin --role reader --ttl 1h --name anna -o json"))
    assert (token["name"], token["role"]) == ("anna", "Reader")
    penstock(f"token revoke {token['id']}", said="Revoked the admin token")


def test_state_of_the_service(penstock: Run, data: Path, tmp_path: Path) -> None:
    (status,) = rows(penstock("status -o json"))
    assert (status["status"], status["pid"]) == ("ready", os.getpid())
    assert penstock("status").startswith("status")
    penstock("health", said="ready")
    assert rows(penstock("health --wait 30s -o json"))[0]["status"] == "ready"
    penstock("health --admin-url http://127.0.0.1:1", code=1, said="cannot be reached")
    penstock("health --data nowhere --wait 300ms", code=6, said="Not ready within 0.3 seconds")
    checks = {row["check"]: row for row in rows(penstock("doctor -o json"))}
    assert checks["ready"] == {"check": "ready", "state": "ok", "seen": "ready"}
    assert penstock("connections list", said="nothing to show") == ""
    penstock("connections kill nobody --yes", code=3, said="no connection 'nobody'")
    assert {"at", "who", "what", "detail"} == set(rows(penstock("audit -n 5 -o json"))[0])
    penstock("portal url", code=3, said="runs without its portal")
    assert rows(penstock("pipeline list -o json")) == []
    assert isinstance(rows(penstock("usage -o json")), list)
    parts = rows(penstock("debug bundle b.tar.gz --verify -o json", said="no events, keys"))
    assert {row["state"] for row in parts} == {"ok"}
    (backup,) = rows(penstock("backup copy -o json", said="Verified"))
    assert backup["damage"] == 0
    penstock("restore copy --data restored --dry-run", said="Dry run")
    assert not (tmp_path / "restored").exists()
    penstock("restore copy --data restored", said="Next: penstock serve --data restored")
    penstock("log verify restored", said="Every stored event can be read.")
    penstock("send events --partition 0 --text hello", said="Sent 1 event")
    segment = next(data.glob("log/*/0/*.log"))
    assert rows(penstock(f"log dump {segment} -o json"))


def test_emulator_configuration(penstock: Run, tmp_path: Path) -> None:
    entities = [{"Name": "imported", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}]
    config = {"UserConfig": {"NamespaceConfig": [{"Name": "emulatorNs1", "Entities": entities}]}}
    (tmp_path / "Config.json").write_text(json.dumps(config))
    for option, state in (("--dry-run", "to be made"), ("", "made"), ("", "there")):
        made = rows(penstock(f"emulator import Config.json {option} -o json"))
        assert [(row["name"], row["state"]) for row in made] == [
            ("imported", state),
            ("imported/cg1", state),
        ]


def test_contexts(penstock: Run, data: Path) -> None:
    penstock(f"context add here --data {data}", said="Stored the context 'here'")
    penstock(f"context add here --data {data}", code=1, said="--replace")
    penstock("context use here", said="Using the context 'here'")
    assert rows(penstock("context list -o json"))[0]["current"]
    assert "here" in penstock("context show")
    assert "events" in penstock("hub list --context here")
    penstock("context use --none", said="No context is in use")
    penstock("context delete here --yes", said="Deleted the context")


def test_help(penstock: Run) -> None:
    assert "penstock group seek" in penstock("help --all")
    assert penstock("help hub create").startswith("Usage: penstock hub create")
    assert rows(penstock("version -o json"))[0]["kernel"]
    for shell in ("bash", "zsh", "fish"):
        assert "_PENSTOCK_COMPLETE" in penstock(f"completion {shell}")


# They begin with files of this machine.
WITHOUT_SERVICE = ("debug bundle", "context add", "emulator import", "capture run")
# They need no token, or read something else first (a connection string, the portal).
WITHOUT_TOKEN = (*WITHOUT_SERVICE, "health", "token make", "portal url")


def administrative_examples(without: tuple[str, ...]) -> list[str]:
    """The first example of each command that has options of the management API, confirmed."""
    examples = []
    for path, command in commands().items():
        options = {option for parameter in command.params for option in parameter.opts}
        if "--admin-token" in options and not path.endswith(without):
            words = command.examples[0].removeprefix("penstock ")
            examples.append(words + " --yes" * ("--yes" in options and "--yes" not in words))
    return examples


@pytest.mark.parametrize("example", administrative_examples(WITHOUT_SERVICE))
def test_without_a_service_nothing_is_found(penstock: Run, example: str) -> None:
    penstock(f"{example} --data absent", code=3, said="No service")


# One of each noun: answers to wrong tokens are delayed.
GUESSES = {words.split()[0]: words for words in administrative_examples(WITHOUT_TOKEN)}


@pytest.mark.parametrize("example", GUESSES.values())
def test_wrong_token_is_denied(penstock: Run, data: Path, example: str) -> None:
    url = json.loads((data / "runtime.json").read_text())["admin"]
    penstock(f"{example} --admin-url {url} --admin-token wrong", code=4)
