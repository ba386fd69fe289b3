"""What a connection announces to its peer, and how much the peer may make the engine keep."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.amqp.errors import AmqpError


class ResourceLimitExceeded(AmqpError):
    """More sessions, links or bytes than one connection may have."""

    condition = "amqp:resource-limit-exceeded"


class PartialDeliveryOwner(Protocol):
    """A link with a partial delivery."""

    def drop_partial_delivery(self) -> None: ...


class ConnectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one connection. Defaults are those of Azure Event Hubs (protocol.md 13)."""

    container_id: str
    hostname: str | None = None
    server: bool = True
    sasl: bool = True  # client: begin with SASL
    mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")

    # Announced to the peer in open, begin and flow. The windows count transfer frames.
    max_frame_size: int = 65536
    channel_max: int = 4999
    handle_max: int = 255
    incoming_window: int = 5000
    outgoing_window: int = 65536
    idle_time_out_ms: int | None = 120_000
    properties: dict[str, object] | None = None

    # Limits on what the peer may make the engine keep. Those announced above do not suffice: 5,000
    # channels with 256 handles each would be more than a million links.
    frame_bytes_max_before_open: int = 8192  # an unauthenticated peer needs no larger frame
    sessions_max: int = 512
    links_max: int = 1024
    link_text_max: int = 1024 * 1024  # characters in names and addresses of all links
    partial_bytes_max: int = 16 * 1024 * 1024  # of all partial deliveries

    # Deadlines. The first two count from the start of the connection.
    header_deadline_ms: int = 5_000
    open_deadline_ms: int = 10_000
    delivery_deadline_ms: int = 60_000  # between two frames of one delivery


class PeerAllowance:
    """Counts what the peer makes the engine keep for one connection, against the config.

    Methods raise ResourceLimitExceeded after they have counted, which closes the connection; its
    links then give back what was counted.
    """

    __slots__ = ("_config", "link_count", "link_text", "partial_bytes", "partial_deliveries")

    def __init__(self, config: ConnectionConfig) -> None:
        self._config = config
        self.link_count = 0
        self.link_text = 0  # characters
        self.partial_bytes = 0
        # Links with a partial delivery, and when its last frame came. The longest silent one is
        # first, because `hold` moves a link to the end: deadlines need no search.
        self.partial_deliveries: dict[PartialDeliveryOwner, int] = {}

    def add_link(self) -> None:
        """Count a new link. Unlike the others, raises without counting: the link is not created."""
        if self.link_count >= self._config.links_max:
            raise ResourceLimitExceeded(
                f"This connection has {self.link_count} links: "
                f"at most {self._config.links_max} are allowed."
            )
        self.link_count += 1

    def add_text(self, characters: int) -> None:
        """Count a link's name and addresses, which live as long as the link."""
        self.link_text += characters
        if self.link_text > self._config.link_text_max:
            raise ResourceLimitExceeded(
                f"The names and addresses of this connection's links have {self.link_text} "
                f"characters: at most {self._config.link_text_max} are allowed."
            )

    def drop_link(self, characters: int) -> None:
        self.link_count -= 1
        self.link_text -= characters
        assert self.link_count >= 0
        assert self.link_text >= 0

    def hold(self, link: PartialDeliveryOwner, size_change: int, now_ms: int) -> None:
        """Count a frame of the link's partial delivery, which keeps `size_change` more bytes."""
        self.partial_deliveries.pop(link, None)
        self.partial_deliveries[link] = now_ms
        self.partial_bytes += size_change
        assert self.partial_bytes >= 0
        if self.partial_bytes > self._config.partial_bytes_max:
            raise ResourceLimitExceeded(
                f"Partial deliveries of this connection have {self.partial_bytes} bytes: "
                f"at most {self._config.partial_bytes_max} are allowed."
            )

    def release(self, link: PartialDeliveryOwner, size: int) -> None:
        """The link's partial delivery, of which `size` bytes were kept, is complete or dropped."""
        self.partial_deliveries.pop(link, None)
        self.partial_bytes -= size
        assert self.partial_bytes >= 0

    def drop_partial_deliveries(self) -> None:
        """Free their memory now, instead of when the garbage collector finds a dead connection."""
        for link in list(self.partial_deliveries):
            link.drop_partial_delivery()

    def oldest_partial_ms(self) -> int | None:
        """When the partial delivery that has waited longest got its last frame."""
        return next(iter(self.partial_deliveries.values()), None)
