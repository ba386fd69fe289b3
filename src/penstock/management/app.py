"""The management API as an ASGI application, on the administration port and on the HTTPS port.

It checks token, rate and api-version before it reads a body. Handlers run on the event loop:
operations do not wait, except for disk reads, which they hand to a thread.
"""

from __future__ import annotations

import base64
import logging
from collections.abc import Awaitable, Callable
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.io import asgi
from penstock.management import openapi, operations, permissions, router
from penstock.management.errors import INTERNAL, RequestError, status_and_code
from penstock.management.operations.base import ManagementContext
from penstock.management.resources import ErrorBody, ErrorDetail
from penstock.management.routes import entities, subscriptions
from penstock.management.routes.entities import ApiRequest
from penstock.management.unsupported import check_supported
from penstock.model import limits, names, slow_operations
from penstock.model.clock import Clock
from penstock.model.errors import AuthFailed, PenstockError, ServerBusy

log = logging.getLogger("penstock.management")

ROUTES = [*subscriptions.ROUTES, *entities.ROUTES, *operations.ROUTES]
_OPENAPI = "/openapi.json"
_ENDPOINTS = "/metadata/endpoints"
_IDENTITY = "/metadata/identity/oauth2/token"
# Paths of this API, in lower case. No other path of the administration port begins like these.
_EXACT = ("/subscriptions", "/tenants", _ENDPOINTS, _OPENAPI)
_PREFIXES = (
    "/subscriptions/",
    "/providers/microsoft.eventhub/",
    "/providers/penstock/",
    "/metadata/identity/",
)

_Headers = list[tuple[str, str]]
_Response = tuple[int, object, _Headers]  # status, value (None: empty body), headers


class ManagementMount:
    """An ASGI application: `management` answers the paths of the management API, `others` the rest.
    An event hub may be named 'subscriptions': a POST whose path ends in '/messages' publishes."""

    def __init__(self, management: ASGIApp, others: ASGIApp) -> None:
        self._management = management
        self._others = others

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        app = self._management if _is_management_request(scope) else self._others
        return app(scope, receive, send)


def _is_management_request(scope: Scope) -> bool:
    if scope["type"] != "http" or not is_management_path(scope["path"]):
        return False
    return scope["method"] != "POST" or not scope["path"].lower().rstrip("/").endswith("/messages")


def is_management_path(path: str) -> bool:
    """Empty segments do not count, as in `split_path`."""
    normalized = "/" + "/".join(part for part in path.lower().split("/") if part)
    return normalized in _EXACT or normalized.startswith(_PREFIXES)


class ManagementApp:
    """`verify` returns subject and roles of a bearer token, or raises AuthFailed. `endpoints`
    raises ServerBusy until the service has its listeners."""

    def __init__(
        self,
        context: ManagementContext,
        *,
        verify: Callable[[str], permissions.Verified],
        endpoints: Callable[[], router.ServiceEndpoints],
        new_id: Callable[[], str],
        log_refusal: Callable[[Scope, PenstockError, str], None] = lambda *_: None,
    ) -> None:
        self._context = context
        self._verify = verify
        self._endpoints = endpoints
        self._new_id = new_id
        self._log_refusal = log_refusal
        self._rate = _RequestRate(context.clock)
        self._openapi: bytes | None = None  # encoded once, for the first request

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("The management API has no WebSockets.")
        request_id = self._new_id()
        try:
            status, value, headers = await self._respond(scope, receive)
        except asgi.ClientDisconnected:
            return
        except PenstockError as error:
            if isinstance(error, AuthFailed):
                self._log_refusal(scope, error, request_id)
            status, value, headers = self._refusal(error, request_id)
        except Exception:
            log.exception("management request failed: request_id=%s", request_id)
            detail = ErrorDetail("InternalServerError", INTERNAL)
            status, value, headers = 500, ErrorBody(detail), []
        headers += [
            ("x-ms-request-id", request_id),
            ("x-ms-correlation-request-id", request_id),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]
        if value is None or isinstance(value, bytes):
            kind = "application/json"
            await asgi.send_response(send, status, value or b"", content_type=kind, headers=headers)
        else:
            await asgi.send_json(send, status, value, headers=headers)

    async def _respond(self, scope: Scope, receive: Receive) -> _Response:
        """The order matters: no query, body or route is parsed for a client without a token."""
        segments = router.split_path(scope.get("raw_path") or scope["path"].encode())
        path = "/" + "/".join(segments).lower()
        if path == _ENDPOINTS:
            return 200, cloud_metadata(self._endpoints()), []
        if path == _IDENTITY:
            try:
                return self._identity(scope)
            except PenstockError as error:
                return _identity_refusal(error)
        actor = self._authenticate(asgi.get_header(scope, b"authorization"))
        asgi.authenticate(scope)
        actor = resolve_actor(actor, asgi.get_header(scope, b"x-penstock-on-behalf-of"))
        self._rate.take()
        if path == _OPENAPI:
            if self._openapi is None:
                self._openapi = msgspec.json.encode(openapi.build_document(ROUTES))
            return 200, self._openapi, []
        query = asgi.parse_query(scope)
        if not path.startswith((router.OWN.lower(), "/metadata/")):
            check_api_version(query.get("api-version", ""))
        method = scope["method"]
        check_supported(method, segments)
        route, path_names = router.find_route(ROUTES, method, segments)
        body = await asgi.read_request_body(
            scope,
            receive,
            bytes_max=limits.MANAGEMENT_BODY_BYTES_MAX,
            deadline_s=limits.MANAGEMENT_BODY_DEADLINE_S,
        )
        request = ApiRequest(self._context, actor, self._endpoints(), path_names)
        clock = self._context.clock
        began_ms = clock.monotonic_ms()
        try:
            group = route.group
            target = request if group is None else getattr(request.operations, group)
            value = await router.run_route(route, target, path_names, body, query)
            return request.status or route.statuses[0], value, []
        finally:
            took_ms = clock.monotonic_ms() - began_ms
            slow_operations.warn_if_slow("management", took_ms, endpoint="http", method=method)

    def _authenticate(self, authorization: str) -> permissions.Actor:
        scheme, _, token = authorization.partition(" ")
        if not authorization or scheme.lower() != "bearer":
            raise AuthFailed(
                "The request needs an admin token: 'Authorization: Bearer TOKEN' "
                "(admin_token in runtime.json of the service's data directory)."
            )
        subject, roles = self._verify(token.strip())
        return permissions.actor_of(subject, roles)

    def _identity(self, scope: Scope) -> _Response:
        """The endpoint that `az login --identity` asks for a token, as in App Service. A client
        that presents the admin token as its secret gets it back (docs/reference/management.md)."""
        token = asgi.get_header(scope, b"x-identity-header")
        if not token:
            raise AuthFailed("The request has no X-IDENTITY-HEADER.")
        self._verify(token)
        asgi.authenticate(scope)
        now_s = self._context.clock.now_ms() // 1000
        resource = asgi.parse_query(scope).get("resource", "")
        value = {
            "access_token": token,
            "expires_on": str(min(now_s + 86_400, _expiry_s(token))),
            "resource": names.quote_text(resource, most=200),
            "token_type": "Bearer",
            "client_id": "penstock",
        }
        return 200, value, []

    def _refusal(self, error: PenstockError, request_id: str) -> _Response:
        status, code = status_and_code(error)
        text = str(error)
        headers: _Headers = []
        if isinstance(error, RequestError):
            headers = list(error.headers)
        elif status == 401:
            endpoints = self._endpoints()
            login = f"{endpoints.https}/{endpoints.tenant_id}"
            headers = [("www-authenticate", f'Bearer authorization_uri="{login}"')]
        elif status == 429:
            headers = [("retry-after", "1")]
        elif status == 500:
            log.error("management request failed: request_id=%s text=%s", request_id, error)
            text = INTERNAL
        return status, ErrorBody(ErrorDetail(code, text)), headers


class _RequestRate:
    """Token bucket for the requests of all authenticated clients together."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = float(limits.MANAGEMENT_REQUESTS_BURST)
        self._filled_ms = clock.monotonic_ms()

    def take(self) -> None:
        """Raises ServerBusy."""
        now_ms = self._clock.monotonic_ms()
        grown = (now_ms - self._filled_ms) * limits.MANAGEMENT_REQUESTS_PER_S / 1000
        self._tokens = min(self._tokens + grown, limits.MANAGEMENT_REQUESTS_BURST)
        self._filled_ms = now_ms
        if self._tokens < 1:
            raise ServerBusy(
                f"More than {limits.MANAGEMENT_REQUESTS_PER_S} management requests a second; "
                "wait a second and try again."
            )
        self._tokens -= 1


def _expiry_s(token: str) -> int:
    """The expiry of a verified token. Tokens that expire are JWTs."""
    parts = token.split(".")
    if len(parts) != 3:
        return 2**53
    claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return int(claims["exp"])


def _identity_refusal(error: PenstockError) -> _Response:
    """In the shape of App Service: MSAL reads `statusCode` and `message` at the top level, and `az`
    shows them to the user."""
    status, code = status_and_code(error)
    text = (
        f"{error} Set IDENTITY_HEADER to the admin token of this service: admin_token of "
        "runtime.json in its data directory, or what 'penstock token admin' prints."
    )
    detail = {"code": code, "message": text}
    return status, {"statusCode": status, "message": text, "error": detail}, []


def resolve_actor(actor: permissions.Actor, on_behalf_of: str) -> permissions.Actor:
    """The actor of a request with the header `X-Penstock-On-Behalf-Of: ROLE NAME`. Only the portal
    and administrators may act for another person; the name is for the audit log. Raises
    Forbidden."""
    if not on_behalf_of:
        return actor
    role, _, name = on_behalf_of.partition(" ")
    name = unquote(name).strip()
    is_portal = actor.process is permissions.ProcessRole.PORTAL
    if not (is_portal or actor.role is permissions.AdminRole.ADMIN) or not name:
        raise permissions.Forbidden(
            "Only an administrator may act on behalf of another person, and must name the person."
        )
    return permissions.Actor(
        name, permissions.role_from_claims([role]), is_through_portal=is_portal
    )


def check_api_version(version: str) -> None:
    """Every dated version, also a preview, gets the same response (protocol.md 7.3). Raises
    RequestError."""
    if not version:
        raise RequestError(
            400,
            "MissingApiVersionParameter",
            "The api-version query parameter (?api-version=) is required for all requests.",
        )
    if router.API_VERSION.fullmatch(version) is None:
        raise RequestError(
            400,
            "InvalidApiVersionParameter",
            f"The api-version '{names.quote_text(version)}' is invalid: a date from "
            "2014-09-01 on is allowed, such as 2024-01-01, with or without -preview.",
        )


def cloud_metadata(endpoints: router.ServiceEndpoints) -> dict[str, object]:
    """The response to `az cloud register`: both forms that clients read, in one object."""
    return {
        "name": "Penstock",
        "portal": endpoints.https,
        "galleryEndpoint": endpoints.https,
        "graphEndpoint": endpoints.https,
        "portalEndpoint": endpoints.https,
        "resourceManager": endpoints.https,
        "authentication": {
            "loginEndpoint": endpoints.https,
            "audiences": [endpoints.https],
            "tenant": endpoints.tenant_id,
            "identityProvider": "AAD",
        },
        "media": "",
        "suffixes": {},
    }
