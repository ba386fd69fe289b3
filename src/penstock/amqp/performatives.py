"""Performatives, SASL frames, terminus and delivery states (AMQP 2.7, 2.8, 3.4, 3.5, 5.3).

A class declares its fields in wire order; `composite` derives the codec. Attribute names are those
of the specification with underscores; values are plain Python. A field without a default is
mandatory; null or absent on the wire gives the default.
"""

from __future__ import annotations

import struct
from typing import Annotated, Final, TypeAlias, cast

from penstock.amqp.composite import (
    SPECS_BY_DESCRIPTOR,
    Binary,
    Boolean,
    Composite,
    Map,
    String,
    SymbolMap,
    Symbols,
    SymbolText,
    Ubyte,
    Uint,
    Ulong,
    Ushort,
    choice_codec,
    composite,
    read_composite,
    read_descriptor,
    write_composite,
)
from penstock.amqp.decoder import DEFAULT, DecodeBudget, DecodeLimits, span_end
from penstock.amqp.errors import AmqpDecodeError
from penstock.amqp.types import Described

UINT_MAX: Final = 0xFFFFFFFF
USHORT_MAX: Final = 0xFFFF


# --- errors and delivery states --------------------------------------------------------------


@composite("amqp:error:list", 0x1D)
class Error(Composite, kw_only=True):
    """Always three fields on the wire (protocol.md E12)."""

    condition: SymbolText
    description: String | None = None
    info: SymbolMap | None = None


ErrorField = Annotated[Error, choice_codec(Error, name="error")]


@composite("amqp:received:list", 0x23)
class Received(Composite, kw_only=True):
    section_number: Uint
    section_offset: Ulong


@composite("amqp:accepted:list", 0x24, empty_as_list0=True)
class Accepted(Composite, kw_only=True):
    pass


@composite("amqp:rejected:list", 0x25)
class Rejected(Composite, kw_only=True):
    error: ErrorField | None = None


@composite("amqp:released:list", 0x26, empty_as_list0=True)
class Released(Composite, kw_only=True):
    pass


@composite("amqp:modified:list", 0x27)
class Modified(Composite, kw_only=True):
    delivery_failed: Boolean | None = None
    undeliverable_here: Boolean | None = None
    message_annotations: SymbolMap | None = None


# An unknown state (transactional, vendor-specific) stays a Described value.
DeliveryState: TypeAlias = Received | Accepted | Rejected | Released | Modified | Described

_STATE: Final = choice_codec(
    Received, Accepted, Rejected, Released, Modified, name="delivery state", or_described=True
)
StateField = Annotated[DeliveryState, _STATE]


# --- terminus --------------------------------------------------------------------------------


@composite("amqp:source:list", 0x28)
class Source(Composite, kw_only=True):
    address: String | None = None
    durable: Uint = 0
    expiry_policy: SymbolText = "session-end"
    timeout: Uint = 0
    dynamic: Boolean = False
    dynamic_node_properties: SymbolMap | None = None
    distribution_mode: SymbolText | None = None
    filter: SymbolMap | None = None
    default_outcome: StateField | None = None
    outcomes: Symbols | None = None
    capabilities: Symbols | None = None


@composite("amqp:target:list", 0x29)
class Target(Composite, kw_only=True):
    address: String | None = None
    durable: Uint = 0
    expiry_policy: SymbolText = "session-end"
    timeout: Uint = 0
    dynamic: Boolean = False
    dynamic_node_properties: SymbolMap | None = None
    capabilities: Symbols | None = None


@composite("amqp:coordinator:list", 0x30)
class Coordinator(Composite, kw_only=True):
    """The target of a transactional link. Decoded only so that such a link can be refused."""

    capabilities: Symbols | None = None


SourceField = Annotated[Source, choice_codec(Source, name="source")]
TargetField = Annotated[Target | Coordinator, choice_codec(Target, Coordinator, name="target")]


# --- performatives ---------------------------------------------------------------------------


@composite("amqp:open:list", 0x10)
class Open(Composite, kw_only=True):
    container_id: String
    hostname: String | None = None
    max_frame_size: Uint = UINT_MAX
    channel_max: Ushort = USHORT_MAX
    idle_time_out: Uint | None = None
    outgoing_locales: Symbols | None = None
    incoming_locales: Symbols | None = None
    offered_capabilities: Symbols | None = None
    desired_capabilities: Symbols | None = None
    properties: SymbolMap | None = None


@composite("amqp:begin:list", 0x11)
class Begin(Composite, kw_only=True):
    remote_channel: Ushort | None = None
    next_outgoing_id: Uint
    incoming_window: Uint
    outgoing_window: Uint
    handle_max: Uint = UINT_MAX
    offered_capabilities: Symbols | None = None
    desired_capabilities: Symbols | None = None
    properties: SymbolMap | None = None


@composite("amqp:attach:list", 0x12)
class Attach(Composite, kw_only=True):
    """`role` is True for a receiver."""

    name: String
    handle: Uint
    role: Boolean
    # None instead of the defaults (mixed, first): the server echoes only what the client has set
    # (protocol.md E7).
    snd_settle_mode: Ubyte | None = None
    rcv_settle_mode: Ubyte | None = None
    source: SourceField | None = None
    target: TargetField | None = None
    unsettled: Map | None = None
    incomplete_unsettled: Boolean = False
    initial_delivery_count: Uint | None = None
    max_message_size: Ulong | None = None
    offered_capabilities: Symbols | None = None
    desired_capabilities: Symbols | None = None
    properties: SymbolMap | None = None


@composite("amqp:flow:list", 0x13)
class Flow(Composite, kw_only=True):
    next_incoming_id: Uint | None = None
    incoming_window: Uint
    next_outgoing_id: Uint
    outgoing_window: Uint
    handle: Uint | None = None
    delivery_count: Uint | None = None
    link_credit: Uint | None = None
    available: Uint | None = None
    drain: Boolean = False
    echo: Boolean = False
    properties: SymbolMap | None = None


@composite("amqp:transfer:list", 0x14)
class Transfer(Composite, kw_only=True):
    """`settled` None on a later frame means: unchanged (AMQP 2.7.5)."""

    handle: Uint
    delivery_id: Uint | None = None
    delivery_tag: Binary | None = None
    message_format: Uint | None = None
    settled: Boolean | None = None
    more: Boolean = False
    rcv_settle_mode: Ubyte | None = None
    state: StateField | None = None
    resume: Boolean = False
    aborted: Boolean = False
    batchable: Boolean = False


@composite("amqp:disposition:list", 0x15)
class Disposition(Composite, kw_only=True):
    """`role` is True if a receiver sends it; `last` None means `first`."""

    role: Boolean
    first: Uint
    last: Uint | None = None
    settled: Boolean = False
    state: StateField | None = None
    batchable: Boolean = False


@composite("amqp:detach:list", 0x16)
class Detach(Composite, kw_only=True):
    handle: Uint
    closed: Boolean = False
    error: ErrorField | None = None


@composite("amqp:end:list", 0x17)
class End(Composite, kw_only=True):
    error: ErrorField | None = None


@composite("amqp:close:list", 0x18)
class Close(Composite, kw_only=True):
    error: ErrorField | None = None


# --- SASL ------------------------------------------------------------------------------------


@composite("amqp:sasl-mechanisms:list", 0x40)
class SaslMechanisms(Composite, kw_only=True):
    sasl_server_mechanisms: Symbols


@composite("amqp:sasl-init:list", 0x41)
class SaslInit(Composite, kw_only=True):
    mechanism: SymbolText
    initial_response: Binary | None = None
    hostname: String | None = None

    def __repr__(self) -> str:  # PLAIN carries the key in initial_response
        return f"SaslInit(mechanism={self.mechanism!r}, hostname={self.hostname!r})"


@composite("amqp:sasl-challenge:list", 0x42)
class SaslChallenge(Composite, kw_only=True):
    challenge: Binary


@composite("amqp:sasl-response:list", 0x43)
class SaslResponse(Composite, kw_only=True):
    response: Binary

    def __repr__(self) -> str:
        return "SaslResponse(...)"


@composite("amqp:sasl-outcome:list", 0x44)
class SaslOutcome(Composite, kw_only=True):
    code: Ubyte
    additional_data: Binary | None = None


# --- frame bodies ----------------------------------------------------------------------------

Performative: TypeAlias = (
    Open
    | Begin
    | Attach
    | Flow
    | Transfer
    | Disposition
    | Detach
    | End
    | Close
    | SaslMechanisms
    | SaslInit
    | SaslChallenge
    | SaslResponse
    | SaslOutcome
)

_OPEN_TEXT_MAX: Final = 256  # characters; longer texts of the peer's open are cut
_OPEN_PROPERTIES: Final = frozenset({"product", "version", "user-agent"})
_PERFORMATIVE_CODES: Final = frozenset((*range(0x10, 0x19), *range(0x40, 0x45)))


def encode_performative(performative: Performative) -> bytes:
    """The body of a frame, encoded by the rules of protocol.md 0.2. Raises LocalError."""
    out = bytearray()
    write_composite(out, performative)
    return bytes(out)


def decode_performative(
    data: bytes, start: int, end: int, *, limits: DecodeLimits = DEFAULT
) -> tuple[Performative, int]:
    """The performative at `start` and the position after it, where the payload begins.

    The frame body is `data[start:end]`. Raises AmqpDecodeError, which names the field.
    """
    span_end(data, start, end)
    try:
        descriptor, pos = read_descriptor(data, start, end)
        spec = None if descriptor is None else SPECS_BY_DESCRIPTOR.get(descriptor)
        if spec is None or spec.code not in _PERFORMATIVE_CODES:
            raise AmqpDecodeError("the descriptor is not that of a performative")
        performative, pos = read_composite(spec, data, pos, end, DecodeBudget(limits))
    except (IndexError, struct.error):
        raise AmqpDecodeError("frame body is cut short") from None
    return cast(Performative, performative), pos


def trim_open(opened: Open) -> Open:
    """A copy of the peer's open with only the fields that are used later, and short texts.

    An open arrives before authentication and is kept as long as its connection: untrimmed, idle
    connections could fill the memory.
    """
    properties: dict[str, object] = {
        name: value[:_OPEN_TEXT_MAX]
        for name, value in (opened.properties or {}).items()
        if name.lower() in _OPEN_PROPERTIES and isinstance(value, str)
    }
    return Open(
        container_id=opened.container_id[:_OPEN_TEXT_MAX],
        hostname=opened.hostname and opened.hostname[:_OPEN_TEXT_MAX],
        max_frame_size=opened.max_frame_size,
        channel_max=opened.channel_max,
        idle_time_out=opened.idle_time_out,
        properties=properties,
    )
