"""`requests`, curl and Node's fetch publish over HTTPS; the official SDK reads: types and bytes."""

from __future__ import annotations

import base64
import http.client
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import requests
from azure.eventhub import EventData
from azure.eventhub.exceptions import EventHubError

from penstock.auth.sas import sign
from penstock.model.entities import Secret
from penstock.model.partitioner import partition_for_key

if TYPE_CHECKING:
    from tests.compatibility.conftest import PythonSdk, Sdks, Spot
    from tests.conftest import NodeTools, Server, ServerFactory

ROOT = "RootManageSharedAccessKey"
BATCH = "application/vnd.microsoft.servicebus.json"
CLIENT_DEADLINE_S = 30
SYSTEM = ("x-opt-sequence-number", "x-opt-offset", "x-opt-enqueued-time")

NODE_FOLDER = Path(__file__).parent / "node"
NODE = """
const { url, token, batch } = JSON.parse(process.argv[1]);
(async () => {
  const single = await fetch(`${url}/messages`, {
    method: 'POST', body: new Uint8Array([0, 255, 10, 13]),
    headers: { Authorization: token, 'Content-Type': 'application/octet-stream', Alert: '"hot"',
               BrokerProperties: '{"MessageId":"m-1"}' } });
  const many = await fetch(`${url}/messages?timeout=60&api-version=2014-01`, {
    method: 'POST', body: JSON.stringify(batch),
    headers: { Authorization: token, 'Content-Type': 'application/vnd.microsoft.servicebus.json' }
  });
  const refused = await fetch(`${url}/messages`, { method: 'POST', body: 'x' });
  const text = await refused.text();
  console.log(JSON.stringify([single.status, many.status, refused.status, text]));
})();
"""


class Https:
    """The door as a REST client sees it."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.url = server["https"].rstrip("/")
        self.session = requests.Session()
        self.session.trust_env = False  # a proxy's certificates would take the place of ours
        self.session.verify = server["ca_file"]

    def token(self, resource: str = "", policy: str = ROOT, key: str | None = None) -> str:
        expires_s = int(time.time()) + 3600
        uri = f"{self.url}/{resource}"
        return sign(uri, policy, Secret(key or self.server.key), expires_s=expires_s)

    def post(self, path: str, body: Any, *, token: str | None = None, **headers: str) -> Any:
        headers = {"Authorization": token or self.token(), **headers}
        return self.session.post(
            f"{self.url}/{path}", data=body, headers=headers, timeout=CLIENT_DEADLINE_S
        )


@pytest.fixture
def https(server: Server) -> Iterator[Https]:
    door = Https(server)
    yield door
    door.session.close()


def at(spot: Spot) -> str:
    return f"{spot.hub}/partitions/{spot.partition}"


def sections(event: EventData) -> dict[str, Any]:
    """Everything of an event but what the service assigned."""
    message = event.raw_amqp_message
    annotations = {_text(key): value for key, value in (message.annotations or {}).items()}
    return {
        "body": b"".join(message.body),
        "body type": message.body_type,
        "properties": dict(message.properties.items()) if message.properties else {},
        "application properties": message.application_properties,
        "annotations": {key: annotations[key] for key in annotations if key not in SYSTEM},
    }


def _text(key: str | bytes) -> str:
    return key.decode() if isinstance(key, bytes) else key


# --- requests -----------------------------------------------------------------------------------


async def test_event_over_https_reads_like_one_over_amqp(
    https: Https, sdk: PythonSdk, spot: Spot
) -> None:
    body = bytes(range(256)) * 4
    answer = https.post(
        f"{at(spot)}/messages?timeout=60&api-version=2014-01",
        body,
        **{
            "Content-Type": "application/octet-stream",
            "BrokerProperties": json.dumps(
                {"MessageId": "id", "CorrelationId": "other", "Label": "x", "SessionId": "s"}
            ),
            "DeviceId": "sensor 7",
            "Quoted": '"in quotes"',
        },
    )
    assert (answer.status_code, answer.content) == (201, b"")
    event = EventData(body)
    event.content_type = "application/octet-stream"
    event.message_id = "id"
    event.correlation_id = "other"
    event.properties = {"DeviceId": "sensor 7", "Quoted": "in quotes"}
    properties = event.raw_amqp_message.properties
    assert properties is not None
    properties.subject, properties.group_id = "x", "s"
    await sdk.send_event(spot.hub, event, partition_id=spot.partition)
    over_https, over_amqp = await sdk.read(spot.hub, spot.partition, 2)
    assert sections(over_https) == sections(over_amqp)
    assert sdk.body(over_https) == body
    assert over_https.content_type == "application/octet-stream"
    assert over_https.message_id == "id"
    assert over_https.properties == {b"DeviceId": b"sensor 7", b"Quoted": b"in quotes"}
    assert [over_https.sequence_number, over_amqp.sequence_number] == [0, 1]


async def test_batch_over_https_reads_like_one_over_amqp(
    https: Https, sdk: PythonSdk, spot: Spot
) -> None:
    entries = [
        {"Body": "Grüße", "UserProperties": {"text": "t", "whole": 7, "half": 0.5, "yes": True}},
        {"Body": base64.b64encode(b"\x00\xff").decode(), "IsBodyBase64": True},
        {"Body": "{}", "BrokerProperties": {"MessageId": "m", "ContentType": "application/json"}},
    ]
    answer = https.post(f"{at(spot)}/messages", json.dumps(entries), **{"Content-Type": BATCH})
    assert (answer.status_code, answer.content) == (201, b"")
    first, second, third = EventData("Grüße"), EventData(b"\x00\xff"), EventData("{}")
    first.properties = {"text": "t", "whole": 7, "half": 0.5, "yes": True}
    third.message_id, third.content_type = "m", "application/json"
    await sdk.send(spot.hub, first, second, third, partition_id=spot.partition)
    events = await sdk.read(spot.hub, spot.partition, 6)
    assert [sections(each) for each in events[:3]] == [sections(each) for each in events[3:]]
    assert events[0].body_as_str() == "Grüße"
    assert events[0].properties == {b"text": b"t", b"whole": 7, b"half": 0.5, b"yes": True}
    assert len({event.enqueued_time for event in events[:3]}) == 1


async def test_partition_key_leads_to_the_partition_where_amqp_leads(
    https: Https, sdk: PythonSdk, hub: str
) -> None:
    answer = https.post(f"{hub}/messages", b"rest", BrokerProperties='{"PartitionKey":"key1"}')
    assert answer.status_code == 201
    await sdk.send(hub, "amqp", partition_key="key1")
    events = await sdk.read(hub, "3", 2)  # protocol.md 8.2
    assert [sdk.body(event) for event in events] == [b"rest", b"amqp"]
    assert [event.partition_key for event in events] == [b"key1", b"key1"]


async def test_publisher_is_seen_on_its_events(https: Https, sdk: PythonSdk, hub: str) -> None:
    token = https.token(f"{hub}/publishers/device-1/messages")
    answer = https.post(f"{hub}/publishers/device-1/messages", b"x", token=token)
    assert answer.status_code == 201
    (event,) = await sdk.read(hub, "0", 1)
    assert event.partition_key == b"device-1"
    assert event.system_properties[b"x-opt-publisher"] == b"device-1"
    other = https.post(f"{hub}/publishers/device-2/messages", b"x", token=token)
    assert other.status_code == 401


def test_connection_is_kept_alive_over_refusals(https: Https, hub: str) -> None:
    tls = ssl.create_default_context(cafile=https.server["ca_file"])
    port = https.server.port("https")
    connection = http.client.HTTPSConnection("localhost", port, context=tls, timeout=30)
    connection.connect()
    socket, headers = connection.sock, {"Authorization": https.token()}
    for path, status in ((hub, 201), ("nothing", 404), (f"{hub}/partitions/9", 400), (hub, 201)):
        connection.request("POST", f"/{path}/messages", b"x" * 1000, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
        assert connection.sock is socket
    connection.close()


def test_body_in_chunks_is_taken(https: Https, hub: str) -> None:
    assert https.post(f"{hub}/messages", iter([b"a", b"b" * 70_000])).status_code == 201


async def test_what_was_created_survives_kill_9(
    start_server: ServerFactory, sdks: Sdks, tmp_path: Path
) -> None:
    server = start_server("--hub", "events:2", data=tmp_path / "data")
    door = Https(server)
    for number in range(20):
        assert door.post("events/partitions/1/messages", b"%d" % number).status_code == 201
    server.kill()
    door.session.close()
    again = sdks.of("aio", server=start_server("--hub", "events:2", data=tmp_path / "data"))
    events = await again.read("events", "1", 20)
    assert [again.body(event) for event in events] == [b"%d" % number for number in range(20)]


# --- every status -------------------------------------------------------------------------------


def test_bad_request(https: Https, hub: str) -> None:
    answer = https.post(f"{hub}/messages", b"{}", **{"Content-Type": BATCH})
    assert answer.status_code == 400
    assert answer.headers["Content-Type"] == "application/xml; charset=utf-8"
    assert answer.text.startswith("<Error><Code>400</Code><Detail>The batch cannot be read: ")


def test_unauthorized(https: Https, hub: str) -> None:
    answer = https.post(f"{hub}/messages", b"x", token=https.token(key="wrong"))
    assert answer.status_code == 401
    assert "SubCode=40103: Invalid authorization token signature" in answer.text


def test_unauthorized_reaches_a_client_that_sends_much(https: Https, hub: str) -> None:
    for _ in range(3):
        answer = https.post(f"{hub}/messages", b"x" * 200_000, token=https.token(key="wrong"))
        assert answer.status_code == 401


def test_not_found(https: Https) -> None:
    answer = https.post("nothing/messages", b"x")
    assert answer.status_code == 404
    assert "The messaging entity" in answer.text


def test_too_large_reaches_the_client_and_nothing_is_stored(https: Https, hub: str) -> None:
    for body in (b"x" * 262_145, b"x" * 900_000, iter([b"x" * 65_536] * 12)):
        answer = https.post(f"{hub}/messages", body)
        assert answer.status_code == 413
        assert "exceeds the limit" in answer.text
    assert https.post(f"{hub}/messages", b"x" * 262_136).status_code == 201


def test_publisher_and_key_that_differ(https: Https, hub: str) -> None:
    answer = https.post(
        f"{hub}/publishers/dev/messages", b"x", BrokerProperties='{"PartitionKey":"other"}'
    )
    assert answer.status_code == 400


def test_throttled(start_server: ServerFactory) -> None:
    server = start_server("--throughput-units", "1", "--hub", "events:2")
    https = Https(server)
    # Taken as a whole by a full bucket, which is then in debt for almost five seconds.
    many = json.dumps([{"Body": ""}] * 5_000)
    assert https.post("events/messages", many, **{"Content-Type": BATCH}).status_code == 201
    # Round robin comes to another partition; it is the namespace's units that are used up.
    busy = https.post("events/messages", b"x")
    assert busy.status_code == 503
    assert 1 <= int(busy.headers["Retry-After"]) <= 5
    assert "Error code : 50002" in busy.text
    deadline_s = time.monotonic() + CLIENT_DEADLINE_S
    while https.post("events/messages", b"x").status_code == 503:
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    https.session.close()


# --- revoked publishers -------------------------------------------------------------------------


async def test_revoked_publisher_is_forbidden_and_loses_its_link(
    https: Https, sdk: PythonSdk, hub: str
) -> None:
    url = f"{https.url}/{hub}/revokedpublishers"
    headers = {"Authorization": https.token(hub)}
    options: dict[str, Any] = {"headers": headers, "timeout": CLIENT_DEADLINE_S}
    async with sdk.producing(f"{hub}/Publishers/dev") as producer:
        await sdk.call(producer.send_event, EventData("before"))
        assert https.session.put(f"{url}/Dev", **options).status_code == 201
        with pytest.raises(EventHubError):
            await sdk.call(producer.send_event, EventData("never"))
        assert https.session.put(f"{url}/dev", **options).status_code == 409
        assert "<Name>Dev</Name>" in https.session.get(url, **options).text
        assert https.post(f"{hub}/publishers/dev/messages", b"x").status_code == 403
        assert https.session.delete(f"{url}/dev", **options).status_code == 200
        assert "<Name>" not in https.session.get(url, **options).text
        assert https.post(f"{hub}/publishers/dev/messages", b"rest").status_code == 201
    async with sdk.producing(f"{hub}/Publishers/dev") as producer:
        await sdk.call(producer.send_event, EventData("after"))
    home = str(partition_for_key("dev", 4))
    events = await sdk.read(hub, home, 3)
    assert [sdk.body(event) for event in events] == [b"before", b"rest", b"after"]
    async with sdk.producing(hub) as producer:
        properties = await sdk.call(producer.get_partition_properties, home)
    assert properties["last_enqueued_sequence_number"] == 2  # and nothing else


def test_revocation_survives_a_restart(start_server: ServerFactory, tmp_path: Path) -> None:
    server = start_server("--hub", "events", data=tmp_path / "data")
    https = Https(server)
    url = f"{https.url}/events/revokedpublishers/dev"
    headers = {"Authorization": https.token()}
    answer = https.session.put(url, headers=headers, timeout=CLIENT_DEADLINE_S)
    assert answer.status_code == 201
    https.session.close()
    server.kill()
    again = Https(start_server("--hub", "events", data=tmp_path / "data"))
    assert again.post("events/publishers/dev/messages", b"x").status_code == 403
    again.session.close()


# --- curl and Node ------------------------------------------------------------------------------


def run(*command: str, **environ: str) -> str:
    """What the program wrote."""
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=CLIENT_DEADLINE_S,
        env=os.environ | environ,
        check=True,
    ).stdout


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_curl_publishes(https: Https, sdk: PythonSdk, spot: Spot) -> None:
    url = f"{https.url}/{at(spot)}/messages"

    def curl(*options: str) -> tuple[str, str]:
        command = ["curl", "-s", "--cacert", https.server["ca_file"], "-w", "\n%{http_code}"]
        command += ["-H", f"Authorization: {https.token()}", *options, url]
        body, _, status = run(*command).rpartition("\n")
        return status, body

    assert curl("-d", "hello", "-H", "Temp: 21") == ("201", "")
    batch = '[{"Body":"one"},{"Body":"two","UserProperties":{"n":2}}]'
    assert curl("-d", batch, "-H", f"Content-Type: {BATCH}") == ("201", "")
    status, body = curl("-X", "POST")
    assert status == "411"
    assert "<Code>411</Code>" in body
    # More than a megabyte: curl asks first (Expect: 100-continue), and is told not to.
    assert curl("-d", "x" * 120_000, "-H", "Expect: 100-continue") == ("201", "")
    events = await sdk.read(spot.hub, spot.partition, 4)
    bodies = [sdk.body(event) for event in events]
    assert bodies == [b"hello", b"one", b"two", b"x" * 120_000]
    assert events[0].content_type == "application/x-www-form-urlencoded"
    assert events[0].properties == {b"Temp": b"21"}
    assert events[2].properties == {b"n": 2}


@pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")
async def test_node_fetch_publishes(https: Https, sdk: PythonSdk, spot: Spot) -> None:
    given = {
        "url": f"{https.url}/{at(spot)}",
        "token": https.token(spot.hub),
        "batch": [{"Body": "日本語"}, {"Body": "b", "UserProperties": {"on": False, "x": None}}],
    }
    done = run("node", "-e", NODE, json.dumps(given), NODE_EXTRA_CA_CERTS=https.server["ca_file"])
    single, many, refused, text = json.loads(done)
    assert [single, many, refused] == [201, 201, 401]
    assert "SubCode=40102" in text
    events = await sdk.read(spot.hub, spot.partition, 3)
    bodies = [sdk.body(event) for event in events]
    assert bodies == [b"\x00\xff\n\r", "日本語".encode(), b"b"]
    assert events[0].message_id == "m-1"
    assert events[0].content_type == "application/octet-stream"
    # Whether fetch keeps the case of a name depends on its version.
    assert {name.lower(): text for name, text in events[0].properties.items()} == {b"alert": b"hot"}
    assert events[2].properties == {b"on": False, b"x": None}


@pytest.mark.sdk
def test_javascript_sdk_reads_what_fetch_published(
    https: Https, node: NodeTools, spot: Spot
) -> None:
    asked = {
        "url": f"{https.url}/{at(spot)}/messages?timeout=60&api-version=2014-01",
        "token": https.token(spot.hub),
        "connectionString": https.server.connection_string(),
        "hub": spot.hub,
        "partition": spot.partition,
    }
    ended = subprocess.run(
        [node.node, str(NODE_FOLDER / "https.mjs")],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=90,
        env=node.environ | {"NODE_EXTRA_CA_CERTS": https.server["ca_file"]},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["answers"] == [[201, ""]] * 3
    single, stream, text, image = told["events"]
    assert (single["hex"], single["messageId"]) == ("00ff0a0d", "m-1")
    assert (single["correlationId"], single["partitionKey"]) == ("c-1", "key")
    # Whether fetch keeps the case of a name depends on its version.
    named = {name.lower(): value for name, value in single["properties"].items()}
    assert named == {"temp": "21"}
    assert (stream["length"], stream["contentType"]) == (210_000, "application/octet-stream")
    assert bytes.fromhex(text["hex"]).decode() == "日本語"
    assert text["properties"] == {"text": "t", "whole": 7, "half": 0.5, "yes": True}
    assert (image["hex"], image["contentType"]) == ("00ff", "image/png")
