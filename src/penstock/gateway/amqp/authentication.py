"""`$cbs`: tokens are put here before anything else is allowed (protocol.md 2)."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.amqp.message import Message, ValueBody
from penstock.auth import Grant, parse_resource, verify_sas_token
from penstock.gateway.amqp.addresses import NodeKind
from penstock.gateway.amqp.errors import add_tracking, log_refusal
from penstock.gateway.amqp.request_response import NodeResponse, RequestLink
from penstock.gateway.guard import policy_of
from penstock.model import limits, names
from penstock.model.errors import (
    ArgumentError,
    AuthFailed,
    NotFound,
    PenstockError,
    UnsupportedTokenType,
)

_SAS_TYPES = frozenset({"servicebus.windows.net:sastoken"})


class CbsRequestLink(RequestLink):
    """put-token: verify, remember for this connection, answer 202 or the reason."""

    kind = NodeKind.CBS

    def answer(self, request: Message) -> NodeResponse:
        try:
            self._put_token(request)
        except UnsupportedTokenType as error:
            # No guess at a key: DefaultAzureCredential sends a JWT first. Answered at once.
            return self._refused(request, error)
        except AuthFailed as error:
            delay_ms = self.connection.delayed_answers.fail(policy_of(_token_of(request)))
            return self._refused(request, error, delay_ms)
        except PenstockError as error:
            return self._refused(request, error)
        return NodeResponse(202, "Accepted")

    def _refused(self, request: Message, error: PenstockError, delay_ms: int = 0) -> NodeResponse:
        audience = (request.application_properties or {}).get("name")
        path = _path_of(audience) if isinstance(audience, str) else ()
        log_refusal(self.connection, "put-token", error, path, policy_of(_token_of(request)))
        return NodeResponse.from_error(error, self._text(error), delay_ms=delay_ms)

    def _put_token(self, request: Message) -> None:
        properties = request.application_properties or {}
        operation = properties.get("operation")
        if operation != "put-token":
            raise ArgumentError("The operation is not put-token; $cbs knows no other.")
        audience = properties.get("name")
        token = _token_of(request)
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
        connection = self.connection
        grant = verify_sas_token(
            token,
            audience=audience,
            authorities=connection.context.authorities(),
            now_s=connection.context.clock.now_ms() // 1000,
        )
        self._check_entity(grant)
        connection.grants.put(grant.audience, grant)
        connection.namespace = grant.namespace
        connection.on_token_put()

    def _check_namespace(self, audience: str) -> None:
        host = parse_resource(audience).host
        if not any(a.answers_to(host) for a in self.connection.context.authorities()):
            raise NotFound(
                f"The messaging entity 'Invalid audience: Namespace cannot be resolved "
                f"'{audience[:200]}'' could not be found. To know more visit "
                "https://aka.ms/sbResourceMgrExceptions."
            )

    def _check_entity(self, grant: Grant) -> None:
        """An unknown hub is answered here, not at attach (protocol.md 13)."""
        if not grant.audience:
            return
        for authority in self.connection.context.authorities():
            if authority.namespace == grant.namespace:
                if authority.hub_of(grant.audience) is None:
                    # The broker words it; a path without any hub has its first segment named.
                    self.connection.context.broker.hub(grant.namespace, grant.audience[0])
                return

    def _text(self, error: PenstockError) -> str:
        return add_tracking(
            str(error),
            tracking_id=self.connection.id,
            tracker=self.connection.namespace or "-",
            now_ms=self.connection.context.clock.now_ms(),
        )


def _token_of(request: Message) -> object:
    return request.body.value if isinstance(request.body, ValueBody) else None


def _path_of(audience: str) -> Sequence[str]:
    """The entity that a token is for, as far as the text can be read."""
    try:
        return parse_resource(audience).path
    except AuthFailed:
        return (audience,)
