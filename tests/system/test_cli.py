"""The command line as its users drive it, against a running service: data, talk, exit codes."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import ssl
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.auth.sas import parse_token
from penstock.client import EventHubProducerClient
from penstock.model.connection_string import parse_connection_string

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory
    from tests.system.conftest import Forker

DEADLINE_S = 60


class Shell:
    """A user at a shell, in an empty directory and without anything of ours in the environment."""

    def __init__(self, forker: Forker, folder: Path, **environ: str) -> None:
        self._forker = forker
        self.folder = folder
        clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
        self.environ = clean | {"XDG_CONFIG_HOME": str(folder / "config")} | environ

    def __call__(
        self,
        *words: str,
        code: int = 0,
        said: str = "",
        stdin: str = "",
        environ: Mapping[str, str] | None = None,
    ) -> str:
        """What it wrote to stdout. `said` is what stderr must hold."""
        streams = self.folder / ".streams"
        streams.mkdir(exist_ok=True)
        files = [streams / name for name in ("in", "out", "err")]
        for file, text in zip(files, (stdin, "", ""), strict=True):
            file.write_text(text)
        ended = self._forker.run(
            words,
            cwd=str(self.folder),
            env=self.environ | dict(environ or {}),
            files=[str(file) for file in files],
        )
        out, err = (file.read_text() for file in files[1:])
        assert ended == code, (words, out, err)
        assert said in err, err
        assert "Traceback" not in err
        return out

    def rows(self, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self(*words, "-o", "json"))
        assert isinstance(found, list)
        return found

    def lines(self, *words: str, **environ: str) -> list[str]:
        return [line.rstrip() for line in self(*words, environ=environ).splitlines()]


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    return start_session_server("--hub=events:2", "--flush=os", "--log-level=warning")


@pytest.fixture
def shell(forker: Forker, server: Server, tmp_path: Path) -> Shell:
    return Shell(forker, tmp_path, PENSTOCK_DATA=str(server.data))


@pytest.fixture
def bare_shell(forker: Forker, tmp_path: Path) -> Shell:
    """Nothing is known of any service."""
    return Shell(forker, tmp_path)


@pytest.fixture
def hub(shell: Shell, request: pytest.FixtureRequest) -> str:
    """An event hub of the test's own."""
    name = re.sub("[^a-z0-9]+", "-", request.node.name.lower())[:40].strip("-")
    shell("hub", "create", name, "-p", "2", "--retention", "7d", "--if-absent")
    return name


# --- the service ----------------------------------------------------------------------------------


def test_status_tells_what_runs(shell: Shell, server: Server) -> None:
    (found,) = shell.rows("status")
    assert found["status"] == "ready"
    assert found["url"] == server["admin"]
    assert found["pid"] == server.process.pid
    assert "penstock" in found["namespaces"]
    assert found["checks"]["log"] == "ok"
    assert shell.lines("status")[0].split() == ["status", "ready"]


def test_health_of_what_runs_and_of_what_does_not(shell: Shell, tmp_path: Path) -> None:
    assert shell("health", said="ready") == ""
    assert shell("health", "--wait", "30s", "-o", "json").startswith('[{"status": "ready"')
    empty = str(tmp_path / "nobody")
    shell("health", "--data", empty, code=3, said="No service runs")
    shell("health", "--data", empty, "--wait", "300ms", code=6, said="Not ready within 0.3 seconds")
    nobody = "http://127.0.0.1:1"  # a port that no service has
    shell("health", "--admin-url", nobody, code=1, said="cannot be reached")
    shell("health", "--wait", "soon", code=2, said="not a duration")


# --- event hubs -----------------------------------------------------------------------------------


def test_hub_from_creation_to_deletion(shell: Shell) -> None:
    shell("hub", "create", "life", "-p", "4", "--retention", "7d", said="4 partitions")
    (found,) = [row for row in shell.rows("hub", "list") if row["name"] == "life"]
    keys = ["name", "partition_count", "retention_hours", "status"]
    assert list(found)[:4] == keys
    assert [found[key] for key in keys] == ["life", 4, 168, "Active"]
    shell("hub", "create", "life", code=1, said="exists already")
    shell("hub", "create", "life", "--if-absent", said="exists already")
    shell("hub", "alter", "life", "--status", "SendDisabled", "--metadata", "a note")
    shell("hub", "alter", "life", "--retention", "1d", code=2, said="pass --yes")
    shell("hub", "alter", "life", "--retention", "1d", "--dry-run", said="Dry run")
    assert shell.rows("hub", "show", "life")[0]["retention_hours"] == 168
    shell("hub", "alter", "life", "--retention", "1d", "--yes")
    (shown,) = shell.rows("hub", "show", "life")
    assert (shown["retention_hours"], shown["status"]) == (24, "SendDisabled")
    assert (shown["user_metadata"], shown["groups"]) == ("a note", ["$Default"])
    assert len(shell.rows("hub", "partitions", "life")) == 4
    shell("hub", "delete", "life", code=2, said="There is no terminal to confirm it on")
    shell("hub", "delete", "life", "--dry-run", said="0 events (0 B) in 4 partitions")
    shell("hub", "delete", "life", "--yes", said="Deleted the event hub")
    shell("hub", "show", "life", code=3, said="does not exist")
    shell("hub", "delete", "life", "--yes", code=3)


def test_hub_list_as_a_table(forker: Forker, start_server: ServerFactory, tmp_path: Path) -> None:
    server = start_server("--hub=orders:4", "--hub=returns:2")
    shell = Shell(forker, tmp_path, PENSTOCK_DATA=str(server.data), COLUMNS="80")
    lines = [
        re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME", x) for x in shell.lines("hub", "list")
    ]
    assert lines == [
        "name     partitions  retention  status  created",
        "────────────────────────────────────────────────────────────",
        "events            4         1d  Active  TIME",
        "orders            4         1d  Active  TIME",
        "returns           2         1d  Active  TIME",
    ]


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("hub", "create", "no!name"), 1, "no!name"),
        (("hub", "create", "x", "-p", "99"), 1, "32"),
        (("hub", "create", "x", "--retention", "90m"), 2, "whole hours"),
        (("hub", "create", "x", "--status", "Asleep"), 1, "Asleep"),
        (("hub", "create", "x", "--capture", "nowhere.json"), 3, "nowhere.json: No such file"),
        (("hub", "alter", "events"), 2, "Pass --retention"),
        (("hub", "show", "nope"), 3, "does not exist"),
        (("hub", "list", "--namespace", "nowhere"), 3, "nowhere"),
        (("hub", "list", "-o", "yaml"), 2, "yaml"),
        (("hub", "lst"), 2, "Did you mean 'list'?"),
        (("hubs",), 2, "Did you mean 'hub'?"),
        (("group", "lag", "nope"), 3, "nope"),
        (("group", "create", "nope", "g"), 3, "does not exist"),
        (("policy", "show", "nope"), 3, "no policy 'nope'"),
        (("policy", "create", "p", "-r", "everything"), 2, "not a right"),
        (("namespace", "show", "nowhere"), 3, "nowhere"),
        (("namespace", "set-units", "penstock", "many"), 2, "neither a number nor unlimited"),
        (("connections", "kill", "nobody", "--yes"), 3, "no connection"),
        (("restore", "nowhere"), 3, "no backup.json"),
        (("backup", "copy", "--data", "nowhere"), 3, "no data directory"),
        (("config", "validate", "nowhere.toml"), 2, "cannot be read"),
        (("context", "use", "nobody"), 3, "no context 'nobody'"),
        (("token", "make", "--publisher", "d"), 2, "--publisher needs --hub"),
        (("help", "hub", "nope"), 2, "no command 'hub nope'"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_mistake_is_a_sentence_and_an_exit_code(
    shell: Shell, words: tuple[str, ...], code: int, said: str
) -> None:
    assert shell(*words, code=code, said=said) == ""


def test_wrong_token_is_denied(shell: Shell, server: Server) -> None:
    environ = {"PENSTOCK_ADMIN_URL": server["admin"], "PENSTOCK_ADMIN_TOKEN": "wrong"}
    shell("hub", "list", code=4, said="penstock: ", environ=environ)
    good = environ | {"PENSTOCK_ADMIN_TOKEN": server["admin_token"]}
    assert "events" in shell("hub", "list", environ=good)
    del good["PENSTOCK_ADMIN_TOKEN"]
    shell("hub", "list", code=2, said="PENSTOCK_ADMIN_TOKEN", environ=good)


def test_nothing_is_an_empty_list(shell: Shell) -> None:
    nowhere = ("connections", "list", "--namespace", "nowhere")
    assert shell(*nowhere, said="nothing to show") == ""
    assert shell(*nowhere, "-o", "json") == "[]\n"


# --- groups ---------------------------------------------------------------------------------------


def test_group_lag_and_seek(shell: Shell, hub: str) -> None:
    shell(
        "group", "create", hub, "billing", "--metadata", "mine", said="Created the consumer group"
    )
    shell("group", "create", hub, "billing", code=1, said="exists already")
    assert [row["name"] for row in shell.rows("group", "list", hub)] == ["$Default", "billing"]
    shell("bench", "send", "--hub", hub, "--count", "200", "--batch", "10", "--duration", "20")
    planned = shell.rows("group", "seek", hub, "billing", "--to", "earliest", "--dry-run")
    assert {row["partition"] for row in planned} == {"0", "1"}
    rows = shell.rows("group", "lag", hub, "-g", "billing")
    assert {row["checkpoint_sequence_number"] for row in rows} == {None}
    seek = ("group", "seek", hub, "billing")
    shell(*seek, "--to", "earliest", code=2, said="pass --yes")
    shell(*seek, "--to", "earliest", "--yes", said="2 of 2 checkpoints")
    rows = shell.rows("group", "lag", hub, "-g", "billing")
    assert list(rows[0])[:8] == [
        "hub",
        "group",
        "partition",
        "last_sequence_number",
        "checkpoint_sequence_number",
        "lag_events",
        "lag_seconds",
        "owner",
    ]
    assert sum(row["lag_events"] for row in rows) == 200
    (shown,) = shell.rows("group", "show", hub, "billing")
    assert (shown["lag_events"], shown["partitions"], shown["owners"]) == (200, 2, [])
    shell(*seek, "--to", "latest", "--partition", "1", "--yes")
    behind = {
        r["partition"]: r["lag_events"] for r in shell.rows("group", "lag", hub, "-g", "billing")
    }
    assert behind["1"] == 0 < behind["0"]
    shell("group", "delete", hub, "billing", "--yes", said="Deleted the consumer group")
    shell("group", "show", hub, "billing", code=3)


def test_lag_without_a_hub_is_of_all_and_jsonl_can_be_watched(shell: Shell, hub: str) -> None:
    hubs = {row["name"] for row in shell.rows("hub", "list")}
    assert {row["hub"] for row in shell.rows("group", "lag")} == hubs
    watch = ("group", "lag", hub, "--watch", "--interval", "200ms", "--count", "2")
    lines = [json.loads(line) for line in shell(*watch, "-o", "jsonl").splitlines()]
    assert len(lines) == 2 * 2
    assert len({line["at"] for line in lines}) >= 2
    shell(*watch, "-o", "json", code=2, said="a JSON list has an end")


def test_lag_fits_into_80_columns(shell: Shell, hub: str) -> None:
    lines = shell.lines("group", "lag", "events", COLUMNS="80")
    assert lines == [
        "hub     group     partition  last  checkpoint  lag events  lag time  owner",
        "──────────────────────────────────────────────────────────────────────────",
        "events  $Default  0            -1           -           -         -  -",
        "events  $Default  1            -1           -           -         -  -",
    ]


# --- namespaces, policies, tokens -----------------------------------------------------------------


def test_namespace_from_creation_to_deletion(shell: Shell) -> None:
    shell("namespace", "create", "second-one", "--units", "2", said="2 throughput units")
    shell("namespace", "create", "second-one", code=1, said="exists already")
    (found,) = [row for row in shell.rows("namespace", "list") if row["name"] == "second-one"]
    assert (found["units"], found["enforced"]) == (2, True)
    shell("namespace", "set-units", "second-one", "unlimited", said="counted, not enforced")
    shell("namespace", "set-tu", "second-one", "3", "--max-units", "8", said="3 throughput units")
    (shown,) = shell.rows("namespace", "show", "second-one")
    assert (shown["units"], shown["maximum_units"], shown["hubs"]) == (3, 8, [])
    shell("hub", "create", "inside", "--namespace", "second-one")
    assert [r["name"] for r in shell.rows("hub", "list", "--namespace", "second-one")] == ["inside"]
    shell("namespace", "delete", "second-one", "--dry-run", said="1 event hub and 0 events")
    shell("namespace", "delete", "second-one", "--yes")
    shell("namespace", "show", "second-one", code=3)


def test_policy_keeps_its_keys_until_they_are_asked_for(
    shell: Shell, hub: str, server: Server
) -> None:
    shell("policy", "create", "devices", "-r", "send", "--hub", hub, said="may send")
    shell("policy", "create", "boss", "-r", "manage", "--hub", hub, said="manage")
    assert {row["name"] for row in shell.rows("policy", "list", "--hub", hub)} == {
        "devices",
        "boss",
    }
    assert "RootManageSharedAccessKey" in {r["name"] for r in shell.rows("policy", "list", "--all")}
    text = shell("policy", "connection-string", "devices", "--hub", hub).strip()
    endpoint = parse_connection_string(text)
    assert (endpoint.key_name, endpoint.hub) == ("devices", hub)
    assert endpoint.key is not None
    key = endpoint.key.reveal()
    plain = parse_connection_string(
        shell("policy", "connection-string", "devices", "--hub", hub, "--plain").strip()
    )
    assert f"{plain.host}:{plain.port}" == server["amqp"]
    assert (plain.tls, plain.hub, plain.key) == (False, hub, endpoint.key)
    of_hub = ("--hub", hub)
    assert key not in shell("policy", "show", "devices", *of_hub)
    assert key not in shell("policy", "show", "devices", *of_hub, "-o", "json")
    assert key in shell("policy", "show", "devices", *of_hub, "--reveal", "-o", "json")
    shell("policy", "rotate", "devices", *of_hub, code=2, said="pass --yes")
    shell("policy", "rotate", "devices", *of_hub, "--dry-run", said="lose access")
    assert shell("policy", "connection-string", "devices", *of_hub).strip() == text
    shell("policy", "rotate", "devices", *of_hub, "--yes", said="Replaced the primary key")
    assert shell("policy", "connection-string", "devices", *of_hub).strip() != text
    shell("policy", "delete", "devices", *of_hub, "--yes")
    shell("policy", "connection-string", "devices", *of_hub, code=3)


def test_token_is_good_for_what_it_says(shell: Shell, hub: str, server: Server) -> None:
    shell("policy", "create", "devices", "-r", "send", "--hub", hub)
    made = ("token", "make", "--policy", "devices", "--hub", hub, "--publisher", "d 1")
    text = shell(*made, "--ttl", "1h", said="until").strip()
    token = parse_token(text)
    assert (token.resource, token.key_name) == (f"sb://localhost/{hub}/publishers/d%201", "devices")
    own = parse_token(shell("token", "make", "--hub", hub).strip())
    assert (own.resource, own.key_name) == (f"sb://localhost/{hub}", "RootManageSharedAccessKey")
    elsewhere = "Endpoint=sb://x.example.com/;SharedAccessKeyName=p;SharedAccessKey=k;EntityPath=e"
    far = shell.rows("token", "make", "--connection-string", elsewhere)
    assert (far[0]["resource"], far[0]["policy"]) == ("sb://x.example.com/e", "p")
    tls = ssl.create_default_context(cafile=server["ca_file"])
    door = http.client.HTTPSConnection(
        "localhost", server.port("https"), timeout=DEADLINE_S, context=tls
    )
    headers = {"Authorization": text}
    door.request("POST", f"/{hub}/publishers/d%201/messages", body="hello", headers=headers)
    assert door.getresponse().status == 201
    door.close()


def test_admin_token_has_the_role_that_was_asked_for(shell: Shell, server: Server) -> None:
    (issued,) = shell.rows("token", "admin", "--role", "Reader", "--ttl", "1h", "--name", "anna")
    environ = {"PENSTOCK_ADMIN_URL": server["admin"], "PENSTOCK_ADMIN_TOKEN": issued["token"]}
    assert "events" in shell("hub", "list", environ=environ)
    shell("hub", "create", "denied", code=4, said="anna", environ=environ)
    shell("token", "admin", "--role", "Owner", code=4, said="adminTokens", environ=environ)
    shell("token", "revoke", issued["id"], said="Revoked the admin token")
    shell("hub", "list", code=4, said="revoked", environ=environ)
    shell("token", "admin", "--role", "Janitor", code=2, said="'reader', 'operator', 'owner'")


def test_audit_says_who_did_what(shell: Shell, hub: str) -> None:
    rows = shell.rows("audit", "-n", "500", "--what", "eventhubs/write")
    assert any(hub in row["detail"] for row in rows)
    assert set(rows[0]) == {"at", "who", "what", "detail"}
    assert len(shell.rows("audit", "-n", "1")) == 1


def test_connection_is_listed_and_closed(shell: Shell, hub: str, server: Server) -> None:
    def peers() -> set[str]:
        return {row["id"] for row in shell.rows("connections", "list", "--namespace", "penstock")}

    async def connected() -> None:
        before = peers()
        async with EventHubProducerClient(server.connection_string(), eventhub_name=hub) as client:
            await client.create_batch()  # opens the connection
            (own,) = peers() - before
            shell("connections", "kill", own[:8], code=2, said="pass --yes")
            shell("connections", "kill", own[:8], "--dry-run", said="Dry run")
            assert own in peers()
            shell("connections", "kill", own, "--yes", said=f"Closed the connection {own}")
            assert own not in peers()

    asyncio.run(connected())


def test_portal_url_of_a_service_without_portal(shell: Shell) -> None:
    assert shell("portal", "url", code=3, said="runs without its portal") == ""


# --- contexts -------------------------------------------------------------------------------------


def test_context_is_used_and_keeps_its_secrets(
    server: Server, bare_shell: Shell, tmp_path: Path
) -> None:
    shell = bare_shell
    shell("hub", "list", code=3, said="No service runs")
    far = ("context", "add", "far", "--admin-url", server["admin"], "--admin-token", "-")
    shell(*far, stdin=server["admin_token"] + "\n", said="Stored the context")
    shell("hub", "list", code=3)
    shell("context", "use", "far", said="Using the context")
    shell("context", "add", "here", "--data", str(server.data))
    assert "events" in shell("hub", "list")
    assert "events" in shell("hub", "list", "--context", "here")
    assert "events" in shell("hub", "list", environ={"PENSTOCK_CONTEXT": "here"})
    assert [(r["name"], r["current"]) for r in shell.rows("context", "list")] == [
        ("far", True),
        ("here", False),
    ]
    assert server["admin_token"] not in shell("context", "show") + shell("context", "list")
    assert server["admin_token"] in shell("context", "show", "--reveal", "-o", "json")
    file = tmp_path / "config" / "penstock" / "contexts.json"
    assert file.stat().st_mode & 0o777 == 0o600
    shell("context", "use", "--none", said="No context is in use")
    shell("hub", "list", code=3)
    shell("context", "use", "far")
    shell("context", "add", "far", "--data", "x", code=1, said="--replace")
    shell("context", "add", "bad", "--connection-string", "Endpoint", code=1, said="connection")
    shell("context", "delete", "far", "--yes")
    shell("hub", "list", code=3)
    file.chmod(0o644)
    shell("context", "list", code=2, said="chmod 600")


# --- everything else ------------------------------------------------------------------------------


def test_emulator_s_file_is_imported(shell: Shell, tmp_path: Path) -> None:
    entities = [
        {"Name": "imported", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]},
        {"Name": "single", "PartitionCount": 1},
    ]
    config = {"UserConfig": {"NamespaceConfig": [{"Name": "emulatorNs1", "Entities": entities}]}}
    (tmp_path / "Config.json").write_text(json.dumps(config))
    plan = shell.rows("emulator", "import", "Config.json", "--dry-run")
    assert [(row["name"], row["state"]) for row in plan] == [
        ("imported", "to be made"),
        ("imported/cg1", "to be made"),
        ("single", "to be made"),
    ]
    # One partition is for the emulator's own configuration alone.
    made = json.loads(shell("emulator", "import", "Config.json", "-o", "json", code=1))
    assert [row["state"] for row in made] == ["made", "made", "refused"]
    again = json.loads(shell("emulator", "import", "Config.json", "-o", "json", code=1))
    assert [row["state"] for row in again] == ["there", "there", "refused"]


def test_bundle_holds_no_secret(shell: Shell, server: Server, tmp_path: Path) -> None:
    rows = shell.rows("debug", "bundle", "bundle.tar.gz", "--verify")
    assert {row["state"] for row in rows} == {"ok"}
    secrets = [
        server.key,
        server["admin_token"],
        (server.data / "admin.secret").read_text().strip(),
    ]
    names = []
    with tarfile.open(tmp_path / "bundle.tar.gz") as archive:
        for member in archive.getmembers():
            names.append(member.name)
            file = archive.extractfile(member)
            assert file is not None
            content = file.read().decode()
            assert content
            assert not [secret for secret in secrets if secret in content], member.name
    assert "penstock-debug/metrics.txt" in names
    assert (tmp_path / "bundle.tar.gz").stat().st_mode & 0o777 == 0o600


def test_bundle_of_a_service_that_does_not_run_says_why(bare_shell: Shell) -> None:
    rows = {row["file"]: row for row in bare_shell.rows("debug", "bundle", "b.tar.gz")}
    assert rows["version.json"]["state"] == "ok"
    assert "No service runs" in rows["ready.json"]["state"]


def test_init_makes_what_serve_serves(
    bare_shell: Shell, start_server: ServerFactory, tmp_path: Path
) -> None:
    shell = bare_shell
    (made,) = shell.rows("init", "--data", "fresh", "--hub", "orders:3")
    assert made["hubs"] == ["events", "orders"]
    key = (tmp_path / "fresh" / "root.key").read_text().split()[0]
    assert Path(made["ca_file"]).is_file()
    assert key not in shell("init", "--data", "fresh", said="Updated the data directory")
    server = start_server(data=tmp_path / "fresh")
    assert server.key == key
    shell("init", "--data", "fresh", code=1, said="in use")
    hubs = {row["name"]: row for row in shell.rows("hub", "list", "--data", "fresh")}
    assert hubs["orders"]["partition_count"] == 3


def test_help_and_version_say_what_there_is(shell: Shell) -> None:
    everything = shell("help", "--all")
    for usage in (
        "penstock hub create",
        "penstock group seek",
        "penstock policy connection-string",
    ):
        assert usage in everything
    assert shell("help", "hub", "create").startswith("Usage: penstock hub create")
    assert shell("help").startswith("Usage: penstock")
    (version,) = shell.rows("version")
    assert shell("--version").strip() == f"penstock {version['version']}"
    assert shell("hub", "create", "-h").count("Which service:") == 1
    for shell_name in ("bash", "zsh", "fish"):
        assert "_PENSTOCK_COMPLETE" in shell("completion", shell_name)
