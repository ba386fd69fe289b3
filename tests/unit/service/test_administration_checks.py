"""The administration port: whose names it answers for, and who may read its metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from penstock.model.errors import AuthFailed
from penstock.model.host_names import HostNames
from penstock.model.names import AUTHENTICATE, NamespaceName
from penstock.service.config.settings import NamespaceSettings, Settings
from penstock.service.management_context import AdministrationChecks, own_host_names


async def answered(scope: Scope, receive: Receive, send: Send) -> None:
    await PlainTextResponse("answered")(scope, receive, send)


def verify(token: str) -> tuple[str, tuple[str, ...]]:
    if token == "bad":
        raise AuthFailed("The token was not signed by this service.")
    return "someone", (token,)


def checks(
    *, metrics_need_token: bool = False, is_for_this_machine: bool = False
) -> AdministrationChecks:
    return AdministrationChecks(
        answered,
        hosts=HostNames(["box"]),
        namespace_hosts=lambda: ["contoso.example"],
        verify=verify,
        metrics_need_token=metrics_need_token,
        is_for_this_machine=is_for_this_machine,
    )


async def ask(
    app: AdministrationChecks,
    path: str,
    *,
    authenticate: Callable[[], None] = lambda: None,
    peer: str = "10.0.0.7",
    **headers: str,
) -> tuple[int, str]:
    said: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        said.append(message)

    headers.setdefault("host", "localhost:5300")
    scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": (peer, 40_000),
        "server": ("10.0.0.7", 5300),
        AUTHENTICATE: authenticate,
    }
    await app(scope, receive, send)
    return said[0]["status"], said[1]["body"].decode()


@pytest.mark.parametrize("path", ["/metrics", "/", "/subscriptions", "/openapi.json", "/health/"])
async def test_foreign_host_is_refused(path: str) -> None:
    status, text = await ask(checks(), path, host="evil.example:5300")
    assert status == 421
    assert "'evil.example:5300'" in text
    assert "--public-host" in text
    assert (await ask(checks(), path, host=""))[0] == 421


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_health_and_ready_are_for_every_host(path: str) -> None:
    app = checks(metrics_need_token=True)
    assert await ask(app, path, host="emulator") == (200, "answered")


@pytest.mark.parametrize(
    "host", ["localhost:5300", "127.0.0.1:5300", "box:5300", "10.0.0.7:5300", "contoso.example"]
)
async def test_own_hosts_are_answered(host: str) -> None:
    assert await ask(checks(), "/metrics", host=host) == (200, "answered")


@pytest.mark.parametrize(
    ("authorization", "status"),
    [
        ("", 401),
        ("Bearer bad", 401),
        ("Basic Reader", 401),
        ("Bearer nothing", 403),
        ("Bearer Reader", 200),
        ("bearer Owner", 200),
    ],
)
async def test_metrics_beyond_loopback_need_a_reader(authorization: str, status: int) -> None:
    app = checks(metrics_need_token=True)
    assert (await ask(app, "/metrics", authorization=authorization))[0] == status
    assert (await ask(app, "/metrics/", authorization=authorization))[0] == status
    assert await ask(checks(), "/metrics", authorization=authorization) == (200, "answered")


async def test_only_a_verified_token_authenticates_a_scraper() -> None:
    authenticated: list[bool] = []

    async def scrape(app: AdministrationChecks, authorization: str) -> None:
        await ask(
            app,
            "/metrics",
            authenticate=lambda: authenticated.append(True),
            authorization=authorization,
        )

    await scrape(checks(metrics_need_token=True), "Bearer bad")
    await scrape(checks(metrics_need_token=True), "")
    await scrape(checks(), "")
    assert authenticated == []
    await scrape(checks(metrics_need_token=True), "Bearer Reader")
    assert authenticated == [True]


def test_own_names_are_the_machines_the_bound_one_and_the_configured_ones() -> None:
    space = NamespaceSettings(name=NamespaceName("contoso"), hosts=("contoso.example",))
    names = own_host_names(Settings(host="192.0.2.5", namespaces=(space,)))
    assert {"192.0.2.5", "contoso.example"} <= set(names)
    assert "0.0.0.0" not in own_host_names(Settings(host="0.0.0.0"))


@pytest.mark.parametrize("path", ["/metrics", "/", "/subscriptions", "/health/"])
async def test_port_without_tls_is_for_this_machine(path: str) -> None:
    app = checks(is_for_this_machine=True)
    status, text = await ask(app, path, peer="10.0.0.8", host="box")
    assert (status, "/health and /ready" in text) == (403, True)
    for own in ("127.0.0.1", "::1", "10.0.0.7"):  # the last one: this machine, by its own address
        assert await ask(app, path, peer=own, host="box") == (200, "answered")
    assert (await ask(checks(), path, peer="10.0.0.8", host="box"))[0] == 200


@pytest.mark.parametrize("path", ["/health", "/ready"])
async def test_port_without_tls_reports_its_health_to_every_machine(path: str) -> None:
    app = checks(is_for_this_machine=True, metrics_need_token=True)
    assert await ask(app, path, peer="10.0.0.8", host="emulator") == (200, "answered")
