"""One received event, read when needed: the form that filters, pages and masks work on."""

from __future__ import annotations

import json
from functools import cached_property
from typing import Any

from penstock.formats.amqp_values import display_body
from penstock.formats.body_view import SEARCHED_MAX, unpack_gzip
from penstock.formats.event_sections import BODY_TYPES, PARTITION_KEY, field_values, map_values
from penstock.kernels import Columns


class EventView:
    """Row `row` of `columns`, which came from `partition`."""

    def __init__(self, columns: Columns, partition: str, row: int) -> None:
        self.columns = columns
        self.partition = partition
        self.row = row
        self.sequence_number = columns.sequence_numbers[row]
        self.offset = columns.offsets[row]
        self.enqueued_ms = columns.enqueued_ms[row]
        self.partition_key = columns.partition_keys[row]
        # The body's bytes; the encoded sections if `body_type` is not "data".
        self.body = columns.bodies[row]

    @property
    def body_type(self) -> str:
        """ "data", "sequence", "value" or "none"."""
        return BODY_TYPES[self.columns.body_kinds[self.row]]

    def read_body(self, bytes_max: int) -> tuple[bytes, str]:
        """The bytes that people read, and a note if they were unpacked from gzip."""
        return unpack_gzip(display_body(self.body, self.body_type), bytes_max=bytes_max)

    @cached_property
    def text(self) -> str:
        """The body as text. Gzip is unpacked."""
        return self.read_body(SEARCHED_MAX)[0].decode("utf-8", "replace")

    @cached_property
    def json(self) -> Any:
        """The body parsed as JSON; None if it is not JSON."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None

    @property
    def properties(self) -> dict[str, object]:
        """The application properties. Raises InvalidEvent."""
        return map_values(self.columns.properties[self.row])

    @property
    def fields(self) -> dict[str, object]:
        """AMQP's own properties, such as content-type. Raises InvalidEvent."""
        return field_values(self.columns.message_properties[self.row])

    @property
    def annotations(self) -> dict[str, object]:
        """The annotations, with the service's own. Raises InvalidEvent."""
        values = map_values(self.columns.system[self.row])
        if PARTITION_KEY in values:
            values[PARTITION_KEY] = self.partition_key  # which may be masked
        return values
