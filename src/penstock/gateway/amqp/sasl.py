"""Who may pass SASL: anonymous kinds to `$cbs` only, PLAIN with a policy and its key at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.amqp.events import SaslInitReceived
from penstock.auth import grant_from_key
from penstock.model import limits, names
from penstock.model.errors import AuthFailed

if TYPE_CHECKING:
    from penstock.gateway.amqp.connection import AmqpConnection

_ANONYMOUS = frozenset({"ANONYMOUS", "MSSBCBS", "EXTERNAL"})


def check_sasl_init(connection: AmqpConnection, init: SaslInitReceived) -> None:
    """Returns when the peer may go on; raises AuthFailed otherwise (protocol.md 1.3)."""
    mechanism = init.mechanism.upper()
    if mechanism in _ANONYMOUS:
        return
    if mechanism != "PLAIN":
        raise AuthFailed(
            f"The SASL mechanism '{names.quote_text(init.mechanism)}' was not offered."
        )
    user, password = _parse_sasl_plain(init.initial_response)
    grant = grant_from_key(
        connection.context.authorities(), user=user, password=password, host=init.hostname
    )
    connection.grants.put_for_connection(grant)
    connection.namespace = grant.namespace
    connection.on_token_put()


def policy_name_in_sasl(init: SaslInitReceived) -> str:
    """The policy that a PLAIN response names, true or not; "" when it names none."""
    try:
        return _parse_sasl_plain(init.initial_response)[0]
    except AuthFailed:
        return ""


def _parse_sasl_plain(response: bytes) -> tuple[str, str]:
    """RFC 4616: authorization identity NUL user NUL password."""
    if len(response) > limits.SAS_TOKEN_BYTES_MAX:
        raise AuthFailed("The SASL PLAIN response is too long.")
    parts = response.split(b"\0")
    if len(parts) != 3:
        raise AuthFailed("The SASL PLAIN response is not of the form NUL user NUL password.")
    try:
        return parts[1].decode(), parts[2].decode()
    except UnicodeDecodeError as error:
        raise AuthFailed("The SASL PLAIN response is not UTF-8.") from error
