"""One tree of errors. All packages raise these; gateways translate them to AMQP and HTTP.

Every class has `condition` (AMQP), `http_status` and `retriable`. The message says what happened,
what is allowed and what to do. It never contains a secret.
"""

from __future__ import annotations

from typing import ClassVar


class PenstockError(Exception):
    """Anything that Penstock refuses or fails to do."""

    condition: ClassVar[str] = "amqp:internal-error"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False


class ServerBusy(PenstockError):
    """The throughput units of the namespace, or of one partition, are used up."""

    condition = "com.microsoft:server-busy"
    http_status = 503
    retriable = True


class OperationTimedOut(PenstockError):
    """The service did not finish within the time that the caller allowed."""

    condition = "com.microsoft:timeout"
    http_status = 408
    retriable = True


class InternalError(PenstockError):
    """A fault in Penstock or its disk; details are in the log lines of the service."""

    retriable = True


class LogFailed(InternalError):
    """The log of the partition stopped after a failed write or flush; it accepts no events until
    the service is restarted."""


class DiskFull(LogFailed):
    """The disk of the data directory is full; writing resumes when there is space."""


class LogCorrupt(InternalError):
    """A checksum does not match: the stored bytes are not those that were acknowledged."""


class Unauthorized(PenstockError):
    """No valid token for this resource and right."""

    condition = "amqp:unauthorized-access"
    http_status = 401


class AuthFailed(PenstockError):
    """The token is not valid: signature, expiry, policy or syntax."""

    condition = "com.microsoft:auth-failed"
    http_status = 401


class UnsupportedTokenType(AuthFailed):
    """The token is of a kind that is not verified (a JWT). It is not counted as an attempt to guess
    a key."""


class NotFound(PenstockError):
    """The hub, group or namespace does not exist."""

    condition = "amqp:not-found"
    http_status = 404


class AlreadyExists(PenstockError):
    """An entity of that name exists already."""

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
    """Malformed input, such as an offset, filter, property or name."""

    condition = "com.microsoft:argument-error"
    http_status = 400


class ArgumentOutOfRange(PenstockError):
    """A value outside the allowed range, such as a partition id."""

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
    """An epoch reader displaced this reader, or prevents its registration (protocol.md 5.6)."""

    condition = "amqp:link:stolen"
    http_status = 409


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
    """A batch of an idempotent producer does not follow the last published number."""

    condition = "com.microsoft:out-of-order-sequence"
    http_status = 409


class OperationCancelled(PenstockError):
    """The service is shutting down."""

    condition = "com.microsoft:operation-cancelled"
    http_status = 503
    retriable = True


class ConfigurationError(PenstockError):
    """An invalid setting; the message names the file, the key and what is allowed."""

    http_status = 400


class ListenerError(PenstockError):
    """A listener cannot be opened; the message names the port and the option that sets it."""


class DataDirectoryError(PenstockError):
    """The data directory is locked, of a newer version, or cannot be written."""


class CheckpointStoreUnavailable(PenstockError):
    """The file or the service cannot be reached now. Event processors retry by themselves."""

    http_status = 503
    retriable = True
