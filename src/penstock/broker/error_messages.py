"""Errors whose texts SDKs and users' tools match on (protocol.md 5.6, 6.2, 13): do not reword them.

Names that a client chose are truncated and escaped in them.
"""

from __future__ import annotations

from penstock.broker.reader import Reader
from penstock.kernels import KernelError, KeyConflict, KeyTooLong
from penstock.model import errors, limits
from penstock.model.entities import Hub, Namespace
from penstock.model.names import quote_text


def entity_not_found_error(
    namespace: Namespace | str, hub: str, group: str | None = None
) -> errors.NotFound:
    """The text has the first host name of the namespace; a namespace that does not exist is given
    by its name."""
    if isinstance(namespace, Namespace):
        namespace = namespace.hosts[0] if namespace.hosts else namespace.name
    path = f"{quote_text(namespace)}/{quote_text(hub)}"
    if group is not None:
        path += f"/ConsumerGroups/{quote_text(group)}"
    return errors.NotFound(
        f"The messaging entity 'sb://{path}' could not be found. "
        "To know more visit https://aka.ms/sbResourceMgrExceptions."
    )


def entity_disabled_error(hub: Hub, act: str) -> errors.EntityDisabled:
    return errors.EntityDisabled(
        f"The messaging entity '{hub.name}' is currently disabled for {act}: its status is "
        f"'{hub.status.value}'. Set it to 'Active' and try again."
    )


def entity_updated_error() -> errors.EntityUpdated:
    return errors.EntityUpdated("Entity was updated.")  # protocol.md 13


def publisher_revoked_error(hub: Hub, publisher: str) -> errors.PublisherRevoked:
    return errors.PublisherRevoked(
        f"The publisher '{quote_text(publisher)}' of the event hub '{hub.name}' was revoked "
        "and may not send. An operator can resume it."
    )


def partition_out_of_range_error(seen: str, partition_count: int) -> errors.ArgumentOutOfRange:
    return errors.ArgumentOutOfRange(
        f"The specified partition '{quote_text(seen)}' is invalid for an EventHub partition "
        f"sender or receiver. It should be between 0 and {partition_count - 1}."
    )


def server_busy_error() -> errors.ServerBusy:
    return errors.ServerBusy(
        "The request was terminated because the entity is being throttled. "
        "Error code : 50002. Please wait 4 seconds and try again."
    )


def too_many_readers_error(names: list[str | None]) -> errors.QuotaExceeded:
    return errors.QuotaExceeded(
        "Exceeded the maximum number of allowed receivers per partition in a consumer group "
        f"which is {limits.SHARED_READERS_MAX}. "
        f"List of connected receivers - {', '.join(map(_format_reader_name, names))}."
    )


def epoch_reader_exists_error(epoch: int | None) -> errors.LinkStolen:
    return errors.LinkStolen(
        f"At least one receiver for the endpoint is created with epoch of '{epoch}', and so "
        "non-epoch receiver is not allowed. Either reconnect with a higher epoch, or make sure "
        "all epoch receivers are closed or disconnected."
    )


def lower_epoch_error(new: Reader, current: Reader) -> errors.LinkStolen:
    return errors.LinkStolen(
        f"Receiver '{_format_reader_name(current.name)}' with a higher epoch '{current.epoch}' "
        f"already exists. Receiver '{_format_reader_name(new.name)}' with epoch {new.epoch} "
        "cannot be created. "
        "Make sure you are creating receiver with increasing epoch value to ensure connectivity, "
        "or ensure all old epoch receivers are closed or disconnected."
    )


def displaced_error(new: Reader, current: Reader) -> errors.LinkStolen:
    # The epoch of a shared reader is printed as '' (protocol.md 13, recorded on Azure).
    return errors.LinkStolen(
        f"New receiver '{_format_reader_name(new.name)}' with higher epoch of '{new.epoch}' "
        f"is created hence current receiver '{_format_reader_name(current.name)}' with epoch "
        f"'{'' if current.epoch is None else current.epoch}' is getting disconnected. "
        "If you are recreating the receiver, make sure a higher epoch is used."
    )


def translate_kernel_error(error: KernelError) -> errors.PenstockError:
    """The error that the client gets for a publication that a kernel refused."""
    if isinstance(error, KeyConflict):
        return errors.NotAllowed(str(error))
    if isinstance(error, KeyTooLong):
        return errors.ArgumentError(str(error))
    return errors.DecodeError(str(error))


def _format_reader_name(name: str | None) -> str:
    return "nil" if name is None else quote_text(name)
