"""What stands before the management API: token, rate, version, body; all before it is loaded.

One raw ASGI callable on the administration port and on the HTTPS port. FastAPI behind it costs
half a second and 15 MB: it is imported, in a thread, with the first request that has a valid
token, so that a broker nobody manages does not pay for it.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import re
from collections.abc import Callable
from concurrent.futures import Executor
from importlib import import_module
from typing import Any, TypeVar
from urllib.parse import unquote

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock.io import asgi
from penstock.management import faults, paths
from penstock.management.operations import ManagementContext
from penstock.management.permissions import (
    Actor,
    AdminRole,
    Forbidden,
    ProcessRole,
    Verified,
    actor_of,
    role_from_claims,
)
from penstock.management.shapes import ServiceEndpoints, error_shape
from penstock.management.unsupported import check_supported
from penstock.model import limits, names, slow_operations
from penstock.model.clock import Clock
from penstock.model.errors import ArgumentError, AuthFailed, PenstockError, ServerBusy

log = logging.getLogger("penstock.management")

OPENAPI = "/openapi.json"
ASKED = "penstock.asked"  # the key in ASGI's scope: administration, endpoints, actor

# From the first dated version of Microsoft.EventHub on (protocol.md 7.3).
_API_VERSION_FIRST = "2014-09-01"
API_VERSION = (
    r"^(2014-(09|1[0-2])|20(1[5-9]|[2-9][0-9])-(0[1-9]|1[0-2]))-(0[1-9]|[12][0-9]|3[01])"
    r"(-preview|-privatepreview)?$"
)
# Ours, and Azure's oldest clients ask without one.
_WITHOUT_VERSION = ("/providers/Penstock", "/metadata", OPENAPI)
_IDENTITY = "/metadata/identity/oauth2/token"

_T = TypeVar("_T")
_Answer = tuple[int, object, list[tuple[str, str]]]


class ManagementApp:
    """`verify` turns a bearer token into who it is, or raises AuthFailed; `endpoints` tells where
    the service is reached, once it is."""

    def __init__(
        self,
        administration: ManagementContext,
        *,
        verify: Callable[[str], Verified],
        endpoints: Callable[[], ServiceEndpoints],
        new_id: Callable[[], str],
        log_refusal: Callable[[Scope, PenstockError, str], None] = lambda *_: None,
        loader: Executor | None = None,
    ) -> None:
        """`loader` runs what imports FastAPI; None is the event loop's own executor."""
        self._log_refusal = log_refusal
        self._loader = loader
        self._administration = administration
        self._verify = verify
        self._endpoints = endpoints
        self._new_id = new_id
        self._rate = _RequestRate(administration.clock)
        self._loading = asyncio.Lock()
        self._app: ASGIApp | None = None
        self._openapi: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError("The management API has no WebSockets.")
        request_id = self._new_id()
        headers = [
            ("x-ms-request-id", request_id),
            ("x-ms-correlation-request-id", request_id),
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
        ]
        sending = _ResponseSender(send, headers)
        try:
            given = await self._serve(scope, receive, sending)
        except asgi.ClientDisconnected:
            return
        except PenstockError as error:
            if isinstance(error, AuthFailed):
                self._log_refusal(scope, error, request_id)
            given = self._refusal(error, request_id)
        except Exception:
            log.exception("management request failed: request_id=%s", request_id)
            given = 500, error_shape("InternalServerError", faults.INTERNAL), []
        if given is not None and not sending.has_begun:
            status, shape, more = given
            await asgi.send_json(send, status, shape, headers=[*headers, *more])

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> _Answer | None:
        """The order matters: nothing is read, parsed or loaded for somebody without a token."""
        path = paths.canonical_arm_path(scope.get("raw_path") or scope["path"].encode())
        if path == "/metadata/endpoints":
            return 200, cloud_metadata(self._endpoints()), []
        if path == _IDENTITY:
            try:
                return self._identity(scope)
            except PenstockError as error:
                return _identity_refusal(error)
        actor = self._actor(asgi.get_header(scope, b"authorization"))
        asgi.authenticate(scope)
        actor = resolve_actor(actor, asgi.get_header(scope, b"x-penstock-on-behalf-of"))
        self._rate.take()
        if path == OPENAPI:
            document = await self._document()
            await asgi.send_response(send, 200, document, content_type="application/json")
            return None
        if not path.startswith(_WITHOUT_VERSION):
            check_api_version(asgi.parse_query(scope).get("api-version", ""))
        # Before the body: `az deployment` sends one that is not JSON.
        check_supported(scope["method"], path)
        body = await asgi.read_request_body(
            scope,
            receive,
            bytes_max=limits.MANAGEMENT_BODY_BYTES_MAX,
            deadline_s=limits.MANAGEMENT_BODY_DEADLINE_S,
        )
        app = await self._load_app()
        asked = (self._administration, self._endpoints(), actor)
        inner = {**scope, "path": path, "raw_path": path.encode(), ASKED: asked}
        clock = self._administration.clock
        began_ms = clock.monotonic_ms()
        try:
            await app(inner, asgi.replay_body(check_json(body), receive), send)
        finally:
            took_ms = clock.monotonic_ms() - began_ms
            slow_operations.warn_if_slow("management", took_ms, door="http", method=scope["method"])
        return None

    def _actor(self, authorization: str) -> Actor:
        scheme, _, token = authorization.partition(" ")
        if not authorization or scheme.lower() != "bearer":
            raise AuthFailed(
                "The request needs an admin token: 'Authorization: Bearer TOKEN' "
                "(admin_token in runtime.json of the service's data directory)."
            )
        subject, roles = self._verify(token.strip())
        return actor_of(subject, roles)

    def _identity(self, scope: Scope) -> _Answer:
        """The form in which App Service hands tokens to `az login --identity`: whoever shows the
        admin token as its secret gets it back as an access token (docs/management.md)."""
        token = asgi.get_header(scope, b"x-identity-header")
        if not token:
            raise AuthFailed("The request has no X-IDENTITY-HEADER.")
        self._verify(token)
        asgi.authenticate(scope)
        resource = asgi.parse_query(scope).get("resource", "")
        now_s = self._administration.clock.now_ms() // 1000
        shape = {
            "access_token": token,
            "expires_on": str(min(now_s + 86_400, _expiry_s(token))),
            "resource": names.quote_text(resource, most=200),
            "token_type": "Bearer",
            "client_id": "penstock",
        }
        return 200, shape, []

    def _refusal(self, error: PenstockError, request_id: str) -> _Answer:
        status, code = faults.status_and_code(error)
        more: list[tuple[str, str]] = []
        text = str(error)
        if status == 401:
            more = [("www-authenticate", f'Bearer authorization_uri="{self._login()}"')]
        elif status == 429:
            more = [("retry-after", "1")]
        elif status == 500:
            log.error("management request failed: request_id=%s text=%s", request_id, error)
            text = faults.INTERNAL
        return status, error_shape(code, text), more

    def _login(self) -> str:
        endpoints = self._endpoints()
        return f"{endpoints.https}/{endpoints.tenant_id}"

    async def _load_app(self) -> ASGIApp:
        if self._app is None:
            async with self._loading:
                if self._app is None:
                    self._app = await self._run_aside(self._load)
        return self._app

    async def _document(self) -> bytes:
        """Encoded once: it has 176 KB."""
        if self._openapi is None:
            app: Any = await self._load_app()
            self._openapi = await self._run_aside(lambda: msgspec.json.encode(app.openapi()))
        return self._openapi

    async def _run_aside(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._loader, work)

    def _load(self) -> ASGIApp:
        """In a thread: importing and building takes a second, and the loop has events to move."""
        module = import_module("penstock.management.api")
        app: ASGIApp = module.application()
        return app


class _RequestRate:
    """A bucket of requests; whoever has no token is not counted, and so takes none."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._tokens = float(limits.MANAGEMENT_REQUESTS_BURST)
        self._filled_ms = clock.monotonic_ms()

    def take(self) -> None:
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
    """The expiry of a verified token, which is a JWT wherever tokens expire."""
    parts = token.split(".")
    if len(parts) != 3:
        return 2**53
    claims = msgspec.json.decode(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return int(claims["exp"])


def _identity_refusal(error: PenstockError) -> _Answer:
    """As App Service answers: MSAL reads `statusCode` and `message` at the top, and `az` shows them
    to the user."""
    status, code = faults.status_and_code(error)
    text = (
        f"{error} Set IDENTITY_HEADER to the admin token of this service: admin_token of "
        "runtime.json in its data directory, or what 'penstock token admin' prints."
    )
    return status, {"statusCode": status, "message": text, **error_shape(code, text)}, []


def resolve_actor(actor: Actor, given: str) -> Actor:
    """`role name`: the portal, or an administrator, acts for somebody with their role. The name is
    for the audit log, and is believed of nobody else."""
    if not given:
        return actor
    role, _, name = given.partition(" ")
    name = unquote(name).strip()
    is_portal = actor.process is ProcessRole.PORTAL
    if not (is_portal or actor.role is AdminRole.ADMIN) or not name:
        raise Forbidden("Only an administrator acts on behalf of somebody, whom it names.")
    return Actor(name, role_from_claims([role]), is_through_portal=is_portal)


def check_api_version(given: str) -> None:
    """Every dated version, previews too, is answered alike (protocol.md 7.3)."""
    if not given:
        raise faults.ApiVersionError(
            "MissingApiVersionParameter",
            "The api-version query parameter (?api-version=) is required for all requests.",
        )
    if re.fullmatch(API_VERSION, given) is None:
        raise faults.ApiVersionError(
            "InvalidApiVersionParameter",
            f"The api-version '{names.quote_text(given)}' is invalid: a date from "
            f"{_API_VERSION_FIRST} on is allowed, such as 2024-01-01, with or without -preview.",
        )


def check_json(body: bytes) -> bytes:
    """The body written anew: one meaning, bounded depth, valid text. Empty stays empty."""
    if not body.strip():
        return b""
    try:
        value = msgspec.json.decode(body)
        again = msgspec.json.encode(value)
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise ArgumentError(
            f"The body is not JSON: {names.quote_text(reason, most=200)}."
        ) from None
    _check_depth(value)
    return again


def _check_depth(value: object) -> None:
    level = [value]
    for _ in range(limits.MANAGEMENT_BODY_DEPTH_MAX):
        below: list[object] = []
        for each in level:
            if isinstance(each, dict):
                below += each.values()
            elif isinstance(each, list):
                below += each
        if not below:
            return
        level = below
    raise ArgumentError(
        f"The body is nested more than {limits.MANAGEMENT_BODY_DEPTH_MAX} levels deep."
    )


def cloud_metadata(endpoints: ServiceEndpoints) -> dict[str, object]:
    """What `az cloud register` asks for; both forms that clients know, in one object."""
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


class _ResponseSender:
    """Every answer of the application behind carries the headers too."""

    def __init__(self, send: Send, headers: list[tuple[str, str]]) -> None:
        self._send = send
        self._headers = [(name.encode(), value.encode()) for name, value in headers]
        self.has_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            message["headers"] = [*message.get("headers", ()), *self._headers]
        await self._send(message)
