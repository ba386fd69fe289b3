"""Conversion between the dict records of the official interface and ours (protocol.md 11.1).

Names are compared without regard to case, and a namespace without regard to its port.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from penstock.model import limits
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.errors import ArgumentError
from penstock.model.names import fold_name, quote_text

Record = dict[str, Any]

SEQUENCE_NUMBER_MAX = 2**63 - 1

# Names of the same machine: clients that use different ones share their partitions.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_AUTHORITY = re.compile(
    r"(?:[a-z+]+://)?(?:\[([^\]/]+)\]|([^:/]+))(?::[0-9]{1,5})?/?", re.IGNORECASE
)


class GroupNames(NamedTuple):
    """The names of a consumer group, as a caller spells them; the fields are those of records."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str

    def fold(self) -> GroupNames:
        """Equal for all spellings of the same group. Raises ArgumentError."""
        namespace, hub, group = self
        return GroupNames(namespace_key(namespace), fold_name(hub), fold_name(group))

    def records_of(self, owned: Iterable[Ownership]) -> list[Record]:
        """New dicts: the SDK writes into them."""
        return [
            {
                **self._asdict(),
                "partition_id": ownership.partition_id,
                "owner_id": ownership.owner_id,
                "last_modified_time": ownership.modified_ms / 1000,
                "etag": ownership.etag,
            }
            for ownership in owned
        ]

    def checkpoint_records_of(self, saved: Iterable[Checkpoint]) -> list[Record]:
        return [
            {
                **self._asdict(),
                "partition_id": checkpoint.partition_id,
                "offset": checkpoint.offset,
                "sequence_number": checkpoint.sequence_number,
            }
            for checkpoint in saved
        ]


def namespace_key(fully_qualified_namespace: str) -> str:
    """The key of a namespace: its host without port, in lower case. Raises ArgumentError.

    >>> namespace_key("Contoso.servicebus.windows.net:5671")
    'contoso.servicebus.windows.net'
    >>> namespace_key("127.0.0.1:5672") == namespace_key("localhost")
    True
    """
    match = _AUTHORITY.fullmatch(fully_qualified_namespace)
    if match is None:
        raise ArgumentError(
            f"'{quote_text(fully_qualified_namespace)}' is not the host name of a namespace."
        )
    return host_key(match[1] or match[2])


def host_key(host: str) -> str:
    """The key of a host name without port and brackets."""
    return "localhost" if fold_name(host) in _LOOPBACK else fold_name(host)


def group_names(record: Mapping[str, Any]) -> GroupNames:
    return GroupNames(*(_require_text(record, name) for name in GroupNames._fields))


def claims_by_group(ownership_list: Iterable[Mapping[str, Any]]) -> dict[GroupNames, list[Claim]]:
    """The claims by consumer group; usually there is one group. Raises ArgumentError."""
    groups: dict[GroupNames, list[Claim]] = {}
    for record in ownership_list:
        etag = record.get("etag")
        claim = Claim(
            partition_id=_require_text(record, "partition_id"),
            owner_id=_require_text(record, "owner_id", empty=True),
            etag=None if etag is None else _require_text(record, "etag"),
        )
        groups.setdefault(group_names(record), []).append(claim)
    return groups


def parse_checkpoint(record: Mapping[str, Any]) -> Checkpoint:
    """The offset may be a number, as SDKs of other languages store it. Raises ArgumentError."""
    number = record.get("sequence_number")
    if not isinstance(number, int) or not -1 <= number <= SEQUENCE_NUMBER_MAX:
        raise ArgumentError(
            f"A checkpoint's sequence_number is {quote_text(repr(number))}: a whole number "
            "is needed."
        )
    offset = record.get("offset")
    if isinstance(offset, int):
        offset = str(offset)
    return Checkpoint(
        partition_id=_require_text(record, "partition_id"),
        offset=_require_text({"offset": offset}, "offset"),
        sequence_number=number,
    )


def _require_text(record: Mapping[str, Any], name: str, *, empty: bool = False) -> str:
    value = record.get(name)
    if not isinstance(value, str) or not (value or empty):
        raise ArgumentError(
            f"The record's {name} is {quote_text(repr(value))}: "
            f"{'' if empty else 'non-empty '}text is needed."
        )
    if len(value) > limits.CHECKPOINT_TEXT_MAX:
        raise ArgumentError(
            f"The record's {name} has {len(value)} characters: "
            f"at most {limits.CHECKPOINT_TEXT_MAX} are allowed."
        )
    return value
