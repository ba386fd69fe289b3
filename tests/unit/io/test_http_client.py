"""The HTTP client against a real server: reused connections, bounds, errors."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from penstock.io.http_client import HttpClient
from penstock.model.errors import ArgumentError, ConfigurationError


class _Echo(BaseHTTPRequestHandler):
    """Answers with method, path and body; `/redirect` redirects, `/large` is large."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = f"{self.command} {self.path} {self.headers.get('X-Test')} ".encode() + content
        if self.path == "/large":
            body = bytes(1001)
        self.send_response(307 if self.path == "/redirect" else 200)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_requests_reuse_one_connection(url: str) -> None:
    with HttpClient(url, timeout_s=30) as client:
        response = client.request("POST", "/a?b=c", body=b"body", headers={"X-Test": "1"})
        assert (response.status, response.body) == (200, b"POST /a?b=c 1 body")
        (connection,) = client._idle
        assert client.request("GET", "/").body == b"GET / None "
        assert client._idle == [connection]
        assert connection.sock is not None
        connection.sock.shutdown(socket.SHUT_RDWR)  # as if the server had closed it
        assert client.request("GET", "/").status == 200
    assert client._idle == []


def test_redirects_are_not_followed(url: str) -> None:
    with HttpClient(url, timeout_s=30) as client:
        response = client.request("GET", "/redirect")
    assert (response.status, response.headers["location"]) == (307, "/elsewhere")


def test_response_is_bounded(url: str) -> None:
    with HttpClient(url, timeout_s=30, response_bytes_max=1000) as client:
        with pytest.raises(OSError, match="more than 1000 bytes"):
            client.request("GET", "/large")
        assert client._idle == []


def test_server_that_does_not_speak_http_is_an_oserror() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.recv(1000)
                accepted.sendall(b"AMQP\x00\x01\x00\x00\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            HttpClient(f"http://127.0.0.1:{server.getsockname()[1]}", timeout_s=30) as client,
            pytest.raises(OSError, match="does not speak HTTP"),
        ):
            client.request("GET", "/")
        thread.join()


def test_invalid_url_and_ca_file_are_refused() -> None:
    for text in ("localhost:5300", "ftp://host", "http://"):
        with pytest.raises(ConfigurationError, match="http://"):
            HttpClient(text, timeout_s=1)
    with pytest.raises(ArgumentError, match="nowhere"):
        HttpClient("https://host", ca_file="/nowhere/ca.pem", timeout_s=1)
