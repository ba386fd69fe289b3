"""What one connection announces to its peer, and how much of the peer it bears."""

from __future__ import annotations

from typing import Protocol

import msgspec

from penstock.amqp.errors import AmqpError


class ResourceLimitExceeded(AmqpError):
    """More sessions, links or bytes than one connection may have."""

    condition = "amqp:resource-limit-exceeded"


class UnfinishedDelivery(Protocol):
    """A link with a delivery whose last frame has not come."""

    def drop_unfinished(self) -> None: ...


class ConnectionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Defaults are the real service's (protocol.md 13)."""

    container_id: str
    hostname: str | None = None
    server: bool = True
    sasl: bool = True  # client: begin with SASL
    mechanisms: tuple[str, ...] = ("MSSBCBS", "PLAIN", "ANONYMOUS", "EXTERNAL")
    max_frame_size: int = 65536
    frame_bytes_max_before_open: int = 8192
    channel_max: int = 4999
    handle_max: int = 255
    incoming_window: int = 5000
    outgoing_window: int = 65536
    sessions_max: int = 512
    links_max: int = 1024
    unfinished_bytes_max: int = 16 * 1024 * 1024  # of all deliveries that lack frames
    delivery_deadline_ms: int = 60_000  # between two frames of one delivery
    link_text_max: int = 1024 * 1024  # characters: names and addresses of all links
    idle_time_out_ms: int | None = 120_000
    header_deadline_ms: int = 5_000
    open_deadline_ms: int = 10_000
    properties: dict[str, object] | None = None


class PeerAllowance:
    """What the peer makes us keep, counted against the config; above it ResourceLimit is raised."""

    __slots__ = ("_config", "link_count", "link_text", "unfinished", "unfinished_bytes")

    def __init__(self, config: ConnectionConfig) -> None:
        self._config = config
        self.link_count = 0
        self.link_text = 0  # characters
        self.unfinished_bytes = 0
        # Links with an unfinished delivery, and when its last frame came; the oldest first.
        self.unfinished: dict[UnfinishedDelivery, int] = {}

    def add_link(self) -> None:
        if self.link_count >= self._config.links_max:
            raise ResourceLimitExceeded(
                f"This connection has {self.link_count} links: "
                f"at most {self._config.links_max} are allowed."
            )
        self.link_count += 1

    def add_text(self, count: int) -> None:
        self.link_text += count
        if self.link_text > self._config.link_text_max:
            raise ResourceLimitExceeded(
                f"The names and addresses of this connection's links have {self.link_text} "
                f"characters: at most {self._config.link_text_max} are allowed."
            )

    def drop_link(self, text: int) -> None:
        self.link_count -= 1
        self.link_text -= text
        assert self.link_count >= 0
        assert self.link_text >= 0

    def hold(self, link: UnfinishedDelivery, size: int, now_ms: int) -> None:
        """A frame of a delivery whose other frames are still to come; `size` bytes are kept."""
        self.unfinished.pop(link, None)
        self.unfinished[link] = now_ms
        self.unfinished_bytes += size
        if self.unfinished_bytes > self._config.unfinished_bytes_max:
            raise ResourceLimitExceeded(
                f"Unfinished deliveries of this connection have {self.unfinished_bytes} bytes: "
                f"at most {self._config.unfinished_bytes_max} are allowed."
            )

    def release(self, size: int) -> None:
        self.unfinished_bytes -= size
        assert self.unfinished_bytes >= 0

    def drop_unfinished(self) -> None:
        """The connection is over: its memory must not wait for the garbage collector."""
        for link in list(self.unfinished):
            link.drop_unfinished()

    def oldest_unfinished_ms(self) -> int | None:
        """When the delivery that has waited longest got its last frame."""
        return next(iter(self.unfinished.values()), None)
