"""The management API as an application: token, rate, api-version, bodies, paths, errors."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING

import pytest

from penstock.management.app import ROUTES, ManagementMount, is_management_path
from penstock.management.router import split_path
from penstock.model import limits
from penstock.model.errors import ArgumentError, DataDirectoryError

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send
    from tests.unit.management.conftest import Caller

ROOT = "/subscriptions/s/resourceGroups/g/providers/Microsoft.EventHub/namespaces"
HUB = f"{ROOT}/contoso/eventhubs/orders"


@pytest.fixture(autouse=True)
def _placed(call: Caller) -> None:
    """The namespace lies where these paths say."""
    namespace = call.plane.catalog.namespaces()[0]
    metadata = {"subscription": "s", "resourceGroup": "g"}
    from msgspec.structs import replace

    call.plane.catalog.put_namespace(replace(namespace, metadata=metadata))


@pytest.mark.parametrize("token", [None, "", "wrong", "admin-token x"])
async def test_request_without_a_good_token_is_refused(call: Caller, token: str | None) -> None:
    answer = await call("GET", ROOT, token=token)
    assert (answer.status, answer.code) == (401, "InvalidAuthenticationToken")
    assert answer.headers["www-authenticate"].startswith("Bearer ")


async def test_refused_token_is_logged_with_the_requests_id(call: Caller) -> None:
    logged: list[tuple[str, str]] = []
    call.app._log_refusal = lambda _scope, error, request_id: logged.append(
        (error.condition, request_id)
    )
    answer = await call("GET", ROOT, token="wrong")
    assert logged == [("com.microsoft:auth-failed", answer.headers["x-ms-request-id"])]
    assert (await call("GET", HUB)).status == 200
    assert len(logged) == 1


async def test_other_schemes_are_no_token(call: Caller) -> None:
    headers = {"authorization": "Basic YTpi"}
    assert (await call("GET", ROOT, token=None, headers=headers)).status == 401


@pytest.mark.parametrize(
    ("token", "method", "path", "status"),
    [
        ("nobody-token", "GET", HUB, 403),
        ("viewer-token", "GET", HUB, 200),
        ("viewer-token", "DELETE", HUB, 403),
        ("viewer-token", "POST", f"{ROOT}/contoso/authorizationRules/sender/listKeys", 403),
        ("operator-token", "POST", f"{ROOT}/contoso/authorizationRules/sender/listKeys", 403),
        ("operator-token", "DELETE", HUB, 200),
        ("operator-token", "DELETE", f"{ROOT}/contoso", 403),
        ("viewer-token", "GET", "/providers/Penstock/audit", 403),
    ],
)
async def test_roles_of_the_token_decide(
    call: Caller, token: str, method: str, path: str, status: int
) -> None:
    answer = await call(method, path, token=token)
    assert answer.status == status
    if status == 403:
        assert answer.code == "AuthorizationFailed"


@pytest.mark.parametrize(
    "version", ["2014-09-01", "2015-08-01", "2017-04-01", "2024-01-01", "2026-07-01-preview"]
)
async def test_every_dated_version_is_answered_alike(call: Caller, version: str) -> None:
    expected = await call("GET", HUB)
    answer = await call("GET", HUB, query=f"api-version={version}")
    assert (answer.status, answer.json) == (200, expected.json)
    assert (await call("GET", HUB, query=f"API-Version={version}")).status in (200, 400)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("", "MissingApiVersionParameter"),
        ("api-version=", "MissingApiVersionParameter"),
        ("api-version=latest", "InvalidApiVersionParameter"),
        ("api-version=2013-01-01", "InvalidApiVersionParameter"),
        ("api-version=2024-13-01", "InvalidApiVersionParameter"),
        ("api-version=2024-01-01-final", "InvalidApiVersionParameter"),
    ],
)
async def test_version_that_never_was_is_refused(call: Caller, query: str, code: str) -> None:
    answer = await call("GET", HUB, query=query)
    assert (answer.status, answer.code) == (400, code)


async def test_endpoints_are_told_without_a_token(call: Caller) -> None:
    answer = await call("GET", "/metadata/endpoints", token=None, query="api-version=2015-01-01")
    assert answer.status == 200
    assert answer.json["authentication"]["audiences"] == ["https://localhost:8443"]


async def test_identity_gives_the_token_back_to_who_has_it(call: Caller) -> None:
    path = "/metadata/identity/oauth2/token"
    query = "api-version=2019-08-01&resource=https://management"
    (jwt,) = (token for token in call.tokens if "." in token)
    for token, expires_on in (("viewer-token", "1700086400"), (jwt, "1700003600")):
        given = await call(
            "GET", path, token=None, query=query, headers={"x-identity-header": token}
        )
        assert given.json["access_token"] == token
        assert given.json["expires_on"] == expires_on  # a day later, or the token's own


@pytest.mark.parametrize("header", [{"x-identity-header": "x"}, {"x-identity-header": ""}, {}])
async def test_refused_identity_is_in_the_shape_that_msal_reads(
    call: Caller, header: dict[str, str]
) -> None:
    path = "/metadata/identity/oauth2/token"
    answer = await call("GET", path, token=None, query="resource=r", headers=header)
    assert (answer.status, answer.json["statusCode"]) == (401, 401)
    assert "Set IDENTITY_HEADER to the admin token" in answer.json["message"]
    assert answer.json["error"]["message"] == answer.json["message"]


async def test_openapi_document_needs_a_token(call: Caller) -> None:
    """It is large (docs/explanation/security.md)."""
    answer = await call("GET", "/openapi.json", token=None, query="")
    assert answer.status == 401
    assert call.app._openapi is None


async def test_openapi_document_names_every_path(call: Caller) -> None:
    answer = await call("GET", "/openapi.json", query="")
    assert answer.status == 200
    assert answer.headers["content-type"] == "application/json"
    assert (await call("GET", "/openapi.json", query="")).body is not None
    document = answer.json
    assert document["info"]["title"] == "Penstock management API"
    hub = "/subscriptions/{subscription}/resourceGroups/{resource_group}/providers/"
    hub += "Microsoft.EventHub/namespaces/{namespace}/eventhubs/{hub}"
    assert {"get", "put", "delete"} <= document["paths"][hub].keys()
    for methods in document["paths"].values():
        for method in methods.values():
            assert {"400", "401", "403", "404", "429"} <= method["responses"].keys()
    ids = [route.name for route in ROUTES]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b'{"a": "\xff"}',
        b'{"properties": {"userMetadata": "\\ud800"}}',
        b"[" * 100_000,
        b"[" * 40 + b"]" * 40,
        b"[1]",
        b'"text"',
        b'{"properties": 5}',
        b'{"properties": {"partitionCount": "4"}}',
        b'{"properties": {"partitionCount": true}}',
        b'{"properties": {"partitionCount": -1}}',
        b'{"properties": {"partitionCount": 1e400}}',
        b'{"properties": {"captureDescription": []}}',
        b'{"properties": {"userMetadata": "' + b"x" * 1025 + b'"}}',
    ],
    ids=lambda body: body[:40],
)
async def test_bodies_that_mean_nothing_are_refused(call: Caller, body: bytes) -> None:
    before = call.plane.catalog.hubs("contoso")
    answer = await call("PUT", f"{ROOT}/contoso/eventhubs/new", raw=body)
    assert answer.status == 400
    assert answer.json["error"]["message"]
    assert call.plane.catalog.hubs("contoso") == before


async def test_body_has_a_largest_size(call: Caller) -> None:
    path = f"{ROOT}/contoso/eventhubs/new"
    large = json.dumps({"x": "y" * limits.MANAGEMENT_BODY_BYTES_MAX}).encode()
    answer = await call("PUT", path, raw=large)
    assert (answer.status, answer.code) == (413, "RequestEntityTooLarge")
    declared = {"content-length": str(2**40)}
    assert (await call("PUT", path, raw=b"{}", headers=declared)).status == 413


async def test_rate_is_limited_and_recovers(call: Caller) -> None:
    for _ in range(limits.MANAGEMENT_REQUESTS_BURST):
        call.app._rate.take()
    answer = await call("GET", HUB)
    assert (answer.status, answer.code) == (429, "TooManyRequests")
    assert answer.headers["retry-after"] == "1"
    # Who has no token takes none of it, and is told so all the same.
    assert (await call("GET", HUB, token="wrong")).status == 401
    call.plane.clock.advance(1000)
    assert (await call("GET", HUB)).status == 200


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/subscriptions/s/nothing", 404, "InvalidResourceType"),
        ("POST", HUB, 405, "MethodNotAllowed"),
        ("GET", f"{ROOT}/missing", 404, "ResourceNotFound"),
        ("GET", f"{ROOT}/contoso/eventhubs/missing", 404, "ResourceNotFound"),
        ("GET", f"{HUB}/consumergroups/missing", 404, "ResourceNotFound"),
        ("GET", f"{HUB}/authorizationRules/missing", 404, "ResourceNotFound"),
        ("GET", ROOT.replace("/s/", "/other/") + "/contoso", 404, "ResourceNotFound"),
        ("GET", "/subscriptions/%ff/resourceGroups/g", 400, "BadRequest"),
        ("GET", "/subscriptions/" + "x" * 9000, 400, "BadRequest"),
        ("DELETE", f"{HUB}/consumergroups/$Default", 400, "OperationNotAllowed"),
        ("PUT", f"{ROOT}/a", 400, "BadRequest"),
    ],
)
async def test_errors_have_arms_shape(
    call: Caller, method: str, path: str, status: int, code: str
) -> None:
    answer = await call(method, path, {} if method == "PUT" else None)
    assert (answer.status, answer.code) == (status, code)
    assert answer.headers["x-ms-request-id"].startswith("request-")


@pytest.mark.parametrize("kind", ["namespaces", "hubs", "groups", "rules"])
async def test_deleting_what_is_not_there_is_204(call: Caller, kind: str) -> None:
    path = {
        "namespaces": f"{ROOT}/missing",
        "hubs": f"{ROOT}/contoso/eventhubs/missing",
        "groups": f"{HUB}/consumergroups/missing",
        "rules": f"{HUB}/authorizationRules/missing",
    }[kind]
    answer = await call("DELETE", path)
    assert (answer.status, answer.body) == (204, b"")


async def test_empty_segments_of_paths_do_not_count(call: Caller) -> None:
    """`az resource show --resource-type Microsoft.EventHub/namespaces` writes the first one."""
    for path in (f"{ROOT}/contoso".replace("EventHub/", "EventHub//"), f"/{HUB}//"):
        assert (await call("GET", path)).status == 200


async def test_words_of_paths_are_read_in_any_case(call: Caller) -> None:
    lower = HUB.lower()
    assert (await call("GET", lower)).status == 200
    assert (
        await call("GET", lower.replace("resourcegroups", "RESOURCEGROUPS") + "/")
    ).status == 200
    keys = f"{HUB.upper()}/AUTHORIZATIONRULES/listener/LISTKEYS".replace("/S/", "/s/")
    assert (await call("POST", keys)).status == 200


@pytest.mark.parametrize(
    ("raw", "segments"),
    [
        (b"/SUBSCRIPTIONS/Eventhubs", ["SUBSCRIPTIONS", "Eventhubs"]),
        (b"/subscriptions/s%2Fx/", ["subscriptions", "s/x"]),
        (b"//metadata//endpoints//", ["metadata", "endpoints"]),
        (b"/a/../b", ["a", "..", "b"]),
        (b"/", []),
    ],
)
def test_path_is_split_before_it_is_unescaped(raw: bytes, segments: list[str]) -> None:
    assert split_path(raw) == segments


def test_path_that_is_no_text_is_refused() -> None:
    with pytest.raises(ArgumentError):
        split_path(b"/subscriptions/%ff")


async def test_own_fault_is_logged_and_not_told(
    call: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise DataDirectoryError("The catalog /secret/place cannot be used: disk I/O error")

    monkeypatch.setattr(call.plane.catalog, "put_group", broken)
    with caplog.at_level(logging.ERROR):
        answer = await call("PUT", f"{HUB}/consumergroups/new", {})
    assert (answer.status, answer.code) == (500, "InternalServerError")
    assert b"secret" not in answer.body
    assert "disk I/O error" in caplog.text


async def test_bug_is_500_and_the_door_lives_on(
    call: Caller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    with monkeypatch.context() as patch:
        patch.setattr(call.plane.catalog, "groups", broken)
        answer = await call("GET", f"{HUB}/consumergroups")
    assert (answer.status, answer.code) == (500, "InternalServerError")
    assert "ZeroDivisionError" in caplog.text
    assert (await call("GET", f"{HUB}/consumergroups")).status == 200


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        ("/subscriptions", True),
        ("/Subscriptions/x", True),
        ("/providers/Microsoft.EventHub/operations", True),
        ("/providers/penstock/audit", True),
        ("/metadata/endpoints", True),
        ("/openapi.json", True),
        ("/subscriptionsx", False),
        ("/metadata/messages", False),
        ("/providers", False),
        ("/", False),
        ("/health", False),
    ],
)
def test_management_has_its_own_paths(path: str, is_ours: bool) -> None:
    assert is_management_path(path) is is_ours


@pytest.mark.parametrize(
    ("method", "path", "chosen"),
    [
        ("POST", "/subscriptions/messages", "others"),  # a hub of that name
        ("POST", "/hub/messages", "others"),
        ("GET", "/hub/messages", "others"),
        ("GET", "/", "others"),
        ("GET", "/hub/revokedpublishers", "others"),
        ("DELETE", "/hub/RevokedPublishers/x", "others"),
        ("GET", "/hub", "others"),
        ("PATCH", "/hub", "others"),
        ("GET", "/subscriptions/s", "management"),
        ("GET", "//subscriptions//s/", "management"),
        ("GET", "//metadata/endpoints", "management"),
        ("POST", "//hub/messages", "others"),
        ("POST", "/subscriptions//messages", "others"),
        ("POST", "/subscriptions/s/x/listKeys", "management"),
    ],
)
async def test_requests_find_their_door(method: str, path: str, chosen: str) -> None:
    seen: list[str] = []

    def door(name: str) -> object:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            seen.append(name)

        return app

    mounted = ManagementMount(door("management"), door("others"))  # type: ignore[arg-type]  # they are ASGI applications
    await mounted({"type": "http", "method": method, "path": path}, None, None)  # type: ignore[arg-type]  # not looked at
    assert seen == [chosen]
