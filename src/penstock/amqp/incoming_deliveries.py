"""Assembles one delivery from its transfer frames (AMQP 2.6.14).

The frames of a partial delivery are bytes that the peer makes the engine keep, before anything else
limits them. Three bounds hold:

- One delivery never exceeds its link's max-message-size. Beyond it the engine discards the payload
  and only counts: the frames must still be followed to the last one, so that the application can
  reject the delivery by its id.
- All partial deliveries of a connection together stay within `partial_bytes_max`, and each must get
  its next frame within `delivery_deadline_ms`. `config.PeerAllowance` counts both.
- A link has at most one partial delivery: AMQP forbids a second one before the first is complete.
"""

from __future__ import annotations

from penstock.amqp.errors import RemoteLinkError, quote_peer_text
from penstock.amqp.performatives import Transfer


class IncomingDelivery:
    """A delivery whose frames are arriving. `size` counts all payload bytes, kept or discarded."""

    __slots__ = ("_data", "delivery_id", "is_oversized", "message_format", "settled", "size")

    def __init__(self, first: Transfer, link_name: str) -> None:
        """Raises RemoteLinkError if the first frame has no delivery-id."""
        if first.delivery_id is None:
            raise RemoteLinkError(
                f"The first transfer of a delivery on link {quote_peer_text(link_name)} has no "
                "delivery-id."
            )
        self.delivery_id = first.delivery_id
        self.message_format = first.message_format or 0
        self.settled = False
        self.size = 0
        self.is_oversized = False
        self._data = bytearray()  # stays empty once the delivery is oversized

    @property
    def kept_bytes(self) -> int:
        return len(self._data)

    def count_frame(
        self, transfer: Transfer, payload: bytes, *, size_max: int, link_name: str
    ) -> None:
        """Account for the next frame. Raises RemoteLinkError if it is of another delivery."""
        # Some clients repeat the id on every frame (E20); none may change it (AMQP 2.7.5).
        if transfer.delivery_id not in (None, self.delivery_id):
            raise RemoteLinkError(
                f"Delivery {transfer.delivery_id} arrived on link {quote_peer_text(link_name)} "
                f"before delivery {self.delivery_id} was complete."
            )
        self.size += len(payload)
        self.is_oversized |= self.size > size_max
        self.settled |= bool(transfer.settled)  # AMQP 2.7.5: any frame may settle the delivery

    def keep(self, payload: bytes) -> int:
        """Keep a payload until the last frame arrives; discard everything if oversized.

        Returns by how much `kept_bytes` changed, which is negative when bytes were discarded.
        """
        if not self.is_oversized:
            self._data += payload
            return len(payload)
        discarded = len(self._data)
        self._data = bytearray()
        return -discarded

    def join(self, payload: bytes) -> bytes:
        """The whole delivery; `payload` is of its last frame."""
        return b"".join((self._data, payload)) if self._data else payload
