"""A blocking HTTP client with the standard library alone: reused connections, bounded responses."""

from __future__ import annotations

import http.client
import os
import ssl
import threading
from collections.abc import Mapping
from typing import NamedTuple, Self
from urllib.parse import urlsplit

from penstock.io.tls import verified_tls_context
from penstock.model import limits
from penstock.model.errors import ConfigurationError

_RESPONSE_BYTES_MAX = 64 * limits.MB


class HttpResponse(NamedTuple):
    """A complete response; redirects are not followed."""

    status: int
    body: bytes
    headers: http.client.HTTPMessage  # by name, in any case; None for a missing one


class HttpClient:
    """Requests to one server. Any number of threads may share it; a forked process opens its own
    connections."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: str | None = None,
        timeout_s: float,
        response_bytes_max: int = _RESPONSE_BYTES_MAX,
        idle_connections_max: int = 1,
    ) -> None:
        """`timeout_s` bounds each read and write of a socket. Raises ConfigurationError for a URL
        that is not http or https, ArgumentError for a `ca_file` that cannot be read."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigurationError(
                f"'{url}' is not the URL of a service: it must begin with http:// or https://."
            )
        self.url = url
        self._host, self._port = parts.hostname, parts.port
        self._tls = verified_tls_context(ca_file) if parts.scheme == "https" else None
        self._timeout_s = timeout_s
        self._response_bytes_max = response_bytes_max
        self._idle_connections_max = idle_connections_max
        self._lock = threading.Lock()  # guards the two below
        self._idle: list[http.client.HTTPConnection] = []
        self._process = os.getpid()  # the process that opened the idle connections

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections. The client can still be used."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def request(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> HttpResponse:
        """Send one request and read the response. `path` is escaped already. Raises OSError;
        TimeoutError and ssl.SSLError are such."""
        connection, is_reused = self._take_connection()
        while True:
            try:
                connection.request(method, path, body, dict(headers or {}))
                response = connection.getresponse()
                content = response.read(self._response_bytes_max + 1)
                break
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_reused and isinstance(error, ConnectionError | ssl.SSLEOFError):
                    # The server closed an idle connection: the request did not reach it.
                    connection, is_reused = self._connect(), False
                    continue
                if isinstance(error, OSError):
                    raise
                raise OSError(f"{self.url} does not speak HTTP: {error}") from error
        if len(content) > self._response_bytes_max:
            connection.close()
            raise OSError(f"the response has more than {self._response_bytes_max} bytes")
        self._return_connection(connection, will_close=response.will_close)
        return HttpResponse(response.status, content, response.headers)

    def _take_connection(self) -> tuple[http.client.HTTPConnection, bool]:
        """A connection, and whether it was used before."""
        with self._lock:
            if self._process != os.getpid():
                self._process, self._idle = os.getpid(), []  # the parent process uses its sockets
            if self._idle:
                return self._idle.pop(), True
        return self._connect(), False

    def _connect(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=self._timeout_s, context=self._tls
        )

    def _return_connection(
        self, connection: http.client.HTTPConnection, *, will_close: bool
    ) -> None:
        with self._lock:
            if not will_close and len(self._idle) < self._idle_connections_max:
                self._idle.append(connection)
                return
        connection.close()
