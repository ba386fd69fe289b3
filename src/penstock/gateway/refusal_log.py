"""One log line for each request that a client is refused, bounded per address.

    refused operation=attach condition=amqp:not-found hub=nope group=$default policy=Root
        peer=192.0.2.7:50123 id=6f1c..._G0 text="The messaging entity ... could not be found."

`id` is the TrackingId in the error that the client shows. A client that is refused repeatedly must
not fill the disk or hide the refusals of others, so the lines per minute are limited per address
and in total.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import msgspec

from penstock.model import limits, names
from penstock.model.errors import PenstockError

log = logging.getLogger("penstock.refusals")

LINES_PER_ADDRESS_MAX = 20
LINES_MAX = 600
PERIOD_MS = 60_000
_TEXT_MAX = 300
_VALUE_MAX = 128
_ENTITY_WORDS = {
    "consumergroups": "group",
    "partitions": "partition",
    "publishers": "publisher",
    "publisher": "publisher",
}


class _Count:
    """Lines of one address, or of all addresses, in the current minute."""

    __slots__ = ("left_out", "since_ms", "written")

    def __init__(self, now_ms: int) -> None:
        self.since_ms = now_ms
        self.written = 0
        self.left_out = 0

    def take(self, lines_max: int, now_ms: int) -> int | None:
        """The number of lines left out before this one; None if this one is left out too."""
        left_out = 0
        if now_ms - self.since_ms >= PERIOD_MS:
            left_out = self.left_out
            self.since_ms, self.written, self.left_out = now_ms, 0, 0
        if self.written >= lines_max:
            self.left_out += 1
            return None
        self.written += 1
        return left_out


class RefusalLog:
    """Shared by all connections and protocols of the process; called on the event loop."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._by_address: dict[str, _Count] = {}  # oldest first
        self._all = _Count(monotonic_ms())

    def record(
        self,
        operation: str,
        error: PenstockError,
        *,
        address: str,
        peer: str,
        tracking_id: str,
        policy: str = "",
        path: Sequence[str] = (),
        **details: object,
    ) -> None:
        """Log the refusal. `address` identifies the client for the limit; `path` has the segments
        of the requested entity. Text of the peer is escaped and shortened."""
        now_ms = self._monotonic_ms()
        left_out = self._count(address, now_ms).take(LINES_PER_ADDRESS_MAX, now_ms)
        if left_out is None:
            return
        others_left_out = self._all.take(LINES_MAX, now_ms)
        if others_left_out is None:
            return
        fields: dict[str, object] = {
            "operation": operation,
            "condition": error.condition,
            **_entity_fields(path),
            "policy": policy,
            "peer": peer,
            "id": tracking_id,
            **details,
        }
        if left_out:
            fields["left_out"] = left_out
        if others_left_out:
            fields["left_out_of_all"] = others_left_out
        text = _quoted(names.quote_text(str(error), most=_TEXT_MAX))
        line = " ".join(f"{name}={_value(value)}" for name, value in fields.items())
        # Tells the filter for repeated warnings to let it pass: it is limited here.
        log.warning("refused %s text=%s", line, text, extra={"is_bounded": True})

    def _count(self, address: str, now_ms: int) -> _Count:
        count = self._by_address.get(address)
        if count is None:
            if len(self._by_address) >= limits.ADDRESSES_REMEMBERED_MAX:
                del self._by_address[next(iter(self._by_address))]
            count = self._by_address[address] = _Count(now_ms)
        return count


def _entity_fields(path: Sequence[str]) -> dict[str, str]:
    """hub, and group, partition or publisher where the path names them."""
    end = next(
        (at for at in range(1, len(path)) if path[at].casefold() in _ENTITY_WORDS), len(path)
    )
    fields = {"hub": "/".join(path[:end]), "group": ""}
    for word, name in zip(path[end::2], path[end + 1 :: 2], strict=False):
        field = _ENTITY_WORDS.get(word.casefold())
        if field is not None:
            fields[field] = name
    return fields


def _value(value: object) -> str:
    """`-` for an empty value; quoted if it is not one word."""
    text = names.quote_text(str(value), most=_VALUE_MAX)
    if not text:
        return "-"
    return _quoted(text) if any(sign in text for sign in ' "=') else text


def _quoted(text: str) -> str:
    return msgspec.json.encode(text).decode()
