"""Reading performatives as clients write them, and refusing what none may write."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.amqp import types as t
from penstock.amqp.composite import SPECS
from penstock.amqp.encoder import encode
from penstock.amqp.errors import AmqpDecodeError, LocalError
from penstock.amqp.performatives import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Detach,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Performative,
    Received,
    Rejected,
    Released,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    Transfer,
    decode_performative,
    encode_performative,
)


def body(descriptor: object, fields: list[object]) -> bytes:
    return encode(t.Described(descriptor, fields))


def read(data: bytes) -> Performative:
    performative, position = decode_performative(data, 0, len(data))
    assert position == len(data)
    return performative


def nulls(count: int) -> list[object]:
    return [None] * count


# --- descriptors and lists -------------------------------------------------------------------

DETACH_FIELDS: list[object] = [t.Uint(3), True]


@pytest.mark.parametrize(
    "descriptor",
    [
        bytes.fromhex("00 53 16"),
        bytes.fromhex("00 80 0000000000000016"),
        b"\x00\xa3\x10amqp:detach:list",
        b"\x00\xb3\x00\x00\x00\x10amqp:detach:list",
    ],
    ids=["smallulong", "ulong", "sym8", "sym32"],
)
@pytest.mark.parametrize(
    "fields",
    [
        bytes.fromhex("c0 04 02 52 03 41"),
        bytes.fromhex("d0 00000007 00000002 52 03 41"),
        bytes.fromhex("d0 0000000c 00000003 70 00000003 56 01 40"),
    ],
    ids=["list8", "list32", "wide fields"],
)
def test_performative_is_read_in_every_form_of_descriptor_and_list(
    descriptor: bytes, fields: bytes
) -> None:
    assert read(descriptor + fields) == Detach(handle=3, closed=True)


@pytest.mark.parametrize("cls", [spec.cls for spec in SPECS.values()], ids=lambda cls: cls.__name__)
def test_symbolic_descriptor_is_the_specifications(cls: type) -> None:
    name = "".join("-" + c.lower() if c.isupper() else c for c in cls.__name__)[1:]
    assert SPECS[cls].symbol == f"amqp:{name}:list"


def test_list0_stands_for_all_defaults() -> None:
    assert read(bytes.fromhex("00 53 17 45")) == End()
    assert read(bytes.fromhex("00 53 18 45")) == Close()
    assert read(bytes.fromhex("00 53 18 c0 01 00")) == Close()
    with pytest.raises(AmqpDecodeError, match=r"open\.container_id is mandatory"):
        read(bytes.fromhex("00 53 10 45"))


@pytest.mark.parametrize(
    "data",
    [
        bytes.fromhex("53 10 45"),  # not described
        bytes.fromhex("00 53 19 45"),  # no such performative
        bytes.fromhex("00 53 28 45"),  # a source is none
        bytes.fromhex("00 53 24 45"),  # an outcome is none
        bytes.fromhex("00 53 73 45"),  # a section of a message is none
        bytes.fromhex("00 80 0000000100000010 45"),  # vendor domain 1, not 0
        bytes.fromhex("00 44 45"),
        bytes.fromhex("00 a3 04 6f70656e 45"),
        bytes.fromhex("00 a1 0e") + b"amqp:open:list" + b"\x45",  # a string is no symbol
        bytes.fromhex("00 40 45"),
        bytes.fromhex("00 00 53 10 53 10 45"),
        bytes.fromhex("00 53 18 40"),  # a null where the list must be
        bytes.fromhex("00 53 18 c1 01 00"),  # a map
        bytes.fromhex("00 53 18 e0 02 00 40"),  # an array
        bytes.fromhex("00 53 18 00 53 18 45"),
    ],
    ids=lambda data: data.hex(),
)
def test_body_that_is_no_performative_is_refused(data: bytes) -> None:
    with pytest.raises(AmqpDecodeError):
        read(data)


# --- short lists and defaults ----------------------------------------------------------------


def test_missing_trailing_fields_have_their_defaults() -> None:
    assert read(body(0x10, ["c"])) == Open(
        container_id="c",
        hostname=None,
        max_frame_size=0xFFFFFFFF,
        channel_max=0xFFFF,
        idle_time_out=None,
        desired_capabilities=None,
        properties=None,
    )
    assert read(body(0x11, [None, t.Uint(0), t.Uint(1), t.Uint(2)])) == Begin(
        next_outgoing_id=0, incoming_window=1, outgoing_window=2, handle_max=0xFFFFFFFF
    )
    assert read(body(0x16, [t.Uint(1)])) == Detach(handle=1, closed=False, error=None)
    assert read(body(0x15, [True, t.Uint(1)])) == Disposition(role=True, first=1, settled=False)


def test_proton_transfer_of_four_fields_is_read() -> None:
    """protocol.md 12: handle, id, tag, format, and nothing else."""
    seen = read(body(0x14, [t.Uint(0), t.Uint(5), b"\x01", t.Uint(0)]))
    assert seen == Transfer(handle=0, delivery_id=5, delivery_tag=b"\x01", message_format=0)
    assert isinstance(seen, Transfer)
    assert (seen.settled, seen.more, seen.aborted) == (None, False, False)


def test_nulls_have_the_same_defaults_as_missing_fields() -> None:
    short = read(body(0x12, ["n", t.Uint(0), True]))
    assert read(body(0x12, ["n", t.Uint(0), True, *nulls(11)])) == short
    assert short == Attach(name="n", handle=0, role=True)
    assert isinstance(short, Attach)
    assert (short.snd_settle_mode, short.rcv_settle_mode) == (None, None)  # E7: not set, not echoed


def test_source_and_target_have_their_defaults() -> None:
    seen = read(
        body(
            0x12,
            ["n", t.Uint(0), True, None, None, t.Described(0x28, ["a"]), t.Described(0x29, [])],
        )
    )
    assert isinstance(seen, Attach)
    assert seen.source == Source(
        address="a", durable=0, expiry_policy="session-end", timeout=0, dynamic=False
    )
    assert seen.target == Target(address=None, expiry_policy="session-end")


@pytest.mark.parametrize("spec", SPECS.values(), ids=lambda spec: spec.name)
def test_one_field_too_many_is_refused(spec: Any) -> None:
    if not 0x10 <= spec.code <= 0x18 and not 0x40 <= spec.code <= 0x44:
        return
    with pytest.raises(AmqpDecodeError, match=f"{spec.name} has {len(spec.fields)} fields"):
        read(body(spec.code, nulls(len(spec.fields) + 1)))


MANDATORY: dict[type, list[str]] = {
    Open: ["container_id"],
    Begin: ["next_outgoing_id", "incoming_window", "outgoing_window"],
    Attach: ["name", "handle", "role"],
    Flow: ["incoming_window", "next_outgoing_id", "outgoing_window"],
    Transfer: ["handle"],
    Disposition: ["role", "first"],
    Detach: ["handle"],
    Error: ["condition"],
    Received: ["section_number", "section_offset"],
    SaslMechanisms: ["sasl_server_mechanisms"],
    SaslInit: ["mechanism"],
    SaslOutcome: ["code"],
}


def test_mandatory_fields_are_those_of_the_specification() -> None:
    for cls, spec in SPECS.items():
        if cls in MANDATORY:
            assert list(spec.mandatory) == MANDATORY[cls]
        else:
            assert spec.mandatory == () or spec.name in ("sasl-challenge", "sasl-response")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (body(0x10, [None]), "open.container_id"),
        (body(0x11, nulls(8)), "begin.next_outgoing_id"),
        (body(0x11, [None, t.Uint(0), None, t.Uint(0)]), "begin.incoming_window"),
        (body(0x12, ["n", t.Uint(0)]), "attach.role"),
        (body(0x13, [t.Uint(0), t.Uint(0), t.Uint(0)]), "flow.outgoing_window"),
        (body(0x14, nulls(11)), "transfer.handle"),
        (body(0x15, [True]), "disposition.first"),
        (body(0x16, [None, True]), "detach.handle"),
        (body(0x18, [t.Described(0x1D, [])]), "error.condition"),
        (body(0x40, [None]), "sasl-mechanisms.sasl_server_mechanisms"),
        (body(0x44, []), "sasl-outcome.code"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_absent_mandatory_field_is_refused_by_name(data: bytes, field: str) -> None:
    with pytest.raises(AmqpDecodeError, match=f"{field} is mandatory"):
        read(data)


# --- types of fields -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "encoded",
    [
        "50 07",
        "51 07",
        "52 07",
        "53 07",
        "54 07",
        "55 07",
        "60 0007",
        "61 0007",
        "70 00000007",
        "71 00000007",
        "80 0000000000000007",
        "81 0000000000000007",
    ],
)
def test_integer_of_any_type_is_accepted_when_it_fits(encoded: str) -> None:
    raw = t.Raw(bytes.fromhex(encoded))
    assert read(body(0x16, [raw])) == Detach(handle=7)  # uint
    assert read(body(0x11, [raw, raw, raw, raw])) == Begin(  # ushort and uint
        remote_channel=7, next_outgoing_id=7, incoming_window=7, outgoing_window=7
    )
    assert read(body(0x44, [raw])) == SaslOutcome(code=7)  # ubyte
    attach = read(body(0x12, ["n", raw, True, *nulls(7), raw]))  # ulong
    assert isinstance(attach, Attach)
    assert attach.max_message_size == 7
    assert type(attach.max_message_size) is int


@pytest.mark.parametrize("encoded", ["43", "44", "52 00", "54 00", "70 00000000"])
def test_zero_of_any_type_is_accepted(encoded: str) -> None:
    assert read(body(0x16, [t.Raw(bytes.fromhex(encoded))])) == Detach(handle=0)


@pytest.mark.parametrize(
    ("code", "fields", "field"),
    [
        (0x16, [t.Int(-1)], "detach.handle: -1 does not fit uint"),
        (0x16, [t.Ulong(2**32)], "detach.handle: 4294967296 does not fit uint"),
        (0x44, [t.Uint(256)], "sasl-outcome.code: 256 does not fit ubyte"),
        (0x11, [t.Uint(0x10000)], "begin.remote_channel: 65536 does not fit ushort"),
        (
            0x12,
            ["n", t.Uint(0), True, *nulls(7), t.Long(-5)],
            "attach.max_message_size: -5 does not fit ulong",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_integer_that_does_not_fit_is_refused_by_name(
    code: int, fields: list[object], field: str
) -> None:
    with pytest.raises(AmqpDecodeError, match=field):
        read(body(code, fields))


WRONG: list[tuple[int, int, object, str]] = [
    # (performative, position of the field, value, name of the field)
    (0x10, 0, t.Uint(1), "open.container_id"),
    (0x10, 0, t.Symbol("c"), "open.container_id"),
    (0x10, 0, b"c", "open.container_id"),
    (0x10, 1, ["h"], "open.hostname"),
    (0x10, 2, "65536", "open.max_frame_size"),
    (0x10, 2, 1.0, "open.max_frame_size"),
    (0x10, 2, True, "open.max_frame_size"),
    (0x10, 2, t.Timestamp(1), "open.max_frame_size"),
    (0x10, 5, "en-US", "open.outgoing_locales"),
    (0x10, 8, t.Array(["a"]), "open.desired_capabilities"),
    (0x10, 8, [t.Symbol("a"), None], "open.desired_capabilities"),
    (0x10, 8, t.Uint(1), "open.desired_capabilities"),
    (0x10, 9, [], "open.properties"),
    (0x10, 9, {t.Uint(1): 1}, "open.properties"),
    (0x12, 0, None, "attach.name"),
    (0x12, 2, t.Ubyte(1), "attach.role"),
    (0x12, 2, t.Raw(b"\x56\x02"), "attach.role"),
    (0x12, 5, "address", "attach.source"),
    (0x12, 5, t.Described(0x29, []), "attach.source"),
    (0x12, 5, t.Described("vendor:source", []), "attach.source"),
    (0x12, 6, t.Described(0x28, []), "attach.target"),
    (0x12, 6, [], "attach.target"),
    (0x12, 7, [], "attach.unsettled"),
    (0x14, 2, "tag", "transfer.delivery_tag"),
    (0x14, 7, "accepted", "transfer.state"),
    (0x15, 4, [], "disposition.state"),
    (0x16, 2, "error", "detach.error"),
    (0x16, 2, t.Described(0x24, []), "detach.error"),
    (0x41, 0, "PLAIN", "sasl-init.mechanism"),
    (0x41, 1, "response", "sasl-init.initial_response"),
]


@pytest.mark.parametrize(("code", "index", "value", "name"), WRONG, ids=str)
def test_field_of_the_wrong_type_is_refused_by_name(
    code: int, index: int, value: object, name: str
) -> None:
    good: dict[int, list[object]] = {
        0x10: ["c"],
        0x12: ["n", t.Uint(0), True],
        0x14: [t.Uint(0)],
        0x15: [True, t.Uint(0)],
        0x16: [t.Uint(0)],
        0x41: [t.Symbol("PLAIN")],
    }
    fields = good[code] + nulls(index + 1 - len(good[code]))
    fields[index] = value
    with pytest.raises(AmqpDecodeError, match=name):
        read(body(code, fields))


def test_wrong_type_deep_inside_names_the_whole_path() -> None:
    source = t.Described(0x28, [t.Uint(1)])
    with pytest.raises(AmqpDecodeError, match=r"attach\.source: source\.address: constructor 0x52"):
        read(body(0x12, ["n", t.Uint(0), True, None, None, source]))


# --- multiple, maps, states ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (t.Symbol("a"), ["a"]),
        (t.Array([t.Symbol("a"), t.Symbol("b")]), ["a", "b"]),
        (t.Array([t.Symbol("a")], t.SYMBOL_32), ["a"]),
        (t.Array([], t.SYMBOL_8), []),
        ([t.Symbol("a"), t.Symbol("b")], ["a", "b"]),
        ([], []),
        (None, None),
    ],
    ids=str,
)
def test_multiple_field_is_one_symbol_an_array_or_a_list(
    value: object, expected: list[str] | None
) -> None:
    seen = read(body(0x10, ["c", *nulls(7), value]))
    assert isinstance(seen, Open)
    assert seen.desired_capabilities == expected
    assert all(type(each) is str for each in seen.desired_capabilities or [])


def test_empty_multiple_field_is_written_as_null() -> None:
    empty = Open(container_id="c", desired_capabilities=[])
    assert encode_performative(empty) == encode_performative(Open(container_id="c"))


def test_map_keys_are_written_as_symbols_and_found_as_str() -> None:
    attach = Attach(name="n", handle=0, role=True, properties={"com.microsoft:epoch": t.Long(3)})
    data = encode_performative(attach)
    assert b"\xa3\x13com.microsoft:epoch\x55\x03" in data
    seen = read(data)
    assert isinstance(seen, Attach) and seen.properties is not None
    assert seen.properties["com.microsoft:epoch"] == 3
    assert type(seen.properties["com.microsoft:epoch"]) is t.Long


def test_map_with_string_keys_is_forgiven() -> None:
    seen = read(body(0x10, ["c", *nulls(8), {"product": "x"}]))
    assert isinstance(seen, Open)
    assert seen.properties == {"product": "x"}


def test_unsettled_map_keeps_binary_keys() -> None:
    attach = Attach(name="n", handle=0, role=True, unsettled={b"tag": None})
    assert read(encode_performative(attach)) == attach


def test_coordinator_is_read_as_a_target() -> None:
    coordinator = t.Described("amqp:coordinator:list", [t.Symbol("amqp:local-transactions")])
    seen = read(body(0x12, ["n", t.Uint(0), False, *nulls(3), coordinator]))
    assert isinstance(seen, Attach)
    assert seen.target == Coordinator(capabilities=["amqp:local-transactions"])


@pytest.mark.parametrize(
    ("encoded", "expected"),
    [
        (t.Described(0x24, []), Accepted()),
        (t.Described("amqp:accepted:list", []), Accepted()),
        (t.Described(0x25, []), Rejected()),
        (
            t.Described(0x25, [t.Described(0x1D, [t.Symbol("c"), "d"])]),
            Rejected(error=Error(condition="c", description="d")),
        ),
        (t.Described(0x26, []), Released()),
        (
            t.Described(0x27, [True, False]),
            Modified(delivery_failed=True, undeliverable_here=False),
        ),
        (t.Described(0x23, [t.Uint(1), t.Ulong(2)]), Received(section_number=1, section_offset=2)),
        (t.Described(0x34, [b"txn"]), t.Described(0x34, [b"txn"])),
        (t.Described("vendor:state", None), t.Described("vendor:state", None)),
        (t.Described(t.Uint(5), {"k": 1}), t.Described(t.Uint(5), {"k": 1})),
    ],
    ids=str,
)
def test_delivery_state_is_read_known_or_not(encoded: object, expected: object) -> None:
    seen = read(body(0x15, [True, t.Uint(0), None, True, encoded]))
    assert isinstance(seen, Disposition)
    assert seen.state == expected
    source = t.Described(0x28, [*nulls(8), encoded])
    attach = read(body(0x12, ["n", t.Uint(0), True, None, None, source]))
    assert isinstance(attach, Attach) and attach.source is not None
    assert attach.source.default_outcome == expected


def test_error_info_keeps_types() -> None:
    error = Error(condition="amqp:link:redirect", info={"port": t.Uint(5671), "host": "h"})
    seen = read(encode_performative(Close(error=error)))
    assert isinstance(seen, Close) and seen.error is not None and seen.error.info is not None
    assert seen.error == error
    assert type(seen.error.info["port"]) is t.Uint


# --- what our own caller may not do ----------------------------------------------------------


def wrong(value: object) -> Any:
    """Past mypy, which would stop such a caller; the codec must too."""
    return value


@pytest.mark.parametrize(
    ("performative", "reason"),
    [
        (Open(container_id=wrong(None)), r"open\.container_id is mandatory"),
        (Open(container_id=wrong(5)), r"open\.container_id cannot be a int"),
        (Open(container_id=wrong(b"c")), r"open\.container_id cannot be a bytes"),
        (Open(container_id="c", channel_max=65536), r"open\.channel_max: .*fit ushort"),
        (Open(container_id="c", max_frame_size=2**32), r"open\.max_frame_size: .*fit uint"),
        (Open(container_id="c", max_frame_size=-1), r"open\.max_frame_size: .*fit uint"),
        (Open(container_id="c", hostname="\ud800"), r"open\.hostname: .*surrogate"),
        (Open(container_id="c", desired_capabilities=["é"]), "ASCII"),
        (Open(container_id="c", desired_capabilities=wrong("a")), "cannot be a str"),
        (Open(container_id="c", desired_capabilities=wrong([1])), "cannot be a list"),
        (Open(container_id="c", properties=wrong({1: 1})), "cannot be a dict"),
        (Open(container_id="c", properties=wrong([])), "cannot be a list"),
        (Open(container_id="c", properties={"k": object()}), "object is no AMQP type"),
        (SaslOutcome(code=256), r"sasl-outcome\.code: .*fit ubyte"),
        (SaslOutcome(code=wrong("0")), r"sasl-outcome\.code cannot be a str"),
        (Detach(handle=1, closed=wrong(1)), r"detach\.closed cannot be a int"),
        (Detach(handle=1, error=wrong("x")), r"detach\.error cannot be a str"),
        (Detach(handle=wrong(1.5)), r"detach\.handle cannot be a float"),
        (Attach(name="n", handle=0, role=True, source=wrong("a")), "cannot be a str"),
        (Attach(name="n", handle=0, role=True, unsettled=wrong([])), "cannot be a list"),
        (Disposition(role=True, first=0, state=wrong("x")), "cannot be a str"),
        (
            Attach(name="n", handle=0, role=True, max_message_size=2**64),
            r"attach\.max_message_size: .*fit ulong",
        ),
        (
            Close(error=Error(condition=wrong(None))),
            r"close\.error: error\.condition is mandatory",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_encode_refuses_a_wrong_field_by_name(performative: Performative, reason: str) -> None:
    with pytest.raises(LocalError, match=reason):
        encode_performative(performative)


def test_constructor_takes_keywords_and_needs_the_mandatory_ones() -> None:
    with pytest.raises(TypeError):
        Open("c")  # type: ignore[call-arg]  # positions are the wire's business
    with pytest.raises(TypeError):
        Open()  # type: ignore[call-arg]  # the point of the test


def test_sasl_secrets_do_not_show() -> None:
    init = SaslInit(mechanism="PLAIN", initial_response=b"\0policy\0hunter2", hostname="h")
    assert "hunter2" not in repr(init)
    assert "hunter2" not in repr(SaslResponse(response=b"hunter2"))
    assert "hunter2" not in f"{msgspec.structs.replace(init, hostname=None)}"


def test_span_outside_the_frame_is_the_callers_fault() -> None:
    with pytest.raises(LocalError, match="span"):
        decode_performative(b"\x00\x53\x18\x45", 0, 5)
