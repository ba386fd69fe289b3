"""Fields that only administrators see: a card's number, an address, in bodies, properties or keys.

Applied to what was read before anything else looks at it: pages, searches, tails and files all have
the masked event, so that no search tells what is behind the mask.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable

from penstock.client import EventData
from penstock.model.errors import ConfigurationError, PenstockError
from penstock.portal.bodies import unpack_gzip

SHOWN = "•••"
HIDDEN_BODY = b"(masked)"
_FIELD = re.compile(r"(json|properties)\.(\S+)|key")
_DEPTH_MAX = 64


class FieldMask:
    """`json.card.number` (of every item where there is a list), `properties.email`, `key`; commas
    between them. Empty masks nothing. Raises ConfigurationError."""

    def __init__(self, text: str) -> None:
        self._paths: list[list[str]] = []
        self._properties: set[str] = set()
        self._key = False
        for field in filter(None, (each.strip() for each in text.split(","))):
            found = _FIELD.fullmatch(field)
            if found is None:
                raise ConfigurationError(
                    f"portal_mask: '{field[:40]}' is no field; json.NAME, properties.NAME and key "
                    "are, with commas between them."
                )
            if found[1] == "json":
                self._paths.append(found[2].split("."))
            elif found[1] == "properties":
                self._properties.add(found[2])
            else:
                self._key = True

    def apply(self, events: Iterable[EventData]) -> None:
        """In place: these are the visitor's own."""
        for event in events:
            if self._paths:
                # Another AMQP body than data cannot be looked into here.
                event.body = self._body(event.body) if event.body_type == "data" else HIDDEN_BODY
            if self._properties:
                self._mask_properties(event)
            if self._key and event.partition_key is not None:
                event.partition_key = SHOWN

    def _body(self, body: bytes) -> bytes:
        """What looks like JSON and cannot be looked into is not shown at all."""
        opened, _ = unpack_gzip(body)
        try:
            value = json.loads(opened)
            masked = [_mask_value(value, path, _DEPTH_MAX) for path in self._paths]
        except (ValueError, RecursionError):
            looks_so = opened.lstrip()[:1] in (b"{", b"[")
            return HIDDEN_BODY if looks_so or opened is not body else body
        return json.dumps(value, ensure_ascii=False).encode() if any(masked) else body

    def _mask_properties(self, event: EventData) -> None:
        try:
            found = event.properties
        except PenstockError:
            return  # damaged ones are not shown
        for name in self._properties & found.keys():
            found[name] = SHOWN


def _mask_value(value: object, path: list[str], depth: int) -> bool:
    """Whether something was there to be masked."""
    if depth == 0:
        raise RecursionError
    if isinstance(value, list):
        return any([_mask_value(each, path, depth - 1) for each in value])
    if not isinstance(value, dict) or path[0] not in value:
        return False
    if len(path) == 1:
        value[path[0]] = SHOWN
        return True
    return _mask_value(value[path[0]], path[1:], depth - 1)
