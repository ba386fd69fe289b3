"""Addresses of the portal's pages, and the rule for addresses that a page may contain."""

from __future__ import annotations

import re
from urllib.parse import quote, urlencode

_HARMLESS = re.compile(r"(https?://|/(?!/)|#|\?|$)", re.IGNORECASE)


def path(*segments: str, **query: object) -> str:
    """An address of ours: every segment and value escaped. Empty segments, and values that are
    None, are left out. A list or tuple becomes a parameter with several values."""
    text = "/" + "/".join(quote(segment, safe="$") for segment in segments if segment)
    known = {name.rstrip("_"): value for name, value in query.items() if value is not None}
    encoded = urlencode(known, doseq=True)
    return f"{text}?{encoded}" if encoded else text


def harmless_url(address: str) -> str:
    """The address if its scheme is harmless, else `#`: `javascript:` and the like lead nowhere."""
    return address if _HARMLESS.match(address) else "#"
