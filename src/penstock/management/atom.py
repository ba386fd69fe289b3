"""Hubs, groups and partitions as Atom (protocol.md 7.2): descriptions read, entries written."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import quote

from penstock.management import xml
from penstock.management.operations import HubRequest, PartitionView
from penstock.management.operations.hubs import to_days
from penstock.management.shapes import format_time
from penstock.model import names
from penstock.model.entities import ConsumerGroup, Hub
from penstock.model.errors import ArgumentError, NotAllowed

ATOM = "http://www.w3.org/2005/Atom"
CONNECT = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
ARRAYS = "http://schemas.microsoft.com/2003/10/Serialization/Arrays"
PARTITION_COUNT_DEFAULT = 16  # of this API (protocol.md 7.2)

# The order in which the elements mean something; one that stands out of it is read as a user
# property, that is not at all.
_HUB_ORDER = (
    "MessageRetentionInDays",
    "Authorization",
    "AuthorizationRules",
    "Status",
    "CreatedAt",
    "UpdatedAt",
    "UserMetadata",
    "PartitionCount",
    "PartitionIds",
)
_GROUP_ORDER = ("CreatedAt", "UpdatedAt", "UserMetadata")
_NUMBER_DIGITS_MAX = 9


def read_hub(body: bytes, *, is_new: bool) -> HubRequest:
    """An entry with an EventHubDescription; ArgumentError, NotAllowed."""
    found = _description(body, "EventHubDescription", _HUB_ORDER)
    for rules in ("Authorization", "AuthorizationRules"):
        if rules in found and found[rules].children:
            raise NotAllowed(
                "Authorization rules are not made with the event hub here: create them by the "
                "management API (authorizationRules)."
            )
    count = _number(found, "PartitionCount")
    return HubRequest(
        retention_days=_number(found, "MessageRetentionInDays"),
        status=_text(found, "Status"),
        user_metadata=_text(found, "UserMetadata"),
        partition_count=PARTITION_COUNT_DEFAULT if count is None and is_new else count,
    )


def read_group(body: bytes) -> str | None:
    """The userMetadata of an entry with a ConsumerGroupDescription."""
    return _text(_description(body, "ConsumerGroupDescription", _GROUP_ORDER), "UserMetadata")


def hub_entry(hub: Hub, host: str) -> str:
    ids = "".join(f"<a:string>{index}</a:string>" for index in range(hub.partition_count))
    description = (
        f"<MessageRetentionInDays>{to_days(hub.retention_hours)}</MessageRetentionInDays>"
        f"<AuthorizationRules/><Status>{hub.status.value}</Status>{_times(hub)}"
        f"{_user_metadata(hub.user_metadata)}"
        f"<PartitionCount>{hub.partition_count}</PartitionCount>"
        f'<PartitionIds xmlns:a="{ARRAYS}">{ids}</PartitionIds>'
    )
    return _entry(_uri(host, hub.name), hub.name, _stamps(hub), "EventHubDescription", description)


def group_entry(group: ConsumerGroup, host: str) -> str:
    uri = _uri(host, group.hub, "consumergroups", group.name)
    description = _times(group) + _user_metadata(group.user_metadata)
    return _entry(uri, group.name, _stamps(group), "ConsumerGroupDescription", description)


def partition_entry(partition: PartitionView, group: ConsumerGroup, host: str) -> str:
    uri = _uri(host, group.hub, "consumergroups", group.name, "partitions", partition.id)
    enqueued = format_time(partition.last_enqueued_ms)
    description = (
        f"<SizeInBytes>{partition.size_bytes}</SizeInBytes>"
        f"<BeginSequenceNumber>{partition.begin_sequence}</BeginSequenceNumber>"
        f"<EndSequenceNumber>{partition.last_sequence}</EndSequenceNumber>"
        "<IncomingBytesPerSecond>0</IncomingBytesPerSecond>"
        "<OutgoingBytesPerSecond>0</OutgoingBytesPerSecond>"
        f"<LastEnqueuedOffset>{partition.last_offset}</LastEnqueuedOffset>"
        f"<LastEnqueuedTimeUtc>{enqueued}</LastEnqueuedTimeUtc>"
    )
    return _entry(uri, partition.id, _stamps(group), "PartitionDescription", description)


def feed(title: str, host: str, path: str, entries: Iterable[str], now_ms: int) -> str:
    uri = xml.text(f"https://{host}/{quote(path, safe='/$')}")
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{xml.text(title)}</title><id>{uri}</id>'
        f'<updated>{format_time(now_ms)}</updated><link rel="self" href="{uri}"/>'
        f"{''.join(entries)}</feed>"
    )


def _entry(uri: str, title: str, stamps: str, kind: str, description: str) -> str:
    return (
        f'<entry xmlns="{ATOM}"><id>{uri}</id><title type="text">{xml.text(title)}</title>{stamps}'
        f'<link rel="self" href="{uri}"/><content type="application/xml">'
        f'<{kind} xmlns="{CONNECT}">{description}</{kind}></content></entry>'
    )


def _uri(host: str, *segments: str) -> str:
    return xml.text(f"https://{host}/" + "/".join(quote(each, safe="/$") for each in segments))


def _stamps(entity: Hub | ConsumerGroup) -> str:
    return (
        f"<published>{format_time(entity.created_ms)}</published>"
        f"<updated>{format_time(entity.updated_ms)}</updated>"
    )


def _times(entity: Hub | ConsumerGroup) -> str:
    return (
        f"<CreatedAt>{format_time(entity.created_ms)}</CreatedAt>"
        f"<UpdatedAt>{format_time(entity.updated_ms)}</UpdatedAt>"
    )


def _user_metadata(value: str) -> str:
    return f"<UserMetadata>{xml.text(value)}</UserMetadata>" if value else ""


def _description(body: bytes, kind: str, order: tuple[str, ...]) -> dict[str, xml.Element]:
    """The description's elements that stand in their order, by name. No body: all by default."""
    if not body.strip():
        return {}
    entry = xml.parse(body)
    if (entry.namespace, entry.name) != (ATOM, "entry"):
        raise ArgumentError(f"The body is no Atom entry but '{names.quote_text(entry.name)}'.")
    content = entry.child(ATOM, "content")
    description = content.child(CONNECT, kind) if content is not None else None
    if description is None:
        raise ArgumentError(f"The entry has no content with a {kind} of the service's namespace.")
    found: dict[str, xml.Element] = {}
    position = 0
    for element in description.children:
        if element.namespace == CONNECT and element.name in order[position:]:
            found[element.name] = element
            position = order.index(element.name) + 1
    return found


def _number(found: dict[str, xml.Element], name: str) -> int | None:
    given = _text(found, name)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= _NUMBER_DIGITS_MAX):
        raise ArgumentError(f"{name} is '{names.quote_text(given)}': a whole number is needed.")
    return int(given)


def _text(found: dict[str, xml.Element], name: str) -> str | None:
    element = found.get(name)
    if element is None:
        return None
    if element.children:
        raise ArgumentError(f"{name} holds elements where it should hold text.")
    return element.text if name == "UserMetadata" else element.text.strip()
