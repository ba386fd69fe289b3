"""An event's body as people look at it: text, JSON in order, or bytes in hexadecimal."""

from __future__ import annotations

import json
import zlib

from penstock.client import EventData
from penstock.client.values import display_body

SHOWN_BYTES_MAX = 256 * 1024
_INFLATED_MAX = 4 * 1024 * 1024
_PREVIEWED_MAX = 64 * 1024
SEARCHED_MAX = 256 * 1024  # of a packed body: a search opens many
_HEX_BYTES_MAX = 16 * 1024
_GZIP = b"\x1f\x8b"
VIEWS = {"json": "JSON", "text": "Text", "hex": "Hex"}


def read_body(event: EventData, *, most: int = _INFLATED_MAX) -> tuple[bytes, str]:
    """The body that people read: the text of an AMQP value or sequence, and gzip inflated, with a
    note about it."""
    return unpack_gzip(display_body(event.body, event.body_type), most=most)


def unpack_gzip(body: bytes, *, most: int = _INFLATED_MAX) -> tuple[bytes, str]:
    """Inflated where it is gzip, with a word about it. A bomb is opened a little only."""
    if not body.startswith(_GZIP):
        return body, ""
    inflate = zlib.decompressobj(31)
    try:
        content = inflate.decompress(body, most)
    except zlib.error:
        return body, "looks like gzip, but is damaged"
    note = f"gzip, {len(body)} bytes packed"
    return content, note if inflate.eof else f"{note}; only the beginning is shown"


def best_view(body: bytes) -> str:
    if _as_json(body) is not None:
        return "json"
    text = body[:4096].decode("utf-8", "replace")
    strange = sum(not c.isprintable() and c not in "\r\n\t" for c in text) + text.count("\ufffd")
    return "hex" if strange > len(text) // 10 else "text"


def format_body(body: bytes, view: str) -> str:
    """The text of a view, cut where it would fill the browser."""
    if view == "hex":
        return hex_dump(body[:_HEX_BYTES_MAX]) + _more(body, _HEX_BYTES_MAX)
    if view == "json":
        value = _as_json(body)
        if value is not None:
            text = json.dumps(value, indent=2, ensure_ascii=False)
            return text[:SHOWN_BYTES_MAX] + ("\n…" if len(text) > SHOWN_BYTES_MAX else "")
    return body[:SHOWN_BYTES_MAX].decode("utf-8", "replace") + _more(body, SHOWN_BYTES_MAX)


def hex_dump(body: bytes) -> str:
    """
    >>> print(hex_dump(b"Hi\\x00"))
    00000000  48 69 00                                         |Hi.|
    """
    lines = []
    for at in range(0, len(body), 16):
        part = body[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{at:08x}  {part.hex(' '):<47}  |{text}|")
    return "\n".join(lines)


def preview(event: EventData, *, most: int = 160) -> str:
    """One line for a table."""
    body, _ = read_body(event, most=_PREVIEWED_MAX)
    if best_view(body) == "hex":
        return body[:48].hex(" ") + (" …" if len(body) > 48 else "")
    text = " ".join(body[: most * 4].decode("utf-8", "replace").split())
    return text[:most] + ("…" if len(text) > most or len(body) > most * 4 else "")


def _as_json(body: bytes) -> object | None:
    if body[:1].strip() == b"" and not body.strip():
        return None
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _more(body: bytes, most: int) -> str:
    return f"\n… and {len(body) - most} bytes more" if len(body) > most else ""
