"""Every AMQP 1.0 type through a partition and back, bit by bit, with Qpid Proton.

Some of them the Python SDK cannot decode (char, decimal32, decimal64): only Proton shows them.
"""

from __future__ import annotations

import math
import struct
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

# By name, not by import: the package is built from source and may be missing.
proton: Any = pytest.importorskip("proton", reason="python-qpid-proton is not installed")
utils: Any = pytest.importorskip("proton.utils")
Array, Described, Message = proton.Array, proton.Described, proton.Message
byte, short, int32 = proton.byte, proton.short, proton.int32
ubyte, ushort, uint, ulong = proton.ubyte, proton.ushort, proton.uint, proton.ulong
char, float32, symbol, timestamp = proton.char, proton.float32, proton.symbol, proton.timestamp
decimal32, decimal64, decimal128 = proton.decimal32, proton.decimal64, proton.decimal128
UNDESCRIBED, INT, STRING = proton.UNDESCRIBED, proton.Data.INT, proton.Data.STRING

if TYPE_CHECKING:
    from tests.compatibility.conftest import PythonSdk, Spot
    from tests.conftest import Server

WAIT_S = 20
FIELDS = (
    *("id", "correlation_id", "user_id", "address", "subject", "reply_to", "content_type"),
    *("content_encoding", "expiry_time", "creation_time", "group_id", "group_sequence"),
    "reply_to_group_id",
)

SIMPLE: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "ubyte": [ubyte(0), ubyte(255)],
    "ushort": [ushort(0), ushort(65_535)],
    "uint": [uint(0), uint(255), uint(256), uint(2**32 - 1)],
    "ulong": [ulong(0), ulong(255), ulong(256), ulong(2**64 - 1)],
    "byte": [byte(-128), byte(127)],
    "short": [short(-(2**15)), short(2**15 - 1)],
    "int": [int32(-(2**31)), int32(-1), int32(0), int32(2**31 - 1)],
    "long": [-(2**63), -129, -128, 0, 127, 128, 2**63 - 1],
    "float": [float32(0.5), float32(-0.0), float32(math.inf)],
    "double": [0.1, -0.0, math.inf, -math.inf, 5e-324],
    "char": [char("x"), char("\U0001f600")],
    "timestamp": [timestamp(0), timestamp(-62_135_596_800_000), timestamp(2**62)],
    "uuid": [uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)],
    "binary": [b"", bytes(range(256)), b"x" * 70_000],
    "string": ["", "ünïcödé \U0001f600", "y" * 70_000],
    "symbol": [symbol(""), symbol("x" * 300)],
    "decimal32": [decimal32(0x12345678)],
    "decimal64": [decimal64(0x123456789ABCDEF0)],
    "decimal128": [decimal128(bytes(range(16)))],
}
COMPOUND: dict[str, Any] = {
    "list": [1, "two", [ubyte(3), [None]]],
    "empty list": [],
    "map": {"a": 1, symbol("b"): {"c": [True]}, uint(7): "number"},
    "empty map": {},
    "described": Described(symbol("com.microsoft:timespan"), 10_000_000),
    "described by number": Described(ulong(0x137000000A), ["x", 1]),
    "array": Array(UNDESCRIBED, INT, int32(1), int32(-1), int32(2**31 - 1)),
    "array of strings": Array(UNDESCRIBED, STRING, "one", "two"),
    "deep": [[[[[[[[[["ten"]]]]]]]]]],
}


@pytest.fixture(scope="module")
def connection(server: Server) -> Iterator[Any]:
    connection = utils.BlockingConnection(
        f"amqp://{server['amqp']}",
        timeout=WAIT_S,
        user="RootManageSharedAccessKey",
        password=server.key,
        allowed_mechs="PLAIN",
        allow_insecure_mechs=True,
    )
    yield connection
    connection.close()


def there_and_back(connection: Any, spot: Spot, *messages: Any) -> list[Any]:
    sender = connection.create_sender(f"{spot.hub}/Partitions/{spot.partition}")
    for message in messages:
        sender.send(message)
    sender.close()
    source = f"{spot.hub}/ConsumerGroups/$Default/Partitions/{spot.partition}"
    receiver = connection.create_receiver(source, credit=len(messages))
    received = [receiver.receive(WAIT_S) for _ in messages]
    receiver.close()
    return received


def exact(value: Any) -> Any:
    """The value with its type, floats by their bits, all the way down."""
    if isinstance(value, float32):
        return ("float", struct.pack(">f", value))
    if isinstance(value, float):
        return ("double", struct.pack(">d", value))
    if isinstance(value, memoryview):
        return ("bytes", bytes(value))
    if isinstance(value, Described):
        return ("described", exact(value.descriptor), exact(value.value))
    if isinstance(value, Array):
        return ("array", value.type, [exact(each) for each in value.elements])
    if isinstance(value, list):
        return [exact(each) for each in value]
    if isinstance(value, dict):
        return {(type(k).__name__, k): exact(each) for k, each in value.items()}
    return (type(value).__name__, value)


@pytest.mark.parametrize("kind", SIMPLE)
def test_application_properties_keep_every_type(connection: Any, spot: Spot, kind: str) -> None:
    properties = {f"{kind} {n}": value for n, value in enumerate(SIMPLE[kind])}
    [received] = there_and_back(connection, spot, Message(body="x", properties=properties))
    assert exact(received.properties) == exact(properties)


@pytest.mark.parametrize("kind", SIMPLE)
def test_bodies_and_annotations_keep_every_type(connection: Any, spot: Spot, kind: str) -> None:
    values = SIMPLE[kind]
    annotations = {symbol(f"x-opt-{n}"): value for n, value in enumerate(values)}
    messages = [Message(body=value, annotations=dict(annotations)) for value in values]
    for sent, received in zip(messages, there_and_back(connection, spot, *messages), strict=True):
        assert exact(received.body) == exact(sent.body)
        got = {k: v for k, v in received.annotations.items() if k in annotations}
        assert exact(got) == exact(annotations)


@pytest.mark.parametrize("kind", COMPOUND)
def test_bodies_keep_every_compound(connection: Any, spot: Spot, kind: str) -> None:
    value = COMPOUND[kind]
    message = Message(body=value, annotations={symbol("x-opt-mine"): value})
    [received] = there_and_back(connection, spot, message)
    assert exact(received.body) == exact(value)
    assert exact(received.annotations[symbol("x-opt-mine")]) == exact(value)


def test_all_properties_of_a_message_come_back(connection: Any, spot: Spot) -> None:
    message = Message(
        body="x",
        id=ulong(7),
        correlation_id=uuid.UUID(int=9),
        user_id=b"user",
        address="to",
        subject="subject",
        reply_to="reply",
        content_type=symbol("text/plain"),
        content_encoding=symbol("gzip"),
        expiry_time=2_000_000_000.0,
        creation_time=1_900_000_000.0,
        group_id="group",
        group_sequence=5,
        reply_to_group_id="other",
        durable=True,
        priority=7,
        ttl=60,
    )
    [received] = there_and_back(connection, spot, message)
    for name in FIELDS:
        assert getattr(received, name) == getattr(message, name), name


async def test_python_sdk_reads_what_it_can_decode_of_them(
    connection: Any, spot: Spot, sdk: PythonSdk
) -> None:
    unreadable = {"char", "decimal32", "decimal64", "decimal128"}
    properties = {kind: values[-1] for kind, values in SIMPLE.items() if kind not in unreadable}
    sender = connection.create_sender(f"{spot.hub}/Partitions/{spot.partition}")
    sender.send(Message(body=b"x", properties=properties, inferred=True))
    sender.close()
    [received] = await sdk.read(*spot, 1)
    expected = {
        kind.encode(): value.encode() if isinstance(value, str) else value
        for kind, value in properties.items()
    }
    assert received.properties == expected
