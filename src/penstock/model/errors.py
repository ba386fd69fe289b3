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

    def __init_subclass__(
        cls, condition: str = "", http_status: int = 0, *, retriable: bool = False
    ) -> None:
        """A class statement gives what differs from the bases. What it does not give is inherited:
        of two bases, the first that gives it decides."""
        super().__init_subclass__()
        if condition:
            cls.condition = condition
        if http_status:
            cls.http_status = http_status
        if retriable:
            cls.retriable = retriable


class ServerBusy(
    PenstockError, condition="com.microsoft:server-busy", http_status=503, retriable=True
):
    """The throughput units of the namespace, or of one partition, are used up."""


class OperationTimedOut(
    PenstockError, condition="com.microsoft:timeout", http_status=408, retriable=True
):
    """The service did not finish within the time that the caller allowed."""


class InternalError(PenstockError, retriable=True):
    """A fault in Penstock or its disk; details are in the log lines of the service."""


class LogFailed(InternalError):
    """The log of the partition stopped after a failed write or flush; it accepts no events until
    the service is restarted."""


class DiskFull(LogFailed):
    """The disk of the data directory is full; writing resumes when there is space."""


class LogCorrupt(InternalError):
    """A checksum does not match: the stored bytes are not those that were acknowledged."""


class Unauthorized(PenstockError, condition="amqp:unauthorized-access", http_status=401):
    """No valid token for this resource and right."""


class AuthFailed(PenstockError, condition="com.microsoft:auth-failed", http_status=401):
    """The token is not valid: signature, expiry, policy or syntax."""


class UnsupportedTokenType(AuthFailed):
    """The token is of a kind that is not verified (a JWT). It is not counted as an attempt to guess
    a key."""


class NotFound(PenstockError, condition="amqp:not-found", http_status=404):
    """The hub, group or namespace does not exist."""


class AlreadyExists(
    PenstockError, condition="com.microsoft:entity-already-exists", http_status=409
):
    """An entity of that name exists already."""


class EntityDisabled(PenstockError, condition="com.microsoft:entity-disabled", http_status=403):
    """The hub is Disabled, SendDisabled or ReceiveDisabled."""


class EntityUpdated(
    PenstockError, condition="com.microsoft:entity-updated", http_status=409, retriable=True
):
    """The hub was changed while the link was attached."""


class ArgumentError(PenstockError, condition="com.microsoft:argument-error", http_status=400):
    """Malformed input, such as an offset, filter, property or name."""


class ArgumentOutOfRange(
    PenstockError, condition="com.microsoft:argument-out-of-range", http_status=400
):
    """A value outside the allowed range, such as a partition id."""


class DecodeError(PenstockError, condition="amqp:decode-error", http_status=400):
    """A message whose bytes are not valid AMQP."""


class MessageTooLarge(PenstockError, condition="amqp:link:message-size-exceeded", http_status=413):
    """A publication above the namespace's limit."""


class QuotaExceeded(PenstockError, condition="amqp:resource-limit-exceeded", http_status=403):
    """A documented quota is reached: readers, connections, groups, rules."""


class NotAllowed(PenstockError, condition="amqp:not-allowed", http_status=400):
    """The operation does not exist on this entity, or two of its parts contradict each other."""


class NotImplementedHere(PenstockError, condition="amqp:not-implemented", http_status=501):
    """A feature that Penstock does not have."""


class LinkStolen(PenstockError, condition="amqp:link:stolen", http_status=409):
    """An epoch reader displaced this reader, or prevents its registration (protocol.md 5.6)."""


class ConnectionForced(
    PenstockError, condition="amqp:connection:forced", http_status=503, retriable=True
):
    """The service ended a connection: idle, or shutting down."""


class PublisherRevoked(PenstockError, condition="com.microsoft:publisher-revoked", http_status=403):
    """The publisher was revoked."""


class ProducerEpochStolen(
    PenstockError, condition="com.microsoft:producer-epoch-stolen", http_status=409
):
    """A newer idempotent producer took over this producer id."""


class OutOfOrderSequence(
    PenstockError, condition="com.microsoft:out-of-order-sequence", http_status=409
):
    """A batch of an idempotent producer does not follow the last published number."""


class OperationCancelled(
    PenstockError, condition="com.microsoft:operation-cancelled", http_status=503, retriable=True
):
    """The service is shutting down."""


class ConfigurationError(PenstockError, http_status=400):
    """An invalid setting; the message names the file, the key and what is allowed."""


class ListenerError(PenstockError):
    """A listener cannot be opened; the message names the port and the option that sets it."""


class DataDirectoryError(PenstockError):
    """The data directory is locked, of a newer version, or cannot be written."""


class CheckpointStoreUnavailable(PenstockError, http_status=503, retriable=True):
    """The file or the service cannot be reached now. Event processors retry by themselves."""
