"""Leases and checkpoints that the service keeps, over HTTPS with connections kept alive."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from html import unescape
from typing import TypeVar
from urllib.parse import quote

import msgspec

from penstock.auth import sign
from penstock.checkpoints.locating import ServiceEndpoint, locate_service
from penstock.checkpoints.records import GroupNames
from penstock.model import errors, limits
from penstock.model.checkpoints import Checkpoint, Claim, Ownership
from penstock.model.errors import CheckpointStoreUnavailable, PenstockError
from penstock.model.names import fold_name, quote_text

_T = TypeVar("_T")
PREFIX = "/$penstock/checkpoints"
_TIMEOUT_S = 30.0
_ANSWER_BYTES_MAX = 4 * limits.MB
_IDLE_CONNECTIONS_MAX = 8
_TOKENS_MAX = 256
_TOKEN_LASTS_S = 3600
# A service that is started anew is back in a second or two.
_WAITS_S = (0.1, 0.4, 1.0, 2.0)

_DETAIL = re.compile(r"<Detail>(.*?)</Detail>", re.DOTALL)
_TRACKING = re.compile(r" TrackingId:.*", re.DOTALL)
_ERRORS: dict[int, type[PenstockError]] = {
    400: errors.ArgumentError,
    401: errors.AuthFailed,
    403: errors.QuotaExceeded,
    404: errors.NotFound,
    413: errors.MessageTooLarge,
}


class OwnershipList(msgspec.Struct):
    ownerships: list[Ownership]


class CheckpointList(msgspec.Struct):
    checkpoints: list[Checkpoint]


class ClaimList(msgspec.Struct):
    claims: Sequence[Claim]


class ServiceBackend:
    """`backends.Backend` over the service. The namespace is the one of the connection string,
    whatever a caller calls it."""

    @staticmethod
    def of(
        connection_string: str,
        *,
        https_url: str | None = None,
        ca_file: str | os.PathLike[str] | None = None,
    ) -> ServiceBackend:
        return ServiceBackend(
            locate_service(connection_string, https_url=https_url, ca_file=ca_file)
        )

    def __init__(
        self,
        service: ServiceEndpoint,
        *,
        now_s: Callable[[], float] = time.time,
        wait: Callable[[float], None] = time.sleep,
    ) -> None:
        self._service = service
        self._now_s = now_s
        self._wait = wait
        self._tls = _tls(service.ca_file)
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._idle: list[http.client.HTTPSConnection] = []
        self._tokens: dict[str, tuple[float, str]] = {}

    def ownerships(self, names: GroupNames) -> list[Ownership]:
        answer = self._call("GET", names, "ownership")
        return _decode_response(answer, OwnershipList).ownerships

    def checkpoints(self, names: GroupNames) -> list[Checkpoint]:
        answer = self._call("GET", names, "checkpoints")
        return _decode_response(answer, CheckpointList).checkpoints

    def claim(self, names: GroupNames, claims: Sequence[Claim]) -> list[Ownership]:
        """Not tried again: whether the first try was taken cannot be told, and the next round of
        balancing lists what is so."""
        body = msgspec.json.encode(ClaimList(claims))
        answer = self._call("POST", names, "ownership", body, again=False)
        return _decode_response(answer, OwnershipList).ownerships

    def save(self, names: GroupNames, checkpoint: Checkpoint) -> None:
        body = msgspec.json.encode(CheckpointList([checkpoint]))
        self._call("POST", names, "checkpoints", body)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _call(
        self, method: str, names: GroupNames, what: str, body: bytes = b"", *, again: bool = True
    ) -> bytes:
        path = f"{PREFIX}/{quote(names.hub, safe='')}/{quote(names.group, safe='')}/{what}"
        for wait_s in (*_WAITS_S, None) if again else (None,):
            try:
                return self._try(method, path, names.hub, body)
            except CheckpointStoreUnavailable:
                if wait_s is None:
                    raise
                self._wait(wait_s)
        raise AssertionError("unreachable")

    def _try(self, method: str, path: str, hub: str, body: bytes) -> bytes:
        headers = {"Authorization": self._token(hub), "Content-Type": "application/json"}
        connection, is_used = self._connection()
        while True:
            try:
                connection.request(method, path, body, headers)
                response = connection.getresponse()
                content = response.read(_ANSWER_BYTES_MAX + 1)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if is_used and _is_connection_closed(error):
                    # The service ended an idle connection; this request never reached it.
                    connection, is_used = self._new_connection(), False
                    continue
                raise self._unreachable(error) from error
            break
        if len(content) > _ANSWER_BYTES_MAX:
            connection.close()
            raise CheckpointStoreUnavailable(
                f"The service's answer has more than {_ANSWER_BYTES_MAX} bytes."
            )
        self._give_back(connection, will_close=response.will_close)
        if response.status >= 300:
            raise _refusal(response.status, content)
        return content

    def _token(self, hub: str) -> str:
        """For one hub alone, valid for an hour, made anew when half of that is over."""
        service, now_s = self._service, self._now_s()
        if service.signature is not None:
            return service.signature.reveal()
        with self._lock:
            expires_s, token = self._tokens.get(fold_name(hub), (0.0, ""))
            if now_s < expires_s - _TOKEN_LASTS_S / 2:
                return token
            expires_s = int(now_s) + _TOKEN_LASTS_S
            assert service.key is not None
            host = f"[{service.namespace_host}]" if ":" in service.namespace_host else None
            resource = f"sb://{host or service.namespace_host}/{hub}"
            token = sign(resource, service.key_name, service.key, expires_s=int(expires_s))
            if len(self._tokens) >= _TOKENS_MAX:
                self._tokens.clear()
            self._tokens[fold_name(hub)] = (expires_s, token)
            return token

    def _connection(self) -> tuple[http.client.HTTPSConnection, bool]:
        with self._lock:
            if self._process != os.getpid():
                # Sockets that a parent process uses as well.
                self._process, self._idle = os.getpid(), []
            if self._idle:
                return self._idle.pop(), True
        return self._new_connection(), False

    def _new_connection(self) -> http.client.HTTPSConnection:
        service = self._service
        return http.client.HTTPSConnection(
            service.host, service.port, timeout=_TIMEOUT_S, context=self._tls
        )

    def _give_back(self, connection: http.client.HTTPSConnection, *, will_close: bool) -> None:
        with self._lock:
            if not will_close and len(self._idle) < _IDLE_CONNECTIONS_MAX:
                self._idle.append(connection)
                return
        connection.close()

    def _unreachable(self, error: Exception) -> PenstockError:
        where = f"https://{self._service.host}:{self._service.port}"
        if isinstance(error, ssl.SSLCertVerificationError):
            return errors.ArgumentError(
                f"The certificate of {where} cannot be verified ({error.verify_message}); name the "
                "service's ca_file."
            )
        return CheckpointStoreUnavailable(
            f"The checkpoints at {where} cannot be reached: {error or type(error).__name__}"
        )


def _tls(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise errors.ArgumentError(f"The ca_file {ca_file} cannot be read: {error}") from error


def _is_connection_closed(error: Exception) -> bool:
    return isinstance(error, ConnectionError | http.client.RemoteDisconnected | ssl.SSLEOFError)


def _refusal(status: int, content: bytes) -> PenstockError:
    found = _DETAIL.search(content.decode("utf-8", "replace"))
    text = _TRACKING.sub("", unescape(found[1])) if found else ""
    kind = _ERRORS.get(status)
    if kind is None:
        kind = CheckpointStoreUnavailable if status >= 500 or status == 408 else PenstockError
    return kind(f"The service answered {status}: {quote_text(text, most=500)}")


def _decode_response(content: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise PenstockError(f"The service's answer cannot be read: {error}") from error
