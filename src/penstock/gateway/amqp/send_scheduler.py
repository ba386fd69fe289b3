"""Which links of a connection may send, in turn. One turn's bytes are bounded, whatever the peer
asks for: then other connections get theirs, and the socket can say that it is full."""

from __future__ import annotations

from penstock.amqp.link import LinkSession
from penstock.gateway.amqp.links import LinkHandler


class _SessionQueue:
    """One session's way out."""

    __slots__ = ("halfway", "waiting")

    def __init__(self) -> None:
        self.halfway: LinkHandler | None = None  # some frames of its delivery are out, not all
        self.waiting: dict[LinkHandler, None] = {}  # for the window, or for that delivery's end


class SendScheduler:
    """The queue of links that have something to send and, as far as they know, may."""

    def __init__(self) -> None:
        self._queue: dict[LinkHandler, None] = {}
        self._lanes: dict[LinkSession, _SessionQueue] = {}

    def __bool__(self) -> bool:
        return bool(self._queue)

    def add(self, app: LinkHandler) -> None:
        """The link wants a turn; asked twice, it still gets one."""
        self._queue[app] = None

    def run(self, bytes_max: int) -> None:
        """Give turns until so many bytes are queued. Who has more asks again: behind the others."""
        while self._queue and bytes_max > 0:
            app = next(iter(self._queue))
            del self._queue[app]
            bytes_max -= app.send_pending(bytes_max)

    def remove(self, app: LinkHandler) -> None:
        """The link is gone."""
        self._queue.pop(app, None)
        lane = self._lanes.get(app.link.session)
        if lane is not None:
            lane.waiting.pop(app, None)
            if lane.halfway is app:
                self.end_delivery(app)

    def forget(self, session: LinkSession) -> None:
        self._lanes.pop(session, None)

    def clear(self) -> None:
        self._queue.clear()
        self._lanes.clear()

    # --- one session's window -------------------------------------------------------------------

    def window_changed(self, session: LinkSession) -> None:
        """Whoever waited may try again."""
        lane = self._lanes.get(session)
        if lane is not None:
            waiting, lane.waiting = lane.waiting, {}
            self._queue.update(waiting)

    def wait_for_window(self, app: LinkHandler) -> None:
        self._lane(app).waiting[app] = None

    def must_wait(self, app: LinkHandler) -> bool:
        """Whether another link's delivery is half sent. Clients that follow delivery-ids take
        frames of two deliveries in turns for an error (protocol.md E9)."""
        lane = self._lanes.get(app.link.session)
        if lane is None or lane.halfway in (None, app):
            return False
        lane.waiting[app] = None
        return True

    def begin_delivery(self, app: LinkHandler) -> None:
        self._lane(app).halfway = app

    def end_delivery(self, app: LinkHandler) -> None:
        self._lane(app).halfway = None
        self.window_changed(app.link.session)

    def _lane(self, app: LinkHandler) -> _SessionQueue:
        return self._lanes.setdefault(app.link.session, _SessionQueue())
