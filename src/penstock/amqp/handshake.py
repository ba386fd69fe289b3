"""Protocol headers and SASL: everything before the first AMQP frame (AMQP 2.2, 5.3).

    client                          server
    SASL header                ->
                               <-   SASL header, sasl-mechanisms
    sasl-init                  ->
                               <-   sasl-outcome
    AMQP header                ->
                               <-   AMQP header

A server also accepts an AMQP header at once: that client is unauthenticated (protocol.md 1.3).
"""

from __future__ import annotations

from penstock.amqp.config import ConnectionConfig
from penstock.amqp.decoder import SMALL
from penstock.amqp.errors import FramingError, SaslFailed
from penstock.amqp.events import (
    Event,
    SaslInitReceived,
    SaslMechanismsReceived,
    SaslOutcomeReceived,
)
from penstock.amqp.frames import (
    AMQP_HEADER,
    FRAME_HEADER_BYTES,
    SASL_FRAME,
    SASL_HEADER,
    encode_frame,
    parse_frame_header,
)
from penstock.amqp.performatives import (
    Performative,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    decode_performative,
    encode_performative,
)
from penstock.amqp.states import SASL, IllegalState, SaslInput, SaslState


class Handshake:
    """The SASL exchange of one connection and the protocol headers around it.

    It has no reference to the connection: methods return the bytes to send.
    """

    __slots__ = ("_config", "state")

    def __init__(self, config: ConnectionConfig) -> None:
        self._config = config
        self.state = SaslState.START

    @property
    def has_sasl_header(self) -> bool:
        """Whether the peer's SASL header arrived."""
        return self.state not in (SaslState.START, SaslState.HEADER_SENT)

    @property
    def expected_headers(self) -> tuple[bytes, ...]:
        """The protocol headers that may come next; a server offers the first one."""
        if self.has_sasl_header:
            return (AMQP_HEADER,)
        if self._config.server:
            return (SASL_HEADER, AMQP_HEADER)
        return (SASL_HEADER,) if self._config.sasl else (AMQP_HEADER,)

    def check_header(self, header: bytes) -> None:
        """Raise FramingError if `header`, of up to 8 bytes, cannot become an expected one.

        A client of another protocol is refused at its first wrong byte, not at the deadline.
        """
        expected = self.expected_headers
        for count in range(1, len(header) + 1):
            if not any(candidate.startswith(header[:count]) for candidate in expected):
                raise FramingError(
                    f"The bytes {header[:count].hex()} begin no protocol header that is supported."
                )

    # --- sending --------------------------------------------------------------------------------

    def start(self) -> bytes:
        """Client: the SASL header."""
        self.state = SASL.after(self.state, SaslInput.SEND_HEADER)
        return SASL_HEADER

    def init(self, mechanism: str, response: bytes | None) -> bytes:
        """Client: choose one of the server's mechanisms."""
        self.state = SASL.after(self.state, SaslInput.SEND_INIT)
        return _encode_sasl_frame(
            SaslInit(mechanism=mechanism, initial_response=response, hostname=self._config.hostname)
        )

    def answer(self, *, ok: bool) -> bytes:
        """Server: the outcome of the exchange."""
        self.state = SASL.after(self.state, SaslInput.SEND_OK if ok else SaslInput.SEND_FAILURE)
        return _encode_sasl_frame(
            SaslOutcome(code=0 if ok else 1, additional_data=b"Welcome!" if ok else None)
        )

    # --- receiving ------------------------------------------------------------------------------

    def on_sasl_header(self) -> bytes:
        """The server's answer to the header; b"" for a client."""
        self.state = SASL.after(self.state, SaslInput.RECV_HEADER)
        if not self._config.server:
            return b""
        self.state = SASL.after(self.state, SaslInput.SEND_MECHANISMS)
        mechanisms = SaslMechanisms(sasl_server_mechanisms=list(self._config.mechanisms))
        return SASL_HEADER + _encode_sasl_frame(mechanisms)

    def read_frame(self, buffer: bytes, position: int) -> tuple[Performative, int] | None:
        """The SASL frame at `position` and the position after it; None while it is incomplete."""
        if len(buffer) - position < FRAME_HEADER_BYTES:
            return None
        size, body, frame_type, _ = parse_frame_header(
            buffer, position, frame_bytes_max=self._config.frame_bytes_max_before_open
        )
        end = position + size
        if len(buffer) < end:
            return None
        if frame_type != SASL_FRAME:
            raise FramingError(
                f"A frame of type {frame_type} arrived: type {SASL_FRAME} is expected."
            )
        if body == end:  # AMQP 5.3.1; after SASL an empty frame is a heartbeat
            raise FramingError("An empty SASL frame arrived.")
        performative, payload_start = decode_performative(buffer, body, end, limits=SMALL)
        if payload_start < end:
            raise FramingError(f"{type(performative).__name__} carries a payload: none is allowed.")
        return performative, end

    def on_frame(self, performative: Performative) -> Event:
        """The event of a SASL frame. Raises SaslFailed if the server refused the client."""
        if isinstance(performative, SaslInit):
            self.state = SASL.after(self.state, SaslInput.RECV_INIT)
            return SaslInitReceived(
                performative.mechanism,
                performative.initial_response or b"",
                performative.hostname,
            )
        if isinstance(performative, SaslMechanisms):
            self.state = SASL.after(self.state, SaslInput.RECV_MECHANISMS)
            return SaslMechanismsReceived(performative.sasl_server_mechanisms)
        if isinstance(performative, SaslOutcome):
            if performative.code != 0:
                self.state = SASL.after(self.state, SaslInput.RECV_FAILURE)
                raise SaslFailed(f"The server refused us: SASL outcome code {performative.code}.")
            self.state = SASL.after(self.state, SaslInput.RECV_OK)
            return SaslOutcomeReceived(performative.additional_data or b"")
        raise IllegalState(f"{type(performative).__name__} has no place in this SASL exchange.")


def _encode_sasl_frame(performative: Performative) -> bytes:
    return encode_frame(0, encode_performative(performative), frame_type=SASL_FRAME)
