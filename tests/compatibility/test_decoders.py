"""What Penstock accepts, every client's own decoder reads, but for the types that a table names.

2,000 messages of all types in all places (`sample_messages.py`) go through the kernels as through
the service: accepted, stored and framed for a reader. What is delivered is decoded by the libraries
that the clients use. docs/reference/compatibility.md lists what each of them cannot decode.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from azure.eventhub._pyamqp._decode import decode_payload
from tests.compatibility.sample_messages import FIELDS, Sample, samples
from tests.conftest import NodeTools

from penstock.kernels import RefusedEvent, frame_events, split_singles

COUNT = 2_000
SEED = 15
DEADLINE_S = 120
FOLDER = Path(__file__).parent
DOCUMENT = FOLDER.parents[1] / "docs" / "reference" / "compatibility.md"


class Delivered:
    """A sample and the bytes that a reader gets of it."""

    def __init__(self, sample: Sample, message: bytes) -> None:
        self.sample = sample
        self.message = message


def _deliver(sections: bytes) -> bytes:
    """The payload of the one transfer that delivers a stored event."""
    framed = frame_events(
        sections, 0, events_max=1, frames_max=1, bytes_max=1, channel=0, handle=0, delivery_id=0,
        frame_bytes_max=1 << 20, sequence=5, base_offset=0, enqueued_ms=1_700_000_000_000,
        runtime=b"",
    )  # fmt: skip
    assert framed.events == 1
    performative = framed.data[8:]
    assert performative[:4] == b"\x00\x53\x14\xc0"
    return performative[5 + performative[4] :]


def _accepted() -> Iterator[Delivered]:
    for sample in samples(SEED):
        (split,) = split_singles(sample.message, [0, len(sample.message)])
        if isinstance(split, RefusedEvent):
            # Only a type that AMQP does not allow in a field of properties or header.
            assert not sample.features, split.error
            assert re.search(r"the field \S+ of (properties|header)", str(split.error))
        else:
            yield Delivered(sample, _deliver(split.sections))


@pytest.fixture(scope="module")
def delivered() -> list[Delivered]:
    source = _accepted()
    return [next(source) for _ in range(COUNT)]


def _listed(client: str) -> set[str]:
    """What the document says that the client cannot decode."""
    table = DOCUMENT.read_text().partition("### Types that a client cannot decode")[2]
    rows = re.findall(r"^\| `([^`|]+)` \| ([^|]+) \|", table.partition("\n#")[0], re.MULTILINE)
    return {kind.strip() for name, kinds in rows if name == client for kind in kinds.split(";")}


def _check(client: str, failures: dict[int, str], delivered: list[Delivered]) -> None:
    listed = _listed(client)
    unexpected = {
        number: (failure, sorted(delivered[number].sample.features))
        for number, failure in failures.items()
        if not delivered[number].sample.features & listed
    }
    assert unexpected == {}
    failed = set().union(*(delivered[number].sample.features for number in failures))
    assert listed <= failed, "the document lists what the client can decode"


def _run(command: list[str], delivered: list[Delivered], **options: object) -> dict[int, str]:
    lines = "".join(each.message.hex() + "\n" for each in delivered)
    ended = subprocess.run(  # type: ignore[call-overload]  # options are those of run
        command, input=lines, capture_output=True, text=True, timeout=DEADLINE_S, **options
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    rows = (line.split("\t", 1) for line in ended.stdout.splitlines())
    return {int(number): failure for number, failure in rows}


def test_samples_have_every_field_and_type(delivered: list[Delivered]) -> None:
    features = set().union(*(each.sample.features for each in delivered))
    assert {"char", "decimal32", "decimal64", "decimal128", "array of uuid", "map"} <= features
    assert len(features) > 60
    with_fields = [each for each in delivered if b"\x00\x53\x73" in each.message]
    assert len(with_fields) > len(FIELDS)


def test_azure_eventhub_decodes_what_is_accepted(delivered: list[Delivered]) -> None:
    failures = {}
    for number, each in enumerate(delivered):
        try:
            decode_payload(memoryview(each.message))
        except Exception as error:  # noqa: BLE001  # whatever it raises is a failure
            failures[number] = repr(error)
    _check("azure-eventhub", failures, delivered)


def test_rhea_decodes_what_is_accepted(node: NodeTools, delivered: list[Delivered]) -> None:
    command = [node.node, str(FOLDER / "node" / "decode.mjs")]
    _check("rhea", _run(command, delivered, env=node.environ), delivered)


def test_go_amqp_decodes_what_is_accepted(go_program: Path, delivered: list[Delivered]) -> None:
    _check("go-amqp", _run([str(go_program), "decode"], delivered), delivered)


def test_proton_j_decodes_what_is_accepted(
    java_command: list[str], delivered: list[Delivered]
) -> None:
    _check("proton-j", _run([*java_command[:-1], "Decode"], delivered), delivered)
