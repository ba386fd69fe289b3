"""Files of `export` and `import`: what comes out of a file is what was written to it."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.formats.event_samples import columns, published

from penstock.amqp import types as t
from penstock.cli.events.event_sender import EventCopy, copy_events
from penstock.cli.events.export_import import FileFormat, _open_writer, _read_events
from penstock.formats.amqp_values import InvalidEvent
from penstock.formats.event_sections import EventSections, encode_fields, encode_properties
from penstock.kernels import Columns

# Two events, the second without a body, in Capture's schema and with deflate, as another Avro
# library writes them.
FOREIGN = base64.b85decode(
    "Phx5T1QcO*a&InUZ)9a-4rFC!Y+-a|7GZXBZ!U9VXk~3-lm~kvba`-PB03-<a%E$0a%3VbAR=yIZDk@lAR<j^V{&hEZ)S"
    "8ZQ)O~?X=7zVb#pFFWpi_3XK8L{E=6`_ZgfOpbYUVaAR=aIWo%?~B03;jdm?UOZDk@lAR<#`adl;GV`WZtZDM6|A}k;xba"
    "`-PB03-<Y;SI7B7H0%dm?UOZDk@lAR<p@W^-k9A}k;xba`-PB03-<b98cPZf7EWEFgO#ZeeX@B03-<MQ(9*Wp!m_RB3HxR"
    "diz_EFdCud2nSSIv^r*baH8KXCi$pAbTQiVQpn1Iv^rbd2@7SZBTM=aAk6IX=QUFEFdCud2nSSIv{%@ba`-PB03-<ZDDXC"
    "EFdCwVQh6}b0Rt*TOw?4Zf7DaAR=UMbz*E~A}k;xb98cPZf7DaAR=OUbY*iQU44BlAbTQiVQpn1Iv^rYa&K^Da&&2Bb0RD"
    "tB6N9hWg<Etdm?msaAhJoAR=vHa3U-qB6eYHb!BrRIv`sjY;SI7A}k;xWN&q1Y-J)WAR=>ga%pa7A}k;xVtI6Bb0S@ReJmh"
    "*B5q-AWg<EtB0_Iuc_J(zB6N9hWg<EtTOw|CY-}PdAR=OUbY*iQU431B05CB!Gc+|eH#j+AVq;`wW(0%-<Kr+fGBMJy)HgE"
    "IH!?6ZSFo@$Ftsu=R|xRsQmfF-FDTJ1NGvMJEXmBz)6Gt;WMN4$*Mf)_rxuo`<|U`<=9T6qr4}*pNkGK&)6$AlOIW}LLyb"
    "ty11c>|P0=mM%uQw3aQ4=p>){f~`FSO&c_q3fl?ACR3W)^;Iho0cAba$)iu3arIGFMnxR}zI7{K6%JyS6YM@ec$2~!dq3&V"
    "c~CXs5T5+y4mLp{@40S*&m6JrcdSO7f%)CvG^jzBOmGBY$aHa9pqVPa!sWo7"
)


def read(data: bytes) -> list[EventCopy]:
    source = io.BufferedReader(io.BytesIO(data))
    return [event for events in _read_events(source, Path("x")) for event in events]


def write(*chunks: Columns, file_format: FileFormat = "avro", deflate: bool = False) -> bytes:
    target = io.BytesIO()
    writer = _open_writer(target, file_format, deflate=deflate)
    for chunk in chunks:
        writer(chunk, "3")
    return target.getvalue()


@pytest.mark.parametrize("file_format", ["avro", "jsonl"])
@pytest.mark.parametrize("deflate", [False, True])
def test_file_is_read_as_written(file_format: FileFormat, deflate: bool) -> None:
    chunks = (columns(key="k"), columns(body=b"\xff"))
    events = read(write(*chunks, file_format=file_format, deflate=deflate))
    copies = [copy for chunk in chunks for copy in copy_events(chunk, "3")]
    assert list(map(published, events)) == list(map(published, copies))


def test_file_of_another_library_is_read() -> None:
    first, second = read(FOREIGN)
    assert (first.body, first.partition_key) == (b'{"t":21.5}', "d7")
    assert first.properties == {"n": 5, "f": 1.5, "s": "text", "b": b"\x00\xff"}
    assert first.content_type == "application/json"
    assert (second.body, second.properties, second.partition_key) == (b"", {}, None)


def test_export_has_the_schema_and_the_columns_of_capture() -> None:
    assert len(write()) <= 508  # tools take a file of this size for an empty one (protocol.md 9)
    sections = EventSections(
        encode_properties({"n": t.Uint(5), "yes": True, "none": None, "big": t.Ulong(2**64 - 1)}),
        encode_fields({"content-type": "text/plain"}),
    )
    file = io.BytesIO(write(columns(sections=sections, key="k")))
    rows: list[Any] = list(fastavro.reader(file))
    (row,) = rows
    system = row.pop("SystemProperties")
    assert row == {
        "SequenceNumber": 7,
        "Offset": "4242",
        "EnqueuedTimeUtc": "11/16/2026 7:05:15 AM",
        "Properties": {"n": 5, "yes": "true", "none": "", "big": str(2**64 - 1)},
        "Body": b"body",
    }
    assert {name: value for name, value in system.items() if "penstock" not in name} == {
        "x-opt-sequence-number": 7,
        "x-opt-offset": "4242",
        "x-opt-enqueued-time": 1_794_812_715_255,
        "x-opt-partition-key": "k",
        "content-type": "text/plain",
    }
    assert system["penstock:partition"] == "3"


def test_another_schema_is_refused() -> None:
    file = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": [{"name": "Body", "type": "bytes"}]}
    fastavro.writer(file, schema, [{"Body": b"x"}])
    with pytest.raises(InvalidEvent, match="not that of Event Hubs Capture"):
        read(file.getvalue())


def test_file_that_is_cut_anywhere_is_refused() -> None:
    for end in range(len(FOREIGN)):
        try:
            events = read(FOREIGN[:end])
        except InvalidEvent:
            continue
        assert events == []  # the header alone


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_file_is_refused_or_read(data: st.DataObject) -> None:
    damaged = bytearray(data.draw(st.sampled_from([FOREIGN, write(columns(key="k"))])))
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        assert isinstance(read(bytes(damaged)), list)
    except InvalidEvent as error:
        assert str(error).startswith("x, ")
