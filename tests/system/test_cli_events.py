"""`send`, `tail`, `get`, `replay`, `export`, `import`, `soak` as their users drive them: data,
talk and exit codes, against a broker of the test's own."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from penstock.amqp import types as t
from penstock.cli.events.event_sender import EventCopy, copy_events
from penstock.client import EventHubConsumerClient, EventHubProducerClient
from penstock.formats.event_sections import (
    EventContent,
    EventSections,
    encode_annotations,
    encode_fields,
)
from penstock.formats.event_sections import encode_properties as properties
from penstock.formats.quantities import format_time
from penstock.testing import InProcessBroker, ManualClock, broker

if TYPE_CHECKING:
    from tests.system.conftest import Forker

DEADLINE_S = 90  # a loaded machine
HOSTILE = b"\x1b]0;owned\x07\xff\x00 \x9b2J\r\n"


class Shell:
    """Runs `penstock` beside a broker."""

    def __init__(self, it: InProcessBroker, folder: Path, forker: Forker) -> None:
        self.broker = it
        self.folder = folder
        self._forker = forker
        clean = {name: v for name, v in os.environ.items() if not name.startswith("PENSTOCK_")}
        self._environ = clean | {
            "PENSTOCK_CONNECTION_STRING": it.connection_string,
            "PENSTOCK_CONTEXTS": str(folder / "contexts.json"),
            "COLUMNS": "100",
        }
        self._hubs = 0

    def hub(self, partitions: int = 2) -> str:
        """A new one."""
        self._hubs += 1
        name = f"hub-{self._hubs}"
        self.broker.create_hub(name, partitions=partitions)
        return name

    def __call__(self, *words: str, stdin: bytes = b"", code: int = 0) -> Done:
        files = [self.folder / f".{name}" for name in ("in", "out", "err")]
        for file, data in zip(files, (stdin, b"", b""), strict=True):
            file.write_bytes(data)
        names = [str(file) for file in files]
        ended = self._forker.run(words, cwd=str(self.folder), env=self._environ, files=names)
        said = files[2].read_text()
        assert ended == code, (words, ended, said)
        assert "Traceback" not in said, said
        return Done(files[1].read_bytes(), said)


class Done(NamedTuple):
    out: bytes
    said: str


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory, forker: Forker) -> Iterator[Shell]:
    with broker() as it:
        yield Shell(it, tmp_path_factory.mktemp("shell"), forker)


# --- send -----------------------------------------------------------------------------------------


def test_lines_go_through_pipes_in_order(shell: Shell) -> None:
    """Scripts rely on `send HUB --lines -`, `tail HUB --from earliest -n N --format '%b'`."""
    hub = shell.hub()
    text = b"".join(b"line %d\n" % number for number in range(12_345)) + b"\n\nlast \xff"
    sent = shell("send", hub, "--lines", "-", "--partition", "0", stdin=text)
    assert sent.out == b""
    assert sent.said.startswith("Sent 12,348 events (")
    read = shell("tail", hub, "--from", "earliest", "-n", "12348", "--format", "%b")
    assert read.out == text + b"\n"


def test_file_is_one_event_with_all_that_belongs_to_it(shell: Shell) -> None:
    hub = shell.hub()
    (shell.folder / "one.bin").write_bytes(HOSTILE)
    given = ("-k", "d7", "--property", "a=b=c", "--property", "n:=5", "--content-type", "x/y")
    shell("send", hub, "one.bin", *given, "--quiet")
    (event,) = shell.broker.published(hub)
    assert (event.body, event.partition_key) == (HOSTILE, "d7")
    assert event.properties == {"a": "b=c", "n": 5}
    assert event.system["content_type"] == "x/y"


def test_texts_are_repeated_in_batches_at_a_rate(shell: Shell) -> None:
    hub = shell.hub()
    words = ("--text", "a", "--text", "b", "--repeat", "3", "--batch", "1", "--rate", "1000/s")
    done = shell("send", hub, "-p", "1", *words)
    assert [each.text for each in shell.broker.published(hub, 1)] == ["a", "b"] * 3
    assert done.said.startswith("Sent 6 events (6 B) in ")


def test_event_that_is_too_large_is_refused_and_those_before_it_are_sent(shell: Shell) -> None:
    hub = shell.hub()
    text = b"fine\n" + b"x" * 2_000_000 + b"\nnever"
    done = shell("send", hub, "--lines", "-", stdin=text, code=1)
    assert re.search(
        r"Line 2 is too large: .* [0-9,]+ bytes or more. The limit .* [0-9,]+ bytes", done.said
    )
    assert "Events sent before this error: 1." in done.said
    assert [each.text for each in shell.broker.published(hub)] == ["fine"]


def test_exit_codes_say_what_happened(shell: Shell) -> None:
    hub = shell.hub()
    assert "no-such-hub" in shell("send", "no-such-hub", "-t", "x", code=3).said
    refused = re.sub(
        r"SharedAccessKey=[^;]+", "SharedAccessKey=wrong", shell.broker.connection_string
    )
    shell("send", hub, "-t", "x", "--connection-string", refused, code=4)
    shell("send", hub, "-t", "x", "-k", "k", "-p", "0", code=2)
    with shell.broker.faults.server_busy(None, hub=hub):
        busy = shell("send", hub, "-t", "x", "--patience", "0", code=5)
    assert busy.said.startswith("penstock: ") and busy.said.count("\n") == 1
    with shell.broker.faults.slow(30.0, hub=hub, side="send"):
        shell("send", hub, "-t", "x", "--timeout", "1s", "--patience", "0", code=6)


def test_certificate_is_verified_by_the_authority_that_is_named(shell: Shell) -> None:
    hub, secure = shell.hub(), ("--connection-string", shell.broker.tls_connection_string)
    untrusted = shell("send", hub, "-t", "x", *secure, code=1)
    assert "is not trusted" in untrusted.said
    trusted = (*secure, "--ca-file", shell.broker.ca_file)
    shell("send", hub, "-t", "over TLS", "-p", "0", *trusted)
    place = shell.broker.https_url.removeprefix("https://")
    web = re.sub("sb://[^/;]+", f"sb://{place}", secure[1])
    read = ("tail", hub, "--no-follow", "--websocket", "--ca-file", shell.broker.ca_file)
    assert shell(*read, "--connection-string", web).out == b"over TLS\n"


def test_busy_service_is_waited_for(shell: Shell) -> None:
    hub = shell.hub()
    with shell.broker.faults.server_busy(1, hub=hub) as fault:
        done = shell("send", hub, "-t", "x")
        assert fault.count == 1
    assert "the service is busy, next attempt in" in done.said
    assert [each.text for each in shell.broker.published(hub)] == ["x"]


# --- tail and get ---------------------------------------------------------------------------------


def test_tail_shows_fields_json_and_what_a_filter_wants(shell: Shell) -> None:
    hub = shell.hub()
    for number in (1, 2):
        words = ("-k", "k", "-P", f"n:={number}", "--content-type", "text/plain")
        shell("send", hub, "-t", f'{{"n": {number}}}', "-q", *words)
    (partition,) = {each.partition for each in shell.broker.published(hub)}
    template = "%p %s %k %b %S %h %c"
    shown = shell("tail", hub, "--no-follow", "--format", template)
    assert shown.said == ""
    assert shown.out.decode().splitlines() == [
        f'{partition} {number - 1} k {{"n": {number}}} 8 {{"n":{number}}} text/plain'
        for number in (1, 2)
    ]
    found = shell("tail", hub, "--no-follow", "-o", "jsonl", "--filter", "json.n > 1")
    record = json.loads(found.out)
    assert re.fullmatch(r"20[0-9T:.-]+Z", record.pop("enqueued_time"))
    assert record.pop("offset").isdigit()
    assert record == {
        "partition": str(partition),
        "sequence_number": 1,
        "partition_key": "k",
        "properties": {"n": 2},
        "system_properties": {"content-type": "text/plain"},
        "body": '{"n": 2}',
    }
    listed = json.loads(shell("tail", hub, "--from", "-1", "-n", "1", "-o", "json").out)
    assert [each["sequence_number"] for each in listed] == [1]
    assert json.loads(shell("tail", hub, "--no-follow", "--from", "latest", "-o", "json").out) == []


def test_tail_refuses_what_makes_no_sense(shell: Shell) -> None:
    hub = shell.hub()
    assert "yesterday" in shell("tail", hub, "--from", "yesterday", code=2).said
    assert "%q" in shell("tail", hub, "--format", "%q", code=2).said
    assert "partition '9'" in shell("tail", hub, "-p", "9", code=3).said
    shell("tail", hub, "-g", "nobody", code=3)


def test_get_prints_one_event_raw_or_whole(shell: Shell) -> None:
    hub = shell.hub()
    shell("send", hub, "-p", "1", "-P", "a=b", "-q", stdin=HOSTILE)
    assert shell("get", hub, "-p", "1", "--seq", "0").out == HOSTILE
    (record,) = json.loads(shell("get", hub, "-p", "1", "--seq", "0", "-o", "json").out)
    assert (record["properties"], record["sequence_number"]) == ({"a": "b"}, 0)
    gone = shell("get", hub, "-p", "1", "--seq", "1", code=3)
    assert gone.out == b""
    assert "it holds 0 to 0" in gone.said
    assert "it is empty" in shell("get", hub, "-p", "0", "--seq", "0", code=3).said


# --- copies ---------------------------------------------------------------------------------------


def copy_of(*content: Any, **more: Any) -> EventCopy:
    return EventCopy(EventContent(*content, **more))


def interesting() -> list[EventCopy]:
    """Every kind of value that an AMQP client may put into an event, and every kind of body."""
    values: list[object] = [None, True, t.Ubyte(1), t.Ushort(2), t.Uint(3), t.Ulong(2**64 - 1)]
    values += [t.Byte(-1), t.Short(-2), t.Int(-3), -(2**63), t.Float(1.5), 0.1, t.Char("ß")]
    values += [
        t.Timestamp(1_794_812_715_255),
        uuid.UUID(int=7),
        b"\x00\xff",
        "Grüße",
        t.Symbol("s"),
    ]
    values += [t.Described(t.Symbol("com.microsoft:timespan"), 36_000_000_000)]
    fields = {"content-type": "x/y", "message-id": t.Ulong(7), "correlation-id": uuid.UUID(int=9)}
    fields |= {"user-id": b"\xff", "subject": "s", "creation-time": 5, "group-sequence": 6}
    whole = EventSections(
        properties({f"p{number}": value for number, value in enumerate(values)}),
        encode_fields(fields),
        encode_annotations({"iothub-connection-device-id": "d7", "own": t.Uint(1)}),
    )
    plain = EventSections()
    return [
        copy_of(HOSTILE, whole, key="d7", partition="1"),
        copy_of(b"text", EventSections(properties({"a": "b"})), partition="0"),
        copy_of(b"", plain, partition="1"),
        copy_of(b"\x00\x53\x77" + b"\xa1\x02hi", plain, kind=0x77, partition="0"),
        copy_of(b"\x00\x53\x76" + b"\xc0\x03\x01\x54\x05", plain, kind=0x76, partition="1"),
        *(copy_of(b"%d" % n, plain, key=f"key {n % 5}", partition="0") for n in range(40)),
    ]


async def publish(it: InProcessBroker, hub: str, events: list[EventCopy]) -> None:
    async with EventHubProducerClient(it.connection_string, eventhub_name=hub) as producer:
        for event in events:
            await producer.send_batch([event], partition_id=event.partition)


async def content(it: InProcessBroker, hub: str) -> list[tuple[object, ...]]:
    """All that a copy of the hub must have too, in an order that does not depend on partitions."""
    found: list[tuple[object, ...]] = []
    async with EventHubConsumerClient(it.connection_string, eventhub_name=hub) as consumer:
        for partition in await consumer.get_partition_ids():
            async for columns in consumer.read_range(partition, 0, 2**40):
                for copy in copy_events(columns, partition):
                    out = bytearray()
                    copy.append_to(out, b"")
                    found.append((copy.partition_key or "", bytes(out), copy.partition))
    return found


@pytest.mark.parametrize("kind", ["jsonl", "avro"])
async def test_export_and_import_are_the_same_events(shell: Shell, kind: str) -> None:
    source, target = shell.hub(), shell.hub()
    await publish(shell.broker, source, interesting())
    exported = shell(
        "export", source, f"events.{kind}", "--force", *["--deflate"] * (kind == "avro")
    )
    assert exported.said.startswith("Exported 45 events (")
    assert "45 events" in shell("import", target, f"events.{kind}", "--dry-run").said
    assert await content(shell.broker, target) == []
    shell("import", target, f"events.{kind}")
    came, went = await content(shell.broker, target), await content(shell.broker, source)
    # Keys lead to the partition that the service would choose; all others stay where they were.
    assert [each for each in came if not each[0]] == [each for each in went if not each[0]]
    assert sorted(each[:2] for each in came) == sorted(each[:2] for each in went)
    again = shell("export", source, f"events.{kind}", code=2)
    assert "--force" in again.said


async def test_replay_keeps_everything_but_the_place(shell: Shell) -> None:
    source, target = shell.hub(), shell.hub(4)
    await publish(shell.broker, source, interesting())
    planned = shell("replay", source, "--into", target, "--from", "1", "-p", "0", "--dry-run")
    assert planned.out.decode().splitlines()[-1].split() == ["0", "1", "41", "41"]
    done = shell("replay", source, "--into", target)
    assert done.said.startswith("Replayed 45 events (")
    came, went = await content(shell.broker, target), await content(shell.broker, source)
    assert sorted(each[:2] for each in came) == sorted(each[:2] for each in went)
    for key in {each[0] for each in went if each[0]}:
        # One partition, and there in the order of before.
        assert len({each[2] for each in came if each[0] == key}) == 1
        assert [e[1] for e in came if e[0] == key] == [e[1] for e in went if e[0] == key]
    # The key's own partition is the one that the service chooses.
    shell("send", target, "-k", "d7", "-t", "check", "-q")
    chosen = {
        each.partition for each in shell.broker.published(target) if each.partition_key == "d7"
    }
    assert len(chosen) == 1


async def test_replay_takes_a_range_of_times_at_its_speed(tmp_path: Path, forker: Forker) -> None:
    clock = ManualClock()
    async with broker(clock=clock, hubs={"events": 2, "copy": 2}) as it:
        shell = Shell(it, tmp_path, forker)
        for number in range(6):
            body = copy_of(b"%d" % number, EventSections(), partition=str(number % 2))
            await publish(it, "events", [body])
            it.advance(timedelta(seconds=10))
        times = [each.enqueued_ms for each in it.published("events", 0)]
        iso = ["--from", format_time(times[1]), "--to", format_time(times[2])]
        shell("replay", "events", "--into", "copy", *iso, "--speed", "1000x", "-q")
        assert [each.text for each in it.published("copy", 0)] == ["2"]
        assert [each.text for each in it.published("copy", 1)] == ["3"]


def test_file_that_is_none_is_refused_with_its_line(shell: Shell) -> None:
    hub = shell.hub()
    (shell.folder / "bad.jsonl").write_text('{"body": "fine"}\n\n{"no": "body"}\n')
    done = shell("import", hub, "bad.jsonl", code=1)
    assert "bad.jsonl, line 3: neither body nor body_base64" in done.said
    (shell.folder / "bad.avro").write_bytes(b"Obj\x01garbage")
    assert "bad.avro, after event 0: " in shell("import", hub, "bad.avro", code=1).said
    assert "No such file" in shell("import", hub, "none.avro", code=3).said
    assert "neither in .avro nor in .jsonl" in shell("export", hub, "x.csv", code=2).said
    assert shell.broker.published(hub) == []


def test_tail_feeds_import(shell: Shell) -> None:
    hub, other = shell.hub(), shell.hub()
    shell("send", hub, "--lines", "-", "-p", "1", "-q", stdin=b"a\nb\nc\n")
    found = shell("tail", hub, "--no-follow", "-o", "jsonl")
    shell("import", other, "-", stdin=found.out)
    assert [each.text for each in shell.broker.published(other, 1)] == ["a", "b", "c"]


def test_soak_finds_nothing_although_connections_are_lost(shell: Shell) -> None:
    hub = shell.hub()
    words = ("soak", "--hub", hub, "--minutes", "0.05", "--rate", "400/s", "-o", "json")
    # Stored, and the producer does not hear so: an idempotent one sends it again, to no effect.
    with shell.broker.faults.drop_connection(20, hub=hub, side="send", acknowledge=False) as fault:
        found = json.loads(shell(*words).out)
        assert fault.count == 1
    assert {each["partition"] for each in found} == {"0", "1"}
    assert all(each["sent"] == each["received"] > 0 for each in found)
    assert len(shell.broker.published(hub)) == sum(each["sent"] for each in found)
