"""Real storage on this machine: Azurite with TLS and Entra ID's tokens, and an S3 server."""

from __future__ import annotations

import base64
import http.server
import json
import queue
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import Azurite, NodeTools
from tests.support import toolchains
from tests.support.certificates import certificates_in
from tests.support.toolchains import NODE

START_S = 60.0
FLAGS = ("--oauth", "basic", "--skipApiVersionCheck", "--silent")
ACCESS_KEY, SECRET_KEY = "penstock-tests", "c2VjcmV0LW9mLXMz"


class TlsAzurite:
    """Blob and Data Lake Gen2's files over HTTPS; tokens of Entra ID are taken as they come.
    `stop` and `start` again: what was stored is kept, and so is the port."""

    ACCOUNT, KEY = Azurite.ACCOUNT, Azurite.KEY

    def __init__(self, node: NodeTools, folder: Path) -> None:
        self._node = node
        self._folder = folder
        self._made = certificates_in(folder / "tls")
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self.host = f"localhost:{self._port}/{self.ACCOUNT}"
        self.ca_file = str(self._made.ca_file)
        self.connection_string = (
            f"DefaultEndpointsProtocol=https;AccountName={self.ACCOUNT};AccountKey={self.KEY};"
            f"BlobEndpoint=https://{self.host};"
        )
        self.start()

    def start(self) -> None:
        script = NODE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        made = self._made
        words = ["--blobHost", "127.0.0.1", "--blobPort", str(self._port), "--location", "."]
        tls = ["--cert", str(made.certificate_file), "--key", str(made.key_file)]
        self._process = subprocess.Popen(
            [self._node.node, str(script), *words, *tls, *FLAGS],
            cwd=self._folder,
            env=self._node.environ,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _wait_for_port(self._port, self._process, "Azurite")

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(30)


class S3Server:
    """`url` is its endpoint."""

    def __init__(self, process: subprocess.Popen[bytes], url: str) -> None:
        self._process = process
        self.url = url

    def options(self, **changes: str) -> dict[str, str]:
        """Of a destination."""
        usual = {
            "endpoint_url": self.url,
            "access_key": ACCESS_KEY,
            "secret_key": SECRET_KEY,
            "region": "us-east-1",
        }
        return usual | changes


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """Skips with one line where Go is absent: it builds the server."""
    toolchains.require("s3")
    process = subprocess.Popen(
        [str(toolchains.S3_PROGRAM), ACCESS_KEY], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    with process:
        try:
            yield S3Server(process, _first_line(process))
        finally:
            process.terminate()
            process.wait(30)


@contextmanager
def identity() -> Iterator[dict[str, str]]:
    """A managed identity as a machine in Azure has it: environment that leads Azure's default
    credential here. Azurite looks at a token's claims, not at its signature."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Tokens) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield {
                "IDENTITY_ENDPOINT": f"http://127.0.0.1:{server.server_port}/token",
                "IDENTITY_HEADER": "from-this-machine",
            }
        finally:
            server.shutdown()
            thread.join(10)


class _Tokens(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.headers.get("X-IDENTITY-HEADER") != "from-this-machine":
            self.send_error(403)
            return
        now_s = int(time.time())
        claims = {
            "aud": "https://storage.azure.com",
            "iss": "https://sts.windows.net/00000000-0000-0000-0000-000000000000/",
            "nbf": now_s - 60,
            "iat": now_s - 60,
            "exp": now_s + 3600,
            "oid": "00000000-0000-0000-0000-000000000001",
        }
        token = ".".join([_encoded({"alg": "none"}), _encoded(claims), "signature"])
        told = {
            "access_token": token,
            "expires_on": str(now_s + 3600),
            "resource": claims["aud"],
            "token_type": "Bearer",
        }
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_: Any) -> None:
        pass


def _encoded(part: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def _first_line(process: subprocess.Popen[bytes]) -> str:
    said: queue.Queue[bytes] = queue.Queue()
    stdout = process.stdout
    assert stdout is not None
    threading.Thread(target=lambda: said.put(stdout.readline()), daemon=True).start()
    line = said.get(timeout=START_S).decode().strip()
    assert line, "the S3 server ended at its start"
    return line


def _wait_for_port(port: int, process: subprocess.Popen[bytes], name: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                pytest.fail(f"{name} did not start within {START_S:.0f} s")
            time.sleep(0.04)
