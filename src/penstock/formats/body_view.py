"""An event's body and other foreign text for display.

Text of an event must not hide other text, change its direction or control a terminal: invisible
characters are written as escapes.
"""

from __future__ import annotations

import json
import re
import zlib

SEARCHED_MAX = 256 * 1024
"""Bytes of a packed body that a search or a filter unpacks."""
UNPACKED_MAX = 4 * 1024 * 1024
VIEWS = {"json": "JSON", "text": "Text", "hex": "Hex"}
_SHOWN_BYTES_MAX = 256 * 1024
_HEX_BYTES_MAX = 16 * 1024
_GZIP = b"\x1f\x8b"
# Control characters and characters that hide others or change the direction of text.
INVISIBLE = re.compile(
    "[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u00ad\u034f\u061c\u115f\u1160\u180b-\u180e"
    "\u200b-\u200f\u2028-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb"
    "\ud800-\udfff\U000e0000-\U000e01ef]"
)
_ONE_LINE = re.compile(f"[\t\n\r]|{INVISIBLE.pattern}")
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\x1b": "\\e", "\0": "\\0"}


def escape_invisible(text: str) -> str:
    """Replace invisible characters by their codes. Line breaks and tabs stay."""
    return INVISIBLE.sub(lambda match: _format_code(ord(match[0])), text)


def escape_line(text: str) -> str:
    """Text on one line of a terminal: line breaks and tabs are escaped too."""
    return _ONE_LINE.sub(_escape_short, text)


def escape_line_bytes(data: bytes) -> str:
    r"""Like `escape_line`, for bytes: b"\x1b[2J\xff" -> "\\e[2J\\xff"."""
    return escape_line(data.decode("utf-8", "backslashreplace"))


def _escape_short(match: re.Match[str]) -> str:
    code = ord(match[0])
    return _SHORT_ESCAPES.get(match[0]) or (f"\\x{code:02x}" if code < 256 else _format_code(code))


def _format_code(code: int) -> str:
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def unpack_gzip(body: bytes, *, bytes_max: int = UNPACKED_MAX) -> tuple[bytes, str]:
    """The body, unpacked up to `bytes_max` bytes if it is gzip, and a note about the packing."""
    if not body.startswith(_GZIP):
        return body, ""
    unpacker = zlib.decompressobj(31)
    try:
        content = unpacker.decompress(body, bytes_max)
    except zlib.error:
        return body, "looks like gzip, but is damaged"
    note = f"gzip, {len(body)} bytes packed"
    return content, note if unpacker.eof else f"{note}; only the beginning is shown"


def best_view(body: bytes) -> str:
    """The name of the view that suits the body."""
    if _parse_json(body) is not None:
        return "json"
    text = body[:4096].decode("utf-8", "replace")
    strange = sum(not c.isprintable() and c not in "\r\n\t" for c in text) + text.count("\ufffd")
    return "hex" if strange > len(text) // 10 else "text"


def format_body(body: bytes, view: str) -> str:
    """The body in a view, limited to a length that a browser can show."""
    if view == "hex":
        return hex_dump(body[:_HEX_BYTES_MAX]) + _format_omitted(body, _HEX_BYTES_MAX)
    value = _parse_json(body) if view == "json" else None
    if value is not None:
        text = json.dumps(value, indent=2, ensure_ascii=False)
        return text[:_SHOWN_BYTES_MAX] + ("\n…" if len(text) > _SHOWN_BYTES_MAX else "")
    shown = body[:_SHOWN_BYTES_MAX].decode("utf-8", "replace")
    return shown + _format_omitted(body, _SHOWN_BYTES_MAX)


def hex_dump(body: bytes) -> str:
    """
    >>> print(hex_dump(b"Hi\\x00"))
    00000000  48 69 00                                         |Hi.|
    """
    lines = []
    for start in range(0, len(body), 16):
        part = body[start : start + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{start:08x}  {part.hex(' '):<47}  |{text}|")
    return "\n".join(lines)


def preview(body: bytes, *, length_max: int = 160) -> str:
    """One line for a table."""
    if best_view(body) == "hex":
        return body[:48].hex(" ") + (" …" if len(body) > 48 else "")
    text = " ".join(body[: length_max * 4].decode("utf-8", "replace").split())
    is_cut = len(text) > length_max or len(body) > length_max * 4
    return text[:length_max] + ("…" if is_cut else "")


def _parse_json(body: bytes) -> object | None:
    """The object or array of the body; None if it is something else."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict | list) else None


def _format_omitted(body: bytes, shown_max: int) -> str:
    return f"\n… and {len(body) - shown_max} bytes more" if len(body) > shown_max else ""
