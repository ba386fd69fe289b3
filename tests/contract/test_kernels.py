"""What every kernel promises, pure or compiled, on random messages and random damage.

The messages come from an encoder of its own, in here, that knows nothing of the kernels': each
section is kept as its encoded value, and what comes out must hold the same bytes (protocol.md E22).
"""

from __future__ import annotations

import importlib
import os
import struct
from types import ModuleType
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.kernel_outcome import outcome

from penstock.amqp import transfer_run
from penstock.kernels import KernelError, Publication, RefusedEvent
from penstock.kernels._pure import columns, publications, transfer_frames

# PENSTOCK_FUZZ_EXAMPLES=5000 for a long run.
thorough = settings(
    max_examples=int(os.environ.get("PENSTOCK_FUZZ_EXAMPLES", "40")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class Kernel:
    """The kernels of one implementation. The pure one is the specification."""

    def __init__(self, name: str, *modules: ModuleType) -> None:
        functions = {key: value for module in modules for key, value in vars(module).items()}
        self.name = name
        self.split_batch = functions["split_batch"]
        self.split_singles = functions["split_singles"]
        self.frame_events = functions["frame_events"]
        self.decode_events = functions["decode_events"]
        self.scan_transfers = functions["scan_transfers"]


PURE = Kernel("pure", publications, transfer_frames, columns, transfer_run)


def _built() -> list[Kernel]:
    try:
        names = ("_publications", "_transfer_frames", "_columns")
        modules = [importlib.import_module(f"penstock.kernels.{name}") for name in names]
        compiled_scan = importlib.import_module("penstock.amqp._transfer_scanner")
    except ImportError:
        return [PURE]
    return [PURE, Kernel("compiled", *modules, compiled_scan)]


KERNELS = _built()
kernels = pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.name)

OWNED = (
    "x-opt-sequence-number", "x-opt-sequence-number-epoch", "x-opt-offset", "x-opt-enqueued-time",
    "x-opt-publisher",
)  # fmt: skip
SYMBOLIC = {
    0x70: b"amqp:header:list", 0x71: b"amqp:delivery-annotations:map",
    0x72: b"amqp:message-annotations:map", 0x73: b"amqp:properties:list",
    0x74: b"amqp:application-properties:map", 0x75: b"amqp:data:binary",
    0x76: b"amqp:amqp-sequence:list", 0x77: b"amqp:amqp-value:*", 0x78: b"amqp:footer:map",
}  # fmt: skip


# --- an encoder -----------------------------------------------------------------------------------
def variable(short: int, payload: bytes, *, long: bool = False) -> bytes:
    if long or len(payload) > 255:
        return bytes((short + 0x10,)) + struct.pack(">I", len(payload)) + payload
    return bytes((short, len(payload))) + payload


def compound(short: int, count: int, body: bytes, *, long: bool = False) -> bytes:
    if long or count > 255 or len(body) > 254:
        return bytes((short + 0x10,)) + struct.pack(">II", len(body) + 4, count) + body
    return bytes((short, len(body) + 1, count)) + body


def fixed(code: int, width: int) -> st.SearchStrategy[bytes]:
    return st.binary(min_size=width, max_size=width).map(lambda payload: bytes((code,)) + payload)


long_forms = st.booleans()
texts = st.text(max_size=20).map(lambda text: text.encode())
names = st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1, max_size=20)
strings = st.builds(lambda payload, long: variable(0xA1, payload, long=long), texts, long_forms)
symbols = st.builds(lambda n, long: variable(0xA3, n.encode(), long=long), names, long_forms)
binaries = st.builds(lambda b, long: variable(0xA0, b, long=long), st.binary(), long_forms)
scalars = st.one_of(
    st.sampled_from([bytes((code,)) for code in range(0x40, 0x46)]),
    *[fixed(code, 1) for code in range(0x50, 0x56)],
    st.sampled_from([b"\x56\x00", b"\x56\x01"]),
    *[fixed(code, 2) for code in (0x60, 0x61)],
    *[fixed(code, 4) for code in (0x70, 0x71, 0x72, 0x74)],
    st.characters(codec="utf-8").map(lambda char: b"\x73" + struct.pack(">I", ord(char))),
    *[fixed(code, 8) for code in (0x80, 0x81, 0x82, 0x83, 0x84)],
    *[fixed(code, 16) for code in (0x94, 0x98)],
    st.one_of(binaries, strings, symbols),
)
arrays = st.one_of(
    st.lists(st.binary(min_size=4, max_size=4), max_size=5).map(
        lambda items: compound(0xE0, len(items), b"\x71" + b"".join(items))
    ),
    st.lists(texts, max_size=5).map(
        lambda items: compound(
            0xE0, len(items), b"\xa1" + b"".join(bytes((len(item),)) + item for item in items)
        )
    ),
    st.integers(0, 1).map(lambda count: compound(0xE0, count, b"\x40", long=True)),
    st.just(compound(0xE0, 0, b"")),
)


def _compounds(children: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    items = st.lists(children, max_size=4)
    keys = scalars.filter(lambda value: value[0] != 0x45 and 0 < value[0] < 0xC0)
    pairs = st.lists(st.tuples(keys, children), max_size=3)
    return st.one_of(
        st.builds(
            lambda v, long: compound(0xC0, len(v), b"".join(v), long=long), items, long_forms
        ),
        st.builds(
            lambda v, long: compound(0xC1, 2 * len(v), b"".join(a + b for a, b in v), long=long),
            pairs,
            long_forms,
        ),
        children.map(lambda value: b"\x00\x53\x99" + value),
        st.tuples(names, children).map(lambda v: b"\x00" + variable(0xA3, v[0].encode()) + v[1]),
    )


uints = st.just(b"\x43") | fixed(0x52, 1) | fixed(0x70, 4)
ulongs = st.just(b"\x44") | fixed(0x53, 1) | fixed(0x80, 8)
booleans = st.sampled_from([b"\x41", b"\x42", b"\x56\x00", b"\x56\x01"])
message_ids = st.one_of(ulongs, fixed(0x98, 16), binaries, strings)
# The fields of header and properties and the types that AMQP 3.2 gives them.
HEADER = (booleans, fixed(0x50, 1), uints, booleans, uints)
PROPERTIES = (
    message_ids, binaries, strings, strings, strings, message_ids, symbols, symbols,
    fixed(0x83, 8), fixed(0x83, 8), strings, uints, strings,
)  # fmt: skip


def fields_of(types: tuple[st.SearchStrategy[bytes], ...]) -> st.SearchStrategy[list[bytes]]:
    """Some of the fields, from the first one on."""
    return st.integers(0, len(types)).flatmap(
        lambda count: st.tuples(*(st.just(b"\x40") | kind for kind in types[:count])).map(list)
    )


values = st.recursive(st.one_of(scalars, arrays), _compounds, max_leaves=8)


class Model(msgspec.Struct):
    """A message as the test sees it: section values by code, annotations as pairs."""

    sections: dict[int, bytes]
    bodies: list[tuple[int, bytes]]
    pairs: list[tuple[str, bytes]] | None
    encoded: bytes = b""


annotation_names = st.one_of(
    names, st.sampled_from([*OWNED, "x-opt-partition-key", "com.microsoft:producer-id"])
)
keys = st.one_of(st.none(), st.text(max_size=128))


@st.composite
def annotation_pairs(draw: st.DrawFn) -> list[tuple[str, bytes]]:
    chosen = draw(st.lists(annotation_names, max_size=6, unique=True))
    pairs = []
    for name in chosen:
        if name == "x-opt-partition-key" and draw(st.booleans()):
            pairs.append((name, variable(0xA1, draw(st.text(max_size=30)).encode())))
        else:
            pairs.append((name, draw(scalars if name == "x-opt-partition-key" else values)))
    return pairs


@st.composite
def models(draw: st.DrawFn) -> Model:
    sections: dict[int, bytes] = {}
    if draw(st.booleans()):
        fields = draw(fields_of(HEADER))
        sections[0x70] = compound(0xC0, len(fields), b"".join(fields), long=draw(long_forms))
    for code, shortest in ((0x71, 0xA3), (0x74, 0xA1), (0x78, 0xA3)):
        if draw(st.booleans()):
            pairs = draw(st.lists(st.tuples(names, values), max_size=4))
            body = b"".join(variable(shortest, k.encode()) + v for k, v in pairs)
            sections[code] = compound(0xC1, 2 * len(pairs), body, long=draw(long_forms))
    if draw(st.booleans()):
        fields = draw(fields_of(PROPERTIES))
        sections[0x73] = compound(0xC0, len(fields), b"".join(fields), long=draw(long_forms))
        if not fields and draw(st.booleans()):
            sections[0x73] = b"\x45"
    kind = draw(st.sampled_from([0x75, 0x75, 0x76, 0x77, 0]))
    bodies: list[bytes] = []
    if kind == 0:
        pass
    elif kind == 0x77:
        bodies = [draw(values)]
    elif kind == 0x76:
        lists = draw(st.lists(st.lists(values, max_size=3), min_size=1, max_size=2))
        bodies = [compound(0xC0, len(items), b"".join(items)) for items in lists]
    else:
        payloads = draw(st.lists(st.binary(max_size=600), min_size=1, max_size=3))
        bodies = [variable(0xA0, payload, long=draw(long_forms)) for payload in payloads]
        bodies += [b"\x40"] * draw(st.sampled_from([0, 0, 0, 1]))  # JS's body of null
    model = Model(
        sections,
        [(kind, body) for body in bodies],
        draw(annotation_pairs()) if draw(st.booleans()) else None,
    )
    model.encoded = draw(encoded(model))
    return model


@st.composite
def encoded(draw: st.DrawFn, model: Model) -> bytes:
    """The model's bytes, canonical or not: any descriptor, any order, keys as strings."""
    plain = draw(st.booleans())
    parts = [(code, value) for code, value in model.sections.items()] + model.bodies
    if model.pairs is not None:
        short = 0xA3 if plain or draw(st.booleans()) else 0xA1
        body = b"".join(variable(short, name.encode()) + value for name, value in model.pairs)
        parts.append((0x72, compound(0xC1, 2 * len(model.pairs), body, long=draw(long_forms))))
    parts.sort(key=lambda part: part[0])
    if not plain and len(model.bodies) <= 1:
        parts = draw(st.permutations(parts))
    message = b""
    for code, value in parts:
        form = 0 if plain else draw(st.integers(0, 3))
        if form == 1:
            message += b"\x00\x80" + struct.pack(">Q", code) + value
        elif form == 2:
            message += b"\x00" + variable(0xA3, SYMBOLIC[code]) + value
        else:
            message += bytes((0, 0x53, code)) + value
    return message


# --- a decoder ------------------------------------------------------------------------------------
def value_end(data: bytes, position: int) -> int:
    code = data[position]
    kind = code >> 4
    if code == 0:
        return value_end(data, value_end(data, position + 1))
    if kind in (4, 5, 6, 7, 8, 9):
        return position + 1 + (0, 1, 2, 4, 8, 16)[kind - 4]
    if kind in (0xA, 0xC, 0xE):
        return position + 2 + data[position + 1]
    return position + 5 + int(struct.unpack_from(">I", data, position + 1)[0])


def sections_of(message: bytes) -> list[tuple[int, bytes]]:
    found = []
    position = 0
    while position < len(message):
        assert message[position : position + 2] == b"\x00\x53"
        stop = value_end(message, position + 3)
        found.append((message[position + 2], message[position + 3 : stop]))
        position = stop
    return found


def pairs_of(value: bytes) -> list[tuple[bytes, bytes]]:
    """Keys and values of an encoded map."""
    position = 3 if value[0] == 0xC1 else 9
    pairs = []
    while position < len(value):
        middle = value_end(value, position)
        stop = value_end(value, middle)
        pairs.append((value[position:middle], value[middle:stop]))
        position = stop
    return pairs


def deliveries(data: bytes, frame_bytes_max: int) -> tuple[list[bytes], int]:
    """Messages put together again from transfer frames, and the number of frames."""
    messages, payload, number = [], b"", 0
    position = 0
    while position < len(data):
        size, plain, channel = struct.unpack_from(">IHH", data, position)
        assert size <= frame_bytes_max
        assert (plain, channel) == (0x0200, 6)
        body = data[position + 8 : position + size]
        assert body[:4] == b"\x00\x53\x14\xc0"
        assert body[5] == 11
        payload += body[5 + body[4] :]
        if body[5 + body[4] - 6] == 0x42:
            messages.append(payload)
            payload = b""
        position += size
        number += 1
    assert payload == b""
    return messages, number


# --- helpers --------------------------------------------------------------------------------------
def wrapped(message: bytes) -> bytes:
    return b"\x00\x53\x75" + variable(0xA0, message)


def envelope(key: str | None) -> bytes:
    if key is None:
        return b""
    pair = variable(0xA3, b"x-opt-partition-key") + variable(0xA1, key.encode())
    return b"\x00\x53\x72" + compound(0xC1, 2, pair)


def framed(kernel: Kernel, sections: bytes, frame_bytes_max: int = 65_536) -> Any:
    return kernel.frame_events(
        sections,
        0,
        events_max=1 << 20,
        frames_max=1 << 20,
        bytes_max=1 << 30,
        channel=6,
        handle=1,
        delivery_id=0,
        frame_bytes_max=frame_bytes_max,
        sequence=100,
        base_offset=5_000,
        enqueued_ms=1_234,
        runtime=b"",
    )


def positions_of(sections: bytes) -> list[int]:
    found = []
    position = 0
    while position < len(sections):
        found.append(position)
        position = value_end(sections, position + 3)
    return found


def own_key(model: Model) -> str | None:
    for name, value in model.pairs or ():
        if name == "x-opt-partition-key" and value[0] in (0xA1, 0xB1):
            return value[2 if value[0] == 0xA1 else 5 :].decode()
    return None


def expected_pairs(model: Model, key: str | None) -> list[tuple[bytes, bytes]]:
    """The sender's annotations as a reader gets them."""
    pairs = []
    for name, value in model.pairs or ():
        if name in OWNED:
            continue
        if name == "x-opt-partition-key" and (key is not None or value[0] not in (0xA1, 0xB1)):
            continue
        pairs.append((variable(0xA3, name.encode()), value))
    if key is not None:
        mine = (variable(0xA3, b"x-opt-partition-key"), variable(0xA1, key.encode()))
        pairs.insert(0, mine)
    return pairs


def body_kind(model: Model) -> int:
    return model.bodies[0][0] if model.bodies else 0


def expected_body(model: Model) -> bytes:
    if body_kind(model) == 0x75:
        heads = {0xA0: 2, 0xB0: 5, 0x40: 1}
        return b"".join(value[heads[value[0]] :] for _, value in model.bodies)
    return b"".join(bytes((0, 0x53, code)) + value for code, value in model.bodies)


def without_key_order(pairs: list[tuple[bytes, bytes]]) -> set[tuple[bytes, bytes]]:
    """A key equal to the envelope's may stay where it stood, and in the form it had."""
    return {(k, v[5:] if v[0] == 0xB1 and b"partition" in k else v[2:] if b"partition" in k else v)
            for k, v in pairs}  # fmt: skip


# --- the promises ---------------------------------------------------------------------------------
@kernels
@thorough
@given(
    st.lists(models(), min_size=1, max_size=5),
    keys,
    st.one_of(st.integers(512, 700), st.just(65_536)),
)
def test_what_is_published_is_what_is_delivered(
    kernel: Kernel, batch: list[Model], key: str | None, frame_bytes_max: int
) -> None:
    data = envelope(key) + b"".join(wrapped(model.encoded) for model in batch)

    publication = kernel.split_batch(data, 0, len(data))
    result = framed(kernel, publication.sections, frame_bytes_max)
    messages, frames = deliveries(result.data, frame_bytes_max)
    joined = b"".join(messages)
    edges = [0]
    for message in messages:
        edges += [edges[-1] + len(message)] * 2
    columns = kernel.decode_events(joined, edges[:-1])

    assert publication == PURE.split_batch(data, 0, len(data))
    assert result == framed(PURE, publication.sections, frame_bytes_max)
    assert columns == PURE.decode_events(joined, edges[:-1])
    assert publication.count == result.events == len(messages) == len(batch)
    assert publication.partition_key == (own_key(batch[0]) if key is None else key)
    assert result.frames == frames
    assert result.position == len(publication.sections)
    assert columns.sequence_numbers == [100 + i for i in range(len(batch))]
    assert columns.offsets == [str(5_000 + p) for p in positions_of(publication.sections)]
    assert columns.enqueued_ms == [1_234] * len(batch)
    assert columns.partition_keys == [own_key(model) if key is None else key for model in batch]
    assert columns.bodies == [expected_body(model) for model in batch]
    assert columns.body_kinds == bytes(body_kind(model) for model in batch)
    assert columns.properties == [model.sections.get(0x74, b"") for model in batch]
    assert columns.message_properties == [model.sections.get(0x73, b"") for model in batch]
    for model, message in zip(batch, messages, strict=True):
        delivered = sections_of(message)
        (annotations,) = [value for code, value in delivered if code == 0x72]
        kept = dict(model.sections)
        kept.pop(0x70, None)
        assert [part for part in delivered if part[0] != 0x72] == sorted(
            [*kept.items(), *model.bodies], key=lambda part: part[0]
        )
        assert [code for code, _ in delivered] == sorted(code for code, _ in delivered)
        own = pairs_of(annotations)[4:]
        assert without_key_order(own) == without_key_order(expected_pairs(model, key))
        assert len(own) == len(expected_pairs(model, key))


@kernels
@thorough
@given(st.lists(models(), min_size=1, max_size=5), st.one_of(st.none(), st.just("device")))
def test_stored_form_is_canonical(
    kernel: Kernel, batch: list[Model], publisher: str | None
) -> None:
    bounds, data = [], b""
    for model in batch:
        bounds += [len(data), len(data) + len(model.encoded)]
        data += model.encoded

    parts = outcome(kernel.split_singles, data, bounds, publisher=publisher)
    assert parts == outcome(PURE.split_singles, data, bounds, publisher=publisher)
    for part in kernel.split_singles(data, bounds, publisher=publisher):
        if isinstance(part, RefusedEvent):
            assert publisher is not None
            continue
        again = kernel.split_batch(part.sections, 0, len(part.sections), publisher=publisher)
        assert again.sections == part.sections
        assert again.partition_key == part.partition_key
        assert again.count == part.count


@kernels
@thorough
@given(st.lists(models(), min_size=1, max_size=6))
def test_singles_are_stored_as_a_batch_of_them_would_be(kernel: Kernel, batch: list[Model]) -> None:
    bounds, data = [], b""
    for model in batch:
        bounds += [len(data), len(data) + len(model.encoded)]
        data += model.encoded
    whole = b"".join(wrapped(model.encoded) for model in batch)

    parts = kernel.split_singles(data, bounds)

    assert sum(part.count for part in parts) == len(batch)
    assert (
        b"".join(part.sections for part in parts)
        == kernel.split_batch(whole, 0, len(whole)).sections
    )
    assert [part.partition_key for part in parts for _ in range(part.count)] == [
        own_key(model) for model in batch
    ]


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    buffer = bytearray(data)
    for _ in range(draw(st.integers(1, 3))):
        act = draw(st.integers(0, 3))
        at = draw(st.integers(0, max(len(buffer) - 1, 0)))
        if act == 0 and buffer:
            buffer[at] = draw(st.integers(0, 255))
        elif act == 1:
            del buffer[at : at + draw(st.integers(1, 9))]
        elif act == 2:
            buffer[at:at] = draw(st.binary(min_size=1, max_size=9))
        elif buffer:
            buffer[at] = draw(st.sampled_from(b"\x00\x40\x45\x53\x75\xa0\xb0\xc0\xc1\xd1\xf0\xff"))
    return bytes(buffer)


@kernels
@thorough
@given(st.data())
def test_damaged_input_is_refused_or_taken_whole(kernel: Kernel, data: st.DataObject) -> None:
    batch = data.draw(st.lists(models(), min_size=1, max_size=3))
    whole = envelope(data.draw(keys)) + b"".join(wrapped(model.encoded) for model in batch)
    hostile = data.draw(damaged(whole))
    end = len(hostile)

    expected = outcome(PURE.split_batch, hostile, 0, end)
    assert outcome(kernel.split_batch, hostile, 0, end) == expected
    expected = outcome(PURE.split_singles, hostile, [0, end])
    assert outcome(kernel.split_singles, hostile, [0, end]) == expected
    try:
        publication = kernel.split_batch(hostile, 0, end)
    except KernelError:
        publication = None
    if publication is not None:
        # Whatever is taken can be delivered, decoded, and is canonical.
        messages, _ = deliveries(framed(kernel, publication.sections).data, 65_536)
        assert len(messages) == publication.count
        for message in messages:
            kernel.decode_events(message, [0, len(message)])
        sections = publication.sections
        assert kernel.split_batch(sections, 0, len(sections)).sections == sections


@kernels
@thorough
@given(st.data())
def test_damaged_store_is_refused_and_never_over_read(kernel: Kernel, data: st.DataObject) -> None:
    batch = data.draw(st.lists(models(), min_size=1, max_size=3))
    whole = b"".join(wrapped(model.encoded) for model in batch)
    stored = kernel.split_batch(whole, 0, len(whole)).sections
    hostile = data.draw(damaged(stored))

    expected = outcome(framed, PURE, hostile, 512)
    assert outcome(framed, kernel, hostile, 512) == expected
    try:
        result = framed(kernel, hostile, 512)
    except KernelError:
        return
    assert result.position <= len(hostile)
    assert len(result.data) <= len(hostile) + 200 * result.events + 40 * result.frames


@kernels
@thorough
@given(st.data())
def test_damaged_delivery_is_refused_or_decoded(kernel: Kernel, data: st.DataObject) -> None:
    model = data.draw(models())
    whole = wrapped(model.encoded)
    stored = kernel.split_batch(whole, 0, len(whole)).sections
    (message,), _ = deliveries(framed(kernel, stored).data, 65_536)
    hostile = data.draw(damaged(message))

    expected = outcome(PURE.decode_events, hostile, [0, len(hostile)])
    assert outcome(kernel.decode_events, hostile, [0, len(hostile)]) == expected
    try:
        columns = kernel.decode_events(hostile, [0, len(hostile)])
    except KernelError:
        return
    assert len(columns.bodies) == len(columns.body_kinds) == 1


@kernels
@thorough
@given(models())
def test_input_cut_anywhere_is_refused_or_shorter(kernel: Kernel, model: Model) -> None:
    whole = wrapped(model.encoded)
    stored = kernel.split_batch(whole, 0, len(whole)).sections
    for cut in range(len(whole)):
        with pytest.raises(KernelError):
            kernel.split_batch(whole[:cut], 0, cut)
        with pytest.raises(KernelError):
            kernel.split_batch(whole, 0, cut)
    for cut in range(1, len(stored)):
        with pytest.raises(KernelError):
            framed(kernel, stored[:cut])
    for cut in range(len(model.encoded)):
        (part,) = kernel.split_singles(model.encoded, [0, cut])
        assert isinstance(part, Publication | RefusedEvent)
