"""Which links of a connection may send, in turn.

One turn's bytes are bounded, whatever the peer asks for: then other connections get their turn, and
the socket can report that it is full.
"""

from __future__ import annotations

from typing import Protocol

from penstock.amqp.link import Link, LinkSession


class SendingLink(Protocol):
    link: Link

    def send_pending(self, bytes_max: int) -> int:
        """Send up to `bytes_max` bytes (the last delivery may exceed it); return how many were
        sent. A link with more to send calls `SendScheduler.add` again."""
        ...


class _SessionQueue:
    """Links of one session that cannot send."""

    __slots__ = ("partial", "waiting")

    def __init__(self) -> None:
        self.partial: SendingLink | None = None  # some frames of its delivery were sent, not all
        self.waiting: dict[SendingLink, None] = {}  # for the window, or for the end of `partial`


class SendScheduler:
    """The queue of links that have something to send and, as far as they know, may send it."""

    def __init__(self) -> None:
        self._queue: dict[SendingLink, None] = {}
        self._sessions: dict[LinkSession, _SessionQueue] = {}

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, sender: SendingLink) -> None:
        """The link wants a turn. It gets one, however often it asks."""
        self._queue[sender] = None

    def run(self, bytes_max: int) -> None:
        """Give turns until `bytes_max` bytes are sent. A link that asks again comes last."""
        while self._queue and bytes_max > 0:
            sender = next(iter(self._queue))
            del self._queue[sender]
            bytes_max -= sender.send_pending(bytes_max)

    def remove(self, sender: SendingLink) -> None:
        """The link is gone."""
        self._queue.pop(sender, None)
        session = self._sessions.get(sender.link.session)
        if session is not None:
            session.waiting.pop(sender, None)
            if session.partial is sender:
                self.end_delivery(sender)

    def forget(self, session: LinkSession) -> None:
        self._sessions.pop(session, None)

    def clear(self) -> None:
        self._queue.clear()
        self._sessions.clear()

    # --- the window of a session ----------------------------------------------------------------

    def window_changed(self, session: LinkSession) -> None:
        """Links that waited may try again."""
        queue = self._sessions.get(session)
        if queue is not None:
            waiting, queue.waiting = queue.waiting, {}
            self._queue.update(waiting)

    def wait_for_window(self, sender: SendingLink) -> None:
        self._session_queue(sender).waiting[sender] = None

    def must_wait(self, sender: SendingLink) -> bool:
        """Whether another link has sent only a part of a delivery. Clients that track delivery-ids
        treat interleaved frames of two deliveries as an error (protocol.md E9)."""
        session = self._sessions.get(sender.link.session)
        if session is None or session.partial in (None, sender):
            return False
        session.waiting[sender] = None
        return True

    def begin_delivery(self, sender: SendingLink) -> None:
        self._session_queue(sender).partial = sender

    def end_delivery(self, sender: SendingLink) -> None:
        self._session_queue(sender).partial = None
        self.window_changed(sender.link.session)

    def _session_queue(self, sender: SendingLink) -> _SessionQueue:
        return self._sessions.setdefault(sender.link.session, _SessionQueue())
