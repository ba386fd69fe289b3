"""What a client may hear, by kind; and which of it is worth another try (protocol.md 6.2, 6.3)."""

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

# What the protocol adds around the sentence that a person needs.
_REQUEST = re.compile(
    r"^(?:\S+ on \$(?:cbs|management) was refused with status \d+"
    r"|The service ended the (?:link|session|connection): [a-z.]+(?::[a-z-]+)+): "
)
_REFERENCE = re.compile(r" ?(?:To know more visit https://\S+|TrackingId:\S+.*$)", re.DOTALL)
# Sentences of the service that SDKs match on, and the same for people.
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
    """The text of an error as one plain sentence: without the request that it answers, links and
    tracking id."""
    plain = _REFERENCE.sub("", _REQUEST.sub("", text)).strip()
    for pattern, words in _PHRASES:
        plain = pattern.sub(words, plain)
    return plain


class ClientError(PenstockError):
    """The service refused, or went away; `error` is its own word where it gave one."""

    def __init__(self, text: str, error: Error | None = None) -> None:
        super().__init__(text)
        self.error = error

    @property
    def is_final(self) -> bool:
        """Another try would end the same way, so none is made."""
        return self.error is not None and self.error.condition in _FINAL


class ClientDenied(ClientError, Unauthorized):
    """No token, a wrong one, or one without the right."""

    is_final = True


class ClientNotFound(ClientError, NotFound):
    """The hub, group or partition is not there."""

    is_final = True


class ClientThrottled(ClientError, ServerBusy):
    """The service takes no more at this moment."""


class ClientTimedOut(ClientError, OperationTimedOut):
    """The service did not answer within the connection's deadline."""


class ClientStolen(ClientError, LinkStolen):
    """Another reader took the partition (protocol.md 5.6)."""

    is_final = True


class ClientTooLarge(ClientError, MessageTooLarge):
    """The publication is above what the service takes at once."""

    is_final = True


class ClientUntrusted(ClientError):
    """The service's certificate is not one that we trust."""

    is_final = True


class ClientClosed(ClientError):
    """The client was closed; nothing can be asked of it."""

    is_final = True


class EventsLost(ClientError):
    """Events in the middle of a range are not there any more: `expected` was the next sequence
    number, `found` is the next that there is."""

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
_BY_STATUS: dict[int, type[ClientError]] = {
    401: ClientDenied,
    403: ClientDenied,
    404: ClientNotFound,
    408: ClientTimedOut,
    503: ClientThrottled,
}
# What the SDKs do not try again (protocol.md 6.2); all else is transient, or taken for it.
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


def failure(text: str, error: Error | None) -> ClientError:
    """The ClientError that tells a caller which kind of refusal this is."""
    kind = ClientError if error is None else _BY_CONDITION.get(error.condition, ClientError)
    return kind(text, error)


def refusal(status: int, text: str, condition: str | None) -> ClientError:
    """The same for an answer of `$cbs` or `$management`, whose word is a status."""
    error = None if condition is None else Error(condition=condition, description=text)
    kind = _BY_STATUS.get(status)
    if kind is None:
        return failure(text, error or _by_status(status, text))
    return kind(text, error)


def _by_status(status: int, text: str) -> Error | None:
    """Without a condition a client's own mistake (4xx) is told from the service's by the status."""
    if 400 <= status < 500:
        return Error(condition="com.microsoft:argument-error", description=text)
    return None
