"""Fields of events that only administrators see, in bodies, properties or partition keys.

The mask is applied to received columns before any other code sees them. Pages, searches, tails and
downloads have the masked event, so no search reveals a masked value.
"""

from __future__ import annotations

import json
import re

from penstock.amqp.encoder import encode
from penstock.formats.amqp_values import InvalidEvent
from penstock.formats.body_view import unpack_gzip
from penstock.formats.event_sections import DATA, map_values
from penstock.kernels import Columns
from penstock.model.errors import ConfigurationError

SHOWN = "•••"
HIDDEN_BODY = b"(masked)"
_FIELD = re.compile(r"(json|properties)\.(\S+)|key")
_DEPTH_MAX = 64


class FieldMask:
    """Hides the fields named by `text`, a list separated by commas.

    A field is `json.card.number` (in every element of a list), `properties.email` or `key`. An
    empty text hides nothing. Raises ConfigurationError.
    """

    def __init__(self, text: str) -> None:
        self._paths: list[list[str]] = []
        self._properties: set[str] = set()
        self._key = False
        for field in filter(None, (part.strip() for part in text.split(","))):
            match = _FIELD.fullmatch(field)
            if match is None:
                raise ConfigurationError(
                    f"portal_mask: '{field[:40]}' is not a field. Use json.NAME, properties.NAME "
                    "and key, separated by commas."
                )
            if match[1] == "json":
                self._paths.append(match[2].split("."))
            elif match[1] == "properties":
                self._properties.add(match[2])
            else:
                self._key = True

    def apply(self, columns: Columns) -> None:
        """Mask the columns in place.

        `EventView.annotations` takes the partition key from its column, so it is masked there too.
        """
        for row, body in enumerate(columns.bodies):
            if self._paths:
                # Only a body of data can be searched for fields.
                is_data = columns.body_kinds[row] == DATA
                columns.bodies[row] = self._mask_body(body) if is_data else HIDDEN_BODY
            if self._properties and columns.properties[row]:
                columns.properties[row] = self._mask_properties(columns.properties[row])
            if self._key and columns.partition_keys[row] is not None:
                columns.partition_keys[row] = SHOWN

    def _mask_body(self, body: bytes) -> bytes:
        """A body that looks like JSON, but cannot be parsed, is hidden completely."""
        content, _ = unpack_gzip(body)
        try:
            value = json.loads(content)
            masked = [_mask_value(value, path, _DEPTH_MAX) for path in self._paths]
        except (ValueError, RecursionError):
            is_like_json = content.lstrip()[:1] in (b"{", b"[")
            return HIDDEN_BODY if is_like_json or content is not body else body
        return json.dumps(value, ensure_ascii=False).encode() if any(masked) else body

    def _mask_properties(self, encoded: bytes) -> bytes:
        try:
            values = map_values(encoded)
        except InvalidEvent:
            return b""  # damaged properties are hidden
        names = self._properties & values.keys()
        return encode(values | dict.fromkeys(names, SHOWN)) if names else encoded


def _mask_value(value: object, path: list[str], depth: int) -> bool:
    """Whether the value has the field."""
    if depth == 0:
        raise RecursionError
    if isinstance(value, list):
        return any([_mask_value(element, path, depth - 1) for element in value])
    if not isinstance(value, dict) or path[0] not in value:
        return False
    if len(path) == 1:
        value[path[0]] = SHOWN
        return True
    return _mask_value(value[path[0]], path[1:], depth - 1)
