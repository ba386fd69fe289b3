"""Pages of the administration port: the token is sent for /metrics, and for nothing else."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from penstock.cli.server.status import fetch
from penstock.cli.service_options import AdminEndpoint


class _Echo(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = self.headers.get("Authorization", "none").encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "token", "sent"),
    [
        ("/metrics", "secret", b"Bearer secret"),
        ("/metrics", None, b"none"),
        ("/ready", "secret", b"none"),
        ("/health", "secret", b"none"),
    ],
)
def test_token_is_sent_for_metrics_only(
    url: str, path: str, token: str | None, sent: bytes
) -> None:
    admin = AdminEndpoint(url, token, None, None)
    response = fetch(admin, path, timeout_s=30)
    assert (response.status, response.body) == (200, sent)
