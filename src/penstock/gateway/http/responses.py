"""Responses: status, headers, the XML body of an error (protocol.md 7.1)."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from email.utils import formatdate
from functools import cache
from html import escape

import msgspec

from penstock.model.errors import AuthFailed, PenstockError, ServerBusy

Headers = list[tuple[bytes, bytes]]

SERVER = (b"server", b"Penstock")
_XML = (b"content-type", b"application/xml; charset=utf-8")
ATOM_FEED = (b"content-type", b"application/atom+xml;type=feed;charset=utf-8")
ATOM_ENTRY = (b"content-type", b"application/atom+xml;type=entry;charset=utf-8")
CLOSE = (b"connection", b"close")

_BUSY_S = b"4"  # as the text of error 50002 says
_SOON_S = b"1"

# Azure's codes for what is wrong with a token, by the first word of our text.
_SUB_CODES = {
    "MissingToken": "40102: Missing authorization token",
    "InvalidSignature": "40103: Invalid authorization token signature",
    "InvalidAudience": "40104: Invalid authorization token audience",
    "MalformedToken": "40105: Malformed authorization token",
}


@cache  # compiled for the first error: it takes half as long as importing this package
def _no_xml() -> re.Pattern[str]:
    """Characters that XML 1.0 cannot carry, even escaped."""
    return re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class MethodNotAllowed(PenstockError):
    """The path exists, but not with this method."""

    condition = "amqp:not-allowed"
    http_status = 405

    def __init__(self, text: str, allowed: bytes) -> None:
        super().__init__(text)
        self.allowed = allowed


class LengthRequired(PenstockError):
    """A POST with neither a Content-Length nor chunks."""

    condition = "com.microsoft:argument-error"
    http_status = 411


class HttpResponse(msgspec.Struct, frozen=True):
    """`HttpRequest.answer` adds the headers that every response has."""

    status: int
    headers: Headers = []
    body: bytes = b""


def error_response(
    error: PenstockError, *, tracking_id: str, tracker: str, now_ms: int
) -> HttpResponse:
    """`tracker` is the escaped host and path of the request."""
    time = datetime.fromtimestamp(now_ms / 1000, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")
    detail = f"{_detail(error)} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{time}"
    body = (
        f"<Error><Code>{error.http_status}</Code><Detail>{xml_text(detail)}</Detail></Error>"
    ).encode()
    return HttpResponse(error.http_status, [_XML, *_headers(error)], body)


def http_date(now_ms: int) -> bytes:
    return formatdate(now_ms // 1000, usegmt=True).encode()


def xml_text(text: str) -> str:
    return escape(_no_xml().sub("\ufffd", text), quote=False).replace('"', "&quot;")


def _detail(error: PenstockError) -> str:
    text = str(error)
    if isinstance(error, AuthFailed):
        code = _SUB_CODES.get(text.partition(":")[0])
        if code is not None:
            return f"SubCode={code}. {text}"
    return text


def _headers(error: PenstockError) -> Headers:
    if isinstance(error, MethodNotAllowed):
        return [(b"allow", error.allowed)]
    if error.http_status == 401:
        return [(b"www-authenticate", b"SharedAccessSignature")]  # RFC 9110 15.5.2
    if isinstance(error, ServerBusy):
        return [(b"retry-after", _BUSY_S)]
    if error.http_status == 503:
        return [(b"retry-after", _SOON_S)]
    return []
