"""Every command of the administration succeeds against a service in this process.

tests/system/test_cli.py drives the commands as users do, with their errors.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.app import run
from penstock.service.config.loader import load_settings
from penstock.service.wiring import Penstock

DEADLINE_S = 100.0
PORTS = ("amqp_port", "amqps_port", "https_port", "admin_port")

Run = Callable[..., str]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The data directory of a service that runs in another thread."""
    directory = tmp_path_factory.mktemp("service") / "data"
    flags = {"data": directory, "portal": False, "flush": "os", "hubs": ["events:2"]}
    settings = load_settings(flags=flags | dict.fromkeys(PORTS, 0), environ={})
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    service = Penstock(settings)
    asyncio.run_coroutine_threadsafe(service.start(), loop).result(DEADLINE_S)
    yield directory
    asyncio.run_coroutine_threadsafe(service.stop(), loop).result(DEADLINE_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


@pytest.fixture
def penstock(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """`penstock("hub list", code=0, said="")` returns stdout; `said` is part of stderr."""
    for name in [name for name in os.environ if name.startswith("PENSTOCK_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PENSTOCK_DATA", str(data))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)

    def execute(words: str, *, code: int = 0, said: str = "") -> str:
        monkeypatch.setattr(sys, "argv", ["penstock", *shlex.split(words)])
        with pytest.raises(SystemExit) as ended:
            run()
        printed = capsys.readouterr()
        assert ended.value.code == code, printed.err
        assert said in printed.err
        return printed.out

    return execute


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
