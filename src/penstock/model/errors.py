"""One tree of errors. Rooms raise these; only the doors turn them into frames or HTTP answers.

Every leaf carries `condition` (AMQP), `http_status` and `retriable`. The message says what was
seen, what is allowed and what to do. No secret ever stands in a message.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Anything that Penstock refuses or fails to do."""

    condition: ClassVar[str] = "amqp:internal-error"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False


class ServerBusy(PenstockError):
    """The namespace, or one partition, spent its throughput units."""

    condition = "com.microsoft:server-busy"
    http_status = 503
    retriable = True


class OperationTimedOut(PenstockError):
    """The service did not finish within the caller's time."""

    condition = "com.microsoft:timeout"
    http_status = 408
    retriable = True


class InternalError(PenstockError):
    """A fault of Penstock's own, or of its disk; the operator finds it in the log."""

    retriable = True


class LogFailed(InternalError):
    """The partition's log stopped after a failed write or flush and takes nothing until restart."""


class DiskFull(LogFailed):
    """The data directory has no room; writing resumes when there is some."""


class LogCorrupt(InternalError):
    """A checksum did not fit: the bytes are not what was acknowledged."""


class Unauthorized(PenstockError):
    """No valid token for this resource and right."""

    condition = "amqp:unauthorized-access"
    http_status = 401


class AuthFailed(PenstockError):
    """The token itself is not valid: signature, expiry, policy or form."""

    condition = "com.microsoft:auth-failed"
    http_status = 401


class UnsupportedTokenType(AuthFailed):
    """The token is of a kind that is not verified at all (a JWT), so it is no guess at a key."""


class NotFound(PenstockError):
    """The hub, group or namespace does not exist."""

    condition = "amqp:not-found"
    http_status = 404


class AlreadyExists(PenstockError):
    """An entity of that name is there already."""

    condition = "com.microsoft:entity-already-exists"
    http_status = 409


class EntityDisabled(PenstockError):
    """The hub is Disabled, SendDisabled or ReceiveDisabled."""

    condition = "com.microsoft:entity-disabled"
    http_status = 403


class EntityUpdated(PenstockError):
    """The hub was changed while the link was attached."""

    condition = "com.microsoft:entity-updated"
    http_status = 409
    retriable = True


class ArgumentError(PenstockError):
    """Malformed input: offset, filter, property, name."""

    condition = "com.microsoft:argument-error"
    http_status = 400


class ArgumentOutOfRange(PenstockError):
    """Well formed but outside what exists, such as a partition id."""

    condition = "com.microsoft:argument-out-of-range"
    http_status = 400


class DecodeError(PenstockError):
    """A message whose bytes are not valid AMQP."""

    condition = "amqp:decode-error"
    http_status = 400


class MessageTooLarge(PenstockError):
    """A publication above the namespace's limit."""

    condition = "amqp:link:message-size-exceeded"
    http_status = 413


class QuotaExceeded(PenstockError):
    """A documented quota is reached: readers, connections, groups, rules."""

    condition = "amqp:resource-limit-exceeded"
    http_status = 403


class NotAllowed(PenstockError):
    """The operation does not exist on this entity, or two of its parts contradict each other."""

    condition = "amqp:not-allowed"
    http_status = 400


class NotImplementedHere(PenstockError):
    """A feature that Penstock does not have."""

    condition = "amqp:not-implemented"
    http_status = 501


class LinkStolen(PenstockError):
    """Another reader took the partition (protocol.md 5.6)."""

    condition = "amqp:link:stolen"
    http_status = 409


class DetachForced(PenstockError):
    """The service ended a link: idle, or moved."""

    condition = "amqp:link:detach-forced"
    http_status = 503
    retriable = True


class ConnectionForced(PenstockError):
    """The service ended a connection: idle, or shutting down."""

    condition = "amqp:connection:forced"
    http_status = 503
    retriable = True


class PublisherRevoked(PenstockError):
    """The publisher was revoked."""

    condition = "com.microsoft:publisher-revoked"
    http_status = 403


class ProducerEpochStolen(PenstockError):
    """A newer idempotent producer took over this producer id."""

    condition = "com.microsoft:producer-epoch-stolen"
    http_status = 409


class OutOfOrderSequence(PenstockError):
    """An idempotent producer skipped a number."""

    condition = "com.microsoft:out-of-order-sequence"
    http_status = 409


class OperationCancelled(PenstockError):
    """The service is shutting down."""

    condition = "com.microsoft:operation-cancelled"
    http_status = 503
    retriable = True


class ConfigurationError(PenstockError):
    """A setting that cannot be used; the message names the file, the key and what is allowed."""

    http_status = 400


class ListenerError(PenstockError):
    """A port cannot be listened on; the message names it and the option that chooses it."""


class DataDirectoryError(PenstockError):
    """The data directory is locked, of a newer version, or cannot be written."""


class CheckpointStoreUnavailable(PenstockError):
    """The file or the service cannot be reached now. Event processors retry by themselves."""

    http_status = 503
    retriable = True
