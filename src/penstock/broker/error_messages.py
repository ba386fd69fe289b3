"""Refusals that several parts of the broker word alike; SDKs match on them (protocol.md 6.2).

Names in them may be a peer's: they are shown cut and escaped.
"""

from __future__ import annotations

from penstock.model.entities import Hub, Namespace
from penstock.model.errors import (
    ArgumentOutOfRange,
    EntityDisabled,
    EntityUpdated,
    NotFound,
    PublisherRevoked,
)
from penstock.model.names import quote_text


def authority(namespace: Namespace) -> str:
    """How the namespace is called in messages: by its first host."""
    return namespace.hosts[0] if namespace.hosts else namespace.name


def hub_not_found(authority: str, hub: str) -> NotFound:
    return _not_found(f"sb://{quote_text(authority)}/{quote_text(hub)}")


def group_not_found(authority: str, hub: str, group: str) -> NotFound:
    return _not_found(
        f"sb://{quote_text(authority)}/{quote_text(hub)}/ConsumerGroups/{quote_text(group)}"
    )


def _not_found(path: str) -> NotFound:
    return NotFound(
        f"The messaging entity '{path}' could not be found. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions."
    )


def entity_disabled(hub: Hub, act: str) -> EntityDisabled:
    return EntityDisabled(
        f"The messaging entity '{hub.name}' is currently disabled for {act}: its status is "
        f"'{hub.status.value}'. Set it to 'Active' and try again."
    )


def entity_updated() -> EntityUpdated:
    return EntityUpdated("Entity was updated.")  # protocol.md 13


def publisher_revoked(hub: Hub, publisher: str) -> PublisherRevoked:
    return PublisherRevoked(
        f"The publisher '{quote_text(publisher)}' of the event hub '{hub.name}' was revoked "
        "and may "
        "not send. An operator can resume it."
    )


def partition_out_of_range(seen: str, partition_count: int) -> ArgumentOutOfRange:
    return ArgumentOutOfRange(
        f"The specified partition '{quote_text(seen)}' is invalid for an EventHub partition "
        "sender or "
        f"receiver. It should be between 0 and {partition_count - 1}."
    )
