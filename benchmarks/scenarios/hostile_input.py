"""Peers that misbehave: what each of 64 connections does, again and again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
import struct
from collections.abc import Awaitable, Callable

import msgspec

from penstock.amqp.frames import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, encode_frame
from penstock.amqp.message import Message, Properties, ValueBody, encode_message
from penstock.amqp.performatives import (
    Attach,
    Begin,
    Disposition,
    End,
    Flow,
    Open,
    Performative,
    SaslInit,
    Source,
    Transfer,
    encode_performative,
)
from penstock.amqp.performatives import Target as LinkTarget
from penstock.amqp.types import Long

_BLOCK_BYTES = 64 * 1024
_DEADLINE_S = 60.0
_ADDRESS = "127.0.0.2"  # not the normal client's: penalties and turns are per address

UPGRADE = (
    b"GET /$servicebus/websocket HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\n"
    b"Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: AMQPWSB10\r\n\r\n"
)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    amqp: int
    amqps: int
    https: int
    policy: str
    key: str
    hub: str


class Peer:
    """One connection at a time, as fast as the other side takes it."""

    def __init__(self, target: Target, tls: ssl.SSLContext) -> None:
        self.target = target
        self.tls = tls
        self.reader: asyncio.StreamReader
        self.writer: asyncio.StreamWriter

    async def come(self, port: int, *, secure: bool = False) -> None:
        self.reader, self.writer = await asyncio.open_connection(
            self.target.host, port, ssl=self.tls if secure else None, local_addr=(_ADDRESS, 0)
        )

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def hear_all(self) -> None:
        with contextlib.suppress(OSError):
            while await self.reader.read(_BLOCK_BYTES):
                pass

    async def say_for_ever(self, block: bytes) -> None:
        """As much as it takes, reading what it answers."""
        hearing = asyncio.create_task(self.hear_all())
        try:
            while not hearing.done() and not self.writer.transport.is_closing():
                await self.say(block)
                await asyncio.sleep(0)  # a transport that swallows everything would never let go
        finally:
            hearing.cancel()

    def go(self) -> None:
        if hasattr(self, "writer"):
            self.writer.transport.abort()

    # --- bytes

    def introduction(self, *, known: bool = True) -> bytes:
        """SASL, open, begin: all at once."""
        response = f"\0{self.target.policy}\0{self.target.key}".encode()
        init = SaslInit(mechanism="PLAIN", initial_response=response, hostname="localhost")
        if not known:
            init = SaslInit(mechanism="ANONYMOUS", hostname="localhost")
        begin = Begin(next_outgoing_id=0, incoming_window=2**31, outgoing_window=2**31)
        opened = Open(container_id="crowd", hostname="localhost")
        return b"".join(
            (
                SASL_HEADER,
                encode_frame(0, encode_performative(init), frame_type=1),
                AMQP_HEADER,
                frame(opened),
                frame(begin),
            )
        )


def frame(performative: Performative, payload: bytes = b"") -> bytes:
    return encode_frame(0, encode_performative(performative), payload)


def block(*frames: bytes) -> bytes:
    once = b"".join(frames)
    return once * (_BLOCK_BYTES // len(once) or 1)


def attach(name: str, handle: int, *, address: str, sends: bool) -> bytes:
    source = Source(address="here" if sends else address)
    target = LinkTarget(address=address if sends else "here")
    return frame(
        Attach(
            name=name,
            handle=handle,
            role=not sends,
            source=source,
            target=target,
            initial_delivery_count=0 if sends else None,
        )
    )


def flow(*, handle: int | None = None, link_credit: int | None = None) -> bytes:
    return frame(
        Flow(
            next_incoming_id=1,
            incoming_window=2**31,
            next_outgoing_id=0,
            outgoing_window=2**31,
            handle=handle,
            link_credit=link_credit,
        )
    )


# --- strangers ----------------------------------------------------------------------------------


async def garbage(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(os.urandom(512))
    await peer.hear_all()


async def frame_bombs(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(SASL_HEADER + b"\xff\xff\xff\xff\x02\x01\x00\x00" + bytes(1000))
    await peer.hear_all()


async def nesting_bombs(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    lists = b"\xd0\x00\x00\x00\x08\x00\x00\x00\x01" * 500
    await peer.say(SASL_HEADER + encode_frame(0, b"\x00\x53\x41" + lists, frame_type=1))
    await peer.hear_all()


async def silence(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.hear_all()


async def bytes_one_by_one(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    for byte in peer.introduction(known=False):
        await peer.say(bytes((byte,)))
        await asyncio.sleep(1.0)


async def bad_tokens(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    token = "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2F&sig=AAAA&se=9999999999&skn="
    message = encode_message(
        Message(
            properties=Properties(message_id="1", reply_to="here"),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": "sb://localhost/",
            },
            body=ValueBody(token + peer.target.policy),
        )
    )
    put = frame(Transfer(handle=0, delivery_id=0, delivery_tag=b"1", settled=True), message)
    links = attach("out", 0, address="$cbs", sends=True) + attach(
        "in", 1, address="$cbs", sends=False
    )
    await peer.say(peer.introduction(known=False) + links + flow(handle=1, link_credit=10_000))
    await peer.say_for_ever(put * 8)


async def bad_passwords(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    response = f"\0{peer.target.policy}\0{os.urandom(8).hex()}".encode()
    init = SaslInit(mechanism="PLAIN", initial_response=response, hostname="localhost")
    await peer.say(SASL_HEADER + encode_frame(0, encode_performative(init), frame_type=1))
    await peer.hear_all()


def _on_cbs(peer: Peer, message: bytes) -> tuple[bytes, bytes]:
    """The way to `$cbs` without a token, and a request to it."""
    links = attach("out", 0, address="$cbs", sends=True) + attach(
        "in", 1, address="$cbs", sends=False
    )
    begun = peer.introduction(known=False) + links + flow(handle=1, link_credit=10_000)
    put = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", settled=True)
    return begun, frame(put, message)


_ARRAY = bytes.fromhex("f0 00000005 0000ffff 45")  # 65,535 lists in ten bytes


async def zero_width_arrays(peer: Peer) -> None:
    """The finding: 72 bytes that took 113 ms. A message as full as it may be costs most now."""
    await peer.come(peer.target.amqp)
    bomb = b"\x00\x53\x77\xd0" + struct.pack(">II", 24, 2) + 2 * _ARRAY
    begun, put = _on_cbs(peer, bomb)
    full = encode_message(Message(body=ValueBody([[] for _ in range(500)])))
    await peer.say(begun)
    await peer.say_for_ever(put + _on_cbs(peer, full)[1])


async def zero_width_flows(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(peer.introduction(known=False))
    heavy: dict[str, object] = {f"{number:x}": [] for number in range(240)}
    full = Flow(
        next_incoming_id=1,
        incoming_window=100,
        next_outgoing_id=0,
        outgoing_window=100,
        properties=heavy,
    )
    await peer.say_for_ever(frame(full))


async def fat_opens(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    heavy: dict[str, object] = {f"{number:x}": [[]] for number in range(120)}
    opened = Open(container_id="c" * 1000, hostname="h" * 1000, properties=heavy)
    await peer.say(AMQP_HEADER + frame(opened))
    await peer.hear_all()


async def colliding_keys(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    keys = {Long(number << 54): None for number in range(-120, 120)}
    begun, put = _on_cbs(peer, encode_message(Message(body=ValueBody(keys))))
    await peer.say(begun)
    await peer.say_for_ever(put)


async def token_guesses(peer: Peer) -> None:
    """As good as a token can look, each for another policy."""
    await peer.come(peer.target.amqp)
    begun = _on_cbs(peer, b"")[0]
    await peer.say(begun)
    hearing = asyncio.create_task(peer.hear_all())
    while not hearing.done() and not peer.writer.transport.is_closing():
        token = (
            "SharedAccessSignature sr=sb%3A%2F%2Flocalhost%2F&sig="
            f"{os.urandom(32).hex()}&se=9999999999&skn={os.urandom(8).hex()}"
        )
        message = Message(
            properties=Properties(message_id="1", reply_to="here"),
            application_properties={
                "operation": "put-token",
                "type": "servicebus.windows.net:sastoken",
                "name": "sb://localhost/",
            },
            body=ValueBody(token),
        )
        await peer.say(_on_cbs(peer, encode_message(message))[1])
        await asyncio.sleep(0)
    hearing.cancel()


async def tls_handshakes(peer: Peer) -> None:
    await peer.come(peer.target.amqps, secure=True)


async def tls_silence(peer: Peer) -> None:
    await peer.come(peer.target.amqps)
    await peer.say(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
    await peer.hear_all()


# --- with a good token --------------------------------------------------------------------------


async def empty_frames(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(peer.introduction())
    await peer.say_for_ever(block(EMPTY_FRAME))


async def flows(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(peer.introduction())
    await peer.say_for_ever(block(flow()))


async def hit_and_run(peer: Peer) -> None:
    """A newcomer's measure is used up, and the next connection is a newcomer again."""
    await peer.come(peer.target.amqp)
    await peer.say(peer.introduction() + 2 * block(flow()))


async def dispositions(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(peer.introduction())
    await peer.say_for_ever(block(frame(Disposition(role=True, first=0, last=2**32 - 1))))


async def links(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    await peer.say(peer.introduction())
    begin = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10)
    link = Attach(
        name="x",
        handle=0,
        role=False,
        source=Source(),
        target=LinkTarget(address=peer.target.hub),
        initial_delivery_count=0,
    )
    churn = [encode_frame(1, encode_performative(each)) for each in (begin, link, End())]
    await peer.say_for_ever(block(*churn))


async def refused_events(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    link = attach("x", 0, address=f"{peer.target.hub}/Partitions/9", sends=True)
    await peer.say(peer.introduction() + link)
    bad = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", message_format=0x80013700)
    await peer.say_for_ever(block(frame(bad, b"\x00\x53\x99\x45")))


async def unfinished_events(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    link = attach("x", 0, address=f"{peer.target.hub}/Partitions/9", sends=True)
    await peer.say(peer.introduction() + link)
    piece = Transfer(handle=0, delivery_id=0, delivery_tag=b"1", more=True)
    await peer.say_for_ever(block(frame(piece)))


async def readers_that_do_not_read(peer: Peer) -> None:
    await peer.come(peer.target.amqp)
    address = f"{peer.target.hub}/ConsumerGroups/$Default/Partitions/0"
    link = attach(os.urandom(8).hex(), 0, address=address, sends=False)
    await peer.say(peer.introduction() + link + flow(handle=0, link_credit=2**31))
    await asyncio.sleep(_DEADLINE_S)


# --- over HTTPS ---------------------------------------------------------------------------------


async def websocket_pings(peer: Peer) -> None:
    await peer.come(peer.target.https, secure=True)
    await peer.say(UPGRADE)
    await peer.say_for_ever(block(b"\x89\x80\x00\x00\x00\x00"))


async def websocket_fragments(peer: Peer) -> None:
    await peer.come(peer.target.https, secure=True)
    await peer.say(UPGRADE + b"\x02\x80\x00\x00\x00\x00")
    await peer.say_for_ever(block(b"\x00\x80\x00\x00\x00\x00"))


async def bad_requests(peer: Peer) -> None:
    await peer.come(peer.target.https, secure=True)
    await peer.say_for_ever(b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")


async def requests_without_token(peer: Peer) -> None:
    """What the port answers without a token, one request after the other."""
    await peer.come(peer.target.https, secure=True)
    path = ("/metadata/endpoints", "/openapi.json", f"/{peer.target.hub}/messages")
    for number in range(10_000):
        asked = path[number % len(path)]
        await peer.say(f"GET {asked} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        if not await peer.reader.read(_BLOCK_BYTES):
            return


async def websocket_bombs(peer: Peer) -> None:
    """AMQP over WebSocket: costly messages to `$cbs`."""
    await peer.come(peer.target.https, secure=True)
    full = encode_message(Message(body=ValueBody([[] for _ in range(500)])))
    begun, put = _on_cbs(peer, full)
    await peer.say(UPGRADE + _masked(begun))
    await peer.say_for_ever(_masked(put))


def _masked(data: bytes) -> bytes:
    return b"\x82\xfe" + struct.pack(">H", len(data)) + bytes(4) + data


async def bad_http_tokens(peer: Peer) -> None:
    await peer.come(peer.target.https, secure=True)
    token = "SharedAccessSignature sr=localhost&sig=AAAA&se=9999999999&skn=" + peer.target.policy
    request = (
        f"POST /{peer.target.hub}/messages HTTP/1.1\r\nHost: localhost\r\n"
        f"Authorization: {token}\r\nContent-Length: 1\r\n\r\nx"
    )
    await peer.say_for_ever(request.encode())


KINDS: dict[str, Callable[[Peer], Awaitable[None]]] = {
    each.__name__: each
    for each in (
        garbage,
        frame_bombs,
        nesting_bombs,
        silence,
        bytes_one_by_one,
        bad_tokens,
        bad_passwords,
        tls_handshakes,
        tls_silence,
        empty_frames,
        flows,
        hit_and_run,
        dispositions,
        links,
        refused_events,
        unfinished_events,
        readers_that_do_not_read,
        websocket_pings,
        websocket_fragments,
        bad_requests,
        bad_http_tokens,
        zero_width_arrays,
        zero_width_flows,
        fat_opens,
        colliding_keys,
        token_guesses,
        requests_without_token,
        websocket_bombs,
    )
}

# The worst that a peer without a token can send, for the bar of docs/explanation/security.md.
UNAUTHENTICATED = (
    "zero_width_arrays",
    "zero_width_flows",
    "fat_opens",
    "colliding_keys",
    "token_guesses",
    "bad_passwords",
    "requests_without_token",
    "bad_http_tokens",
    "websocket_bombs",
    "websocket_pings",
)


# Not connections but a flood of them: thousands a second, each accepted and thrown away, cost a
# third of a core. Measured when asked for.
APART = frozenset({"hit_and_run"})


async def misbehave(
    target: Target,
    kinds: list[str],
    connections: int,
    tls: ssl.SSLContext,
    there: Callable[[], None],
) -> None:
    async with asyncio.TaskGroup() as group:
        for number in range(connections):
            group.create_task(_again_and_again(KINDS[kinds[number % len(kinds)]], target, tls))
        there()


async def _again_and_again(
    kind: Callable[[Peer], Awaitable[None]], target: Target, tls: ssl.SSLContext
) -> None:
    while True:
        peer = Peer(target, tls)
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_DEADLINE_S):
                await kind(peer)
        peer.go()
