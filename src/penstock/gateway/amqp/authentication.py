"""How a client presents credentials: SASL, or tokens that it puts to `$cbs` (protocol.md 1.3, 2).

The anonymous SASL mechanisms give access to `$cbs` only; PLAIN carries a policy and its key.
"""

from __future__ import annotations

from collections.abc import Sequence

from penstock.amqp.events import SaslInitReceived
from penstock.amqp.message import Message, ValueBody
from penstock.auth.grant import Grant
from penstock.auth.resource import parse_resource
from penstock.auth.sas import grant_from_key, verify_sas_token
from penstock.gateway.amqp.addresses import NodeKind
from penstock.gateway.amqp.links import LinkHost
from penstock.gateway.amqp.request_response import NodeResponse, RequestLink, Respond
from penstock.gateway.guard import policy_of
from penstock.model import limits, names
from penstock.model.errors import (
    ArgumentError,
    AuthFailed,
    NotFound,
    PenstockError,
    UnsupportedTokenType,
)

_ANONYMOUS = frozenset({"ANONYMOUS", "MSSBCBS", "EXTERNAL"})
_SAS_TYPES = frozenset({"servicebus.windows.net:sastoken"})


def check_sasl_init(host: LinkHost, init: SaslInitReceived) -> None:
    """Returns if the client may continue; raises AuthFailed otherwise."""
    mechanism = init.mechanism.upper()
    if mechanism in _ANONYMOUS:
        return
    if mechanism != "PLAIN":
        raise AuthFailed(
            f"The SASL mechanism '{names.quote_text(init.mechanism)}' was not offered."
        )
    user, password = _parse_sasl_plain(init.initial_response)
    grant = grant_from_key(
        host.context.authorities(), user=user, password=password, host=init.hostname
    )
    host.grants.put_for_connection(grant)
    host.authenticate(grant.namespace)


def policy_name_in_sasl(init: SaslInitReceived) -> str:
    """The policy that a PLAIN response claims; "" if it claims none."""
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


class CbsRequestLink(RequestLink):
    """put-token: verify the token, hold its grant for this connection, answer 202 or the reason."""

    kind = NodeKind.CBS

    def answer(self, request: Message, respond: Respond) -> None:
        try:
            self._put_token(request)
        except PenstockError as error:
            audience = (request.application_properties or {}).get("name")
            path = _entity_path(audience) if isinstance(audience, str) else ()
            respond(self.refuse("put-token", error, path, policy_of(_token(request))))
        else:
            respond(NodeResponse(status=202, description="Accepted"))

    def _put_token(self, request: Message) -> None:
        properties = request.application_properties or {}
        operation = properties.get("operation")
        if operation != "put-token":
            raise ArgumentError("The operation is not put-token; $cbs knows no other.")
        audience = properties.get("name")
        token = _token(request)
        if not isinstance(audience, str) or not isinstance(token, str):
            raise AuthFailed(
                "MalformedToken: put-token needs the application property 'name' and the token as "
                "a string body."
            )
        token_type = properties.get("type")
        if not isinstance(token_type, str):
            raise AuthFailed("MalformedToken: put-token needs the application property 'type'.")
        if token_type not in _SAS_TYPES:
            raise UnsupportedTokenType(
                f"MalformedToken: the token type '{names.quote_text(token_type)}' is not "
                "supported: "
                "servicebus.windows.net:sastoken is. Use a connection string, a named key or a "
                "shared access signature as the credential."
            )
        if max(len(audience), len(token)) > limits.SAS_TOKEN_BYTES_MAX:
            raise AuthFailed(
                f"MalformedToken: a token has at most {limits.SAS_TOKEN_BYTES_MAX} bytes."
            )
        self._check_namespace(audience)
        grant = verify_sas_token(
            token,
            audience=audience,
            authorities=self.host.context.authorities(),
            now_s=self.host.context.clock.now_ms() // 1000,
        )
        self._check_entity(grant)
        self.host.grants.put(grant.audience, grant)
        self.host.authenticate(grant.namespace)

    def _check_namespace(self, audience: str) -> None:
        host = parse_resource(audience).host
        if not any(a.answers_to(host) for a in self.host.context.authorities()):
            raise NotFound(
                f"The messaging entity 'Invalid audience: Namespace cannot be resolved "
                f"'{audience[:200]}'' could not be found. To know more visit "
                "https://aka.ms/sbResourceMgrExceptions."
            )

    def _check_entity(self, grant: Grant) -> None:
        """An unknown hub is reported here, not at attach (protocol.md 13)."""
        if not grant.audience:
            return
        for authority in self.host.context.authorities():
            if authority.namespace == grant.namespace:
                if authority.hub_of(grant.audience) is None:
                    # Raises the broker's error, which names the first segment of the path.
                    self.host.context.broker.hub(grant.namespace, grant.audience[0])
                return


def _token(request: Message) -> object:
    return request.body.value if isinstance(request.body, ValueBody) else None


def _entity_path(audience: str) -> Sequence[str]:
    """The entity that a token is for, as far as the text can be parsed."""
    try:
        return parse_resource(audience).path
    except AuthFailed:
        return (audience,)
