"""The portal's application without a service behind it: asked by ASGI, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec
import pytest

from penstock.model.clock import ManualClock
from penstock.portal.application import PortalApplication
from penstock.portal.settings import PortalSettings, hash_token
from penstock.portal.users import hash_password

TOKEN = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiJhZG1pbiIsInJvbGVzIjpbIk93bmVyIl19.c2ln"
PASSWORD = "correct horse"


class Answer(msgspec.Struct):
    status: int
    headers: list[tuple[str, str]]
    text: str

    def header(self, name: str) -> str:
        return ", ".join(value for key, value in self.headers if key == name)


class Browser:
    """Keeps cookies, says where it comes from, and does not follow redirects."""

    host = "localhost:5380"
    address = "127.0.0.1"
    token = TOKEN
    password = PASSWORD

    def __init__(self, application: PortalApplication) -> None:
        self.application = application
        self.cookies: dict[str, str] = {}

    async def get(self, path: str, **headers: str) -> Answer:
        return await self._ask("GET", path, b"", headers)

    async def post(self, path: str, form: dict[str, str], **headers: str) -> Answer:
        headers.setdefault("origin", f"http://{self.host}")
        headers["content-type"] = "application/x-www-form-urlencoded"
        return await self._ask("POST", path, urlencode(form).encode(), headers)

    async def sign_in(self, token: str = TOKEN) -> Answer:
        return await self.post("/signin", {"token": token})

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> Answer:
        bare, _, query = path.partition("?")
        given = {"host": self.host, **{k.replace("_", "-"): v for k, v in headers.items()}}
        if self.cookies:
            given["cookie"] = "; ".join(f"{k}={v}" for k, v in self.cookies.items())
        scope = {
            "type": "http",
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": bare,
            "raw_path": bare.encode(),
            "query_string": query.encode(),
            "headers": [(k.encode(), v.encode()) for k, v in given.items() if v],
            "client": (self.address, 50000),
            "server": ("localhost", 5380),
        }
        said: list[dict[str, Any]] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            said.append(dict(message))

        await self.application(scope, receive, send)
        answer = Answer(
            said[0]["status"],
            [(k.decode(), v.decode()) for k, v in said[0]["headers"]],
            b"".join(each.get("body", b"") for each in said[1:]).decode(),
        )
        for name, value in answer.headers:
            if name == "set-cookie":
                key, _, rest = value.partition("=")
                self.cookies[key] = rest.partition(";")[0]
        return answer


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def users_file(tmp_path: Path) -> Path:
    file = tmp_path / "users.toml"
    file.write_text(
        f'[users]\nalice = {{ role = "viewer", password = "{hash_password(PASSWORD)}" }}\n'
    )
    return file


@pytest.fixture
def settings(users_file: Path, tmp_path: Path) -> PortalSettings:
    """No service answers: the port is closed."""
    token_file = tmp_path / "portal.token"
    token_file.write_text("the-portals-token\n")
    return PortalSettings(
        admin_url="http://127.0.0.1:9",
        token_file=str(token_file),
        admin_token_hash=hash_token(TOKEN),
        secret="a secret",
        users_file=str(users_file),
        revocations_file=str(tmp_path / "portal.revoked"),
    )


@pytest.fixture
def browser(clock: ManualClock, settings: PortalSettings) -> Iterator[Browser]:
    application = PortalApplication(settings, clock)
    yield Browser(application)
    application.close()
