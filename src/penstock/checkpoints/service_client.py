"""Leases and checkpoints that the service stores: where it is, and requests to it over HTTPS."""

from __future__ import annotations

import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from html import unescape
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec

from penstock.auth.sas import sign
from penstock.checkpoints.records import GroupNames, host_key
from penstock.io.http_client import HttpClient
from penstock.io.runtime_file import read_runtime
from penstock.model import errors, limits
from penstock.model.checkpoints import (
    Checkpoint,
    CheckpointList,
    Claim,
    ClaimList,
    Ownership,
    OwnershipList,
)
from penstock.model.connection_string import Endpoint, parse_connection_string
from penstock.model.errors import ArgumentError, CheckpointStoreUnavailable, PenstockError
from penstock.model.names import fold_name, quote_text

_T = TypeVar("_T")
_HTTPS_PORT = 8443
_PREFIX = "/$penstock/checkpoints"
_TIMEOUT_S = 30.0
_RESPONSE_BYTES_MAX = 4 * limits.MB
_IDLE_CONNECTIONS_MAX = 8
_TOKENS_MAX = 256
_TOKEN_LIFETIME_S = 3600
_RETRY_PAUSES_S = (0.1, 0.4, 1.0, 2.0)  # a restarted service is back within a second or two

_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_TRACKING = re.compile(r" TrackingId:.*", re.DOTALL)
_ERRORS: dict[int, type[PenstockError]] = {
    400: errors.ArgumentError,
    401: errors.AuthFailed,
    403: errors.QuotaExceeded,
    404: errors.NotFound,
    413: errors.MessageTooLarge,
}


class ServiceEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The HTTPS address of the service, and the AMQP endpoint: tokens name its host and are signed
    with its key."""

    url: str
    amqp: Endpoint
    ca_file: str | None = None


def locate_service(
    connection_string: str,
    *,
    https_url: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
) -> ServiceEndpoint:
    """The address is `https_url`, else PENSTOCK_HTTPS_URL, else that of the service on this
    machine, else port 8443 of the host. Raises ArgumentError, which never quotes the connection
    string."""
    amqp = parse_connection_string(connection_string, ignore_unknown=True)
    amqp = msgspec.structs.replace(amqp, host=amqp.host.lower())
    runtime = _read_matching_runtime(amqp)
    default_url = str(runtime.get("https", "")) or f"https://{_bracketed(amqp.host)}:{_HTTPS_PORT}"
    url = https_url or os.environ.get("PENSTOCK_HTTPS_URL") or default_url
    authority = _parse_authority(url)
    if ca_file is None and authority == _parse_authority(default_url):
        ca_file = runtime.get("ca_file")
    return ServiceEndpoint(
        url=url, amqp=amqp, ca_file=None if ca_file is None else os.fspath(ca_file)
    )


def _parse_authority(url: str) -> tuple[str, int]:
    """Host and port, equal for two URLs of one service. Raises ArgumentError."""
    try:
        parts = urlsplit(url)
        if parts.scheme == "https" and parts.hostname:
            return host_key(parts.hostname), parts.port or 443
    except ValueError:
        pass  # a port that is not a number up to 65535
    raise ArgumentError(f"'{url}' is not a URL that begins with https:// and names a host.")


def _read_matching_runtime(amqp: Endpoint) -> dict[str, str]:
    """The description of the service on the data directory here, if the connection string means
    that service; else nothing."""
    try:
        facts = read_runtime(Path(os.environ.get("PENSTOCK_DATA", "penstock-data"))) or {}
    except errors.DataDirectoryError:
        return {}
    for listener in (facts.get("amqps"), facts.get("amqp")):
        name, _, port = str(listener).rpartition(":")
        if host_key(amqp.host) == host_key(name.strip("[]")) and port == str(amqp.port):
            return {key: str(value) for key, value in facts.items() if value is not None}
    return {}


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


class ServiceBackend:
    """The records of the service, as `CheckpointFile` has those of a file. The namespace is the one
    of the connection string, whatever name a caller gives it. Raises PenstockError;
    CheckpointStoreUnavailable where a retry may help."""

    def __init__(
        self,
        service: ServiceEndpoint,
        *,
        now_s: Callable[[], float] = time.time,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        """Raises ArgumentError for a ca_file that cannot be read."""
        self._service = service
        self._now_s = now_s
        self._wait = wait
        self._http = HttpClient(
            service.url,
            ca_file=service.ca_file,
            timeout_s=_TIMEOUT_S,
            response_bytes_max=_RESPONSE_BYTES_MAX,
            idle_connections_max=_IDLE_CONNECTIONS_MAX,
        )
        self._lock = threading.Lock()
        self._tokens: dict[str, tuple[float, str]] = {}  # expiry and token by hub; under the lock

    def ownerships(self, names: GroupNames) -> list[Ownership]:
        return _decode_response(self._call("GET", names, "ownership"), OwnershipList).ownerships

    def checkpoints(self, names: GroupNames) -> list[Checkpoint]:
        return _decode_response(self._call("GET", names, "checkpoints"), CheckpointList).checkpoints

    def claim(self, names: GroupNames, claims: Sequence[Claim]) -> list[Ownership]:
        """Not retried: whether the service accepted the first attempt is unknown, and the next
        round of load balancing lists the result."""
        body = msgspec.json.encode(ClaimList(list(claims)))
        answer = self._call("POST", names, "ownership", body, retry=False)
        return _decode_response(answer, OwnershipList).ownerships

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None:
        body = msgspec.json.encode(CheckpointList([checkpoint]))
        self._call("POST", names, "checkpoints", body)

    def close(self) -> None:
        self._http.close()

    def _call(
        self, method: str, names: GroupNames, what: str, body: bytes = b"", *, retry: bool = True
    ) -> bytes:
        hub, group = quote(names.eventhub_name, safe=""), quote(names.consumer_group, safe="")
        path = f"{_PREFIX}/{hub}/{group}/{what}"
        for pause_s in _RETRY_PAUSES_S if retry else ():
            try:
                return self._request(method, path, names.eventhub_name, body)
            except CheckpointStoreUnavailable:
                self._wait(pause_s)
        return self._request(method, path, names.eventhub_name, body)

    def _request(self, method: str, path: str, hub: str, body: bytes) -> bytes:
        headers = {"Authorization": self._token(hub), "Content-Type": "application/json"}
        try:
            response = self._http.request(method, path, body=body, headers=headers)
        except ssl.SSLCertVerificationError as error:
            raise ArgumentError(
                f"The certificate of {self._service.url} cannot be verified "
                f"({error.verify_message}); name the service's ca_file."
            ) from error
        except OSError as error:
            raise CheckpointStoreUnavailable(
                f"The checkpoints at {self._service.url} cannot be reached: "
                f"{error or type(error).__name__}"
            ) from error
        if response.status >= 300:
            raise _refusal_error(response.status, response.body)
        return response.body

    def _token(self, hub: str) -> str:
        """A token for one hub alone; it is replaced after half of its lifetime."""
        amqp, now_s = self._service.amqp, self._now_s()
        if amqp.signature is not None:
            return amqp.signature.reveal()
        with self._lock:
            expires_s, token = self._tokens.get(fold_name(hub), (0.0, ""))
            if now_s < expires_s - _TOKEN_LIFETIME_S / 2:
                return token
            expires_s = int(now_s) + _TOKEN_LIFETIME_S
            assert amqp.key_name is not None
            assert amqp.key is not None
            resource = f"sb://{_bracketed(amqp.host)}/{hub}"
            token = sign(resource, amqp.key_name, amqp.key, expires_s=int(expires_s))
            if len(self._tokens) >= _TOKENS_MAX:
                self._tokens.clear()
            self._tokens[fold_name(hub)] = (expires_s, token)
            return token


def _refusal_error(status: int, content: bytes) -> PenstockError:
    match = _DETAIL.search(content.decode("utf-8", "replace"))
    text = _TRACKING.sub("", unescape(match[1])) if match else ""
    kind = _ERRORS.get(status)
    if kind is None:
        kind = CheckpointStoreUnavailable if status >= 500 or status == 408 else PenstockError
    return kind(f"The service answered {status}: {quote_text(text, most=500)}")


def _decode_response(content: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise PenstockError(f"The service's answer cannot be read: {error}") from error
