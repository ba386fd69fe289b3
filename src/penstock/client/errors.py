"""Errors of the client by kind, and which of them are final (protocol.md 6.2, 6.3)."""

from __future__ import annotations

import re

from penstock.amqp.performatives import Error
from penstock.model.errors import (
    AuthFailed,
    LinkStolen,
    MessageTooLarge,
    NotFound,
    OperationTimedOut,
    PenstockError,
    ServerBusy,
    Unauthorized,
)

# Protocol details around the sentence for the user.
_REQUEST = re.compile(
    r"^(?:\S+ on \$(?:cbs|management) was refused with status \d+"
    r"|The service ended the (?:link|session|connection): [a-z.]+(?::[a-z-]+)+): "
)
_REFERENCE = re.compile(r" ?(?:To know more visit https://\S+|TrackingId:\S+.*$)", re.DOTALL)
# Sentences of the service that SDKs match on, and their replacements for users.
_MISSING = r"The messaging entity '{}' could not be found\."
_PHRASES = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (
            _MISSING.format(r"sb://([^/']+)/([^']+)/ConsumerGroups/([^'/]+)[^']*"),
            r"There is no consumer group '\3' of the event hub '\2' in the namespace at \1.",
        ),
        (
            _MISSING.format(r"sb://([^/']+)/([^']+)"),
            r"There is no event hub '\2' in the namespace at \1.",
        ),
        (
            _MISSING.format("Invalid audience: Namespace cannot be resolved '([^']*)'"),
            r"The service has no namespace for '\1': check the host of the connection string.",
        ),
        (
            r"InvalidSignature: The token has an invalid signature\.",
            "The name or the key of the shared access policy is wrong: check the connection "
            "string.",
        ),
    )
)


def plain_text(text: str) -> str:
    """The text of an error as one plain sentence, without the request, links and tracking id."""
    plain = _REFERENCE.sub("", _REQUEST.sub("", text)).strip()
    for pattern, words in _PHRASES:
        plain = pattern.sub(words, plain)
    return plain


class ClientError(PenstockError):
    """The service refused a request, or the connection was lost; `error` is the service's error
    where it sent one."""

    def __init__(self, text: str, error: Error | None = None) -> None:
        super().__init__(text)
        self.error = error

    @property
    def is_final(self) -> bool:
        """Whether a retry would fail too, so that there is none."""
        return self.error is not None and self.error.condition in _FINAL


class ClientDenied(ClientError, Unauthorized):
    """The token is missing, not valid, or lacks the right."""

    is_final = True


class ClientNotFound(ClientError, NotFound):
    """The hub, group or partition does not exist."""

    is_final = True


class ClientThrottled(ClientError, ServerBusy):
    """The service is busy."""


class ClientTimedOut(ClientError, OperationTimedOut):
    """The service did not answer within the connection's deadline."""


class ClientStolen(ClientError, LinkStolen):
    """Another reader displaced this one (protocol.md 5.6)."""

    is_final = True


class ClientTooLarge(ClientError, MessageTooLarge):
    """The publication is larger than the service allows."""

    is_final = True


class ClientUntrusted(ClientError):
    """The certificate of the service cannot be verified."""

    is_final = True


class ClientClosed(ClientError):
    """The client is closed."""

    is_final = True


class EventsLost(ClientError):
    """Events in the middle of a range were removed: `expected` is the missing sequence number,
    `found` the next one in the partition."""

    is_final = True

    def __init__(self, partition_id: str, expected: int, found: int) -> None:
        super().__init__(
            f"Partition {partition_id} has no event {expected}: the next is {found}. Events were "
            "removed while they were read, by retention or compaction."
        )
        self.expected = expected
        self.found = found


_BY_CONDITION: dict[str, type[ClientError]] = {
    AuthFailed.condition: ClientDenied,
    Unauthorized.condition: ClientDenied,
    NotFound.condition: ClientNotFound,
    ServerBusy.condition: ClientThrottled,
    OperationTimedOut.condition: ClientTimedOut,
    LinkStolen.condition: ClientStolen,
    MessageTooLarge.condition: ClientTooLarge,
}
BY_STATUS: dict[int, type[ClientError]] = {
    401: ClientDenied,
    403: ClientDenied,
    404: ClientNotFound,
    408: ClientTimedOut,
    503: ClientThrottled,
}
# Conditions that the SDKs do not retry (protocol.md 6.2); all others count as transient.
_FINAL = frozenset(
    (
        "com.microsoft:entity-disabled",
        "com.microsoft:argument-error",
        "com.microsoft:argument-out-of-range",
        "com.microsoft:publisher-revoked",
        "com.microsoft:producer-epoch-stolen",
        "com.microsoft:out-of-order-sequence",
        "com.microsoft:georeplication:invalid-offset",
        "amqp:resource-limit-exceeded",
        "amqp:not-allowed",
        "amqp:not-implemented",
        "amqp:decode-error",
        "amqp:invalid-field",
    )
)


def condition_error(text: str, error: Error | None) -> ClientError:
    """The ClientError for an AMQP error of the service."""
    kind = ClientError if error is None else _BY_CONDITION.get(error.condition, ClientError)
    return kind(text, error)


def status_error(status: int, text: str, condition: str | None) -> ClientError:
    """The ClientError for a response of `$cbs` or `$management` with that status."""
    kind = BY_STATUS.get(status)
    if condition is None and kind is None and 400 <= status < 500:
        condition = "com.microsoft:argument-error"  # the request is wrong, so no retry helps
    error = None if condition is None else Error(condition=condition, description=text)
    return condition_error(text, error) if kind is None else kind(text, error)
