"""Static files of the pages: ours and the libraries' in `vendor`."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def static_files() -> dict[str, bytes]:
    """Contents by name."""
    folder = Path(__file__).parent
    files = (*(folder / "static").iterdir(), *(folder / "vendor").glob("*/*.js"))
    return {file.name: file.read_bytes() for file in files}


@cache
def asset(name: str, symbol: str = "") -> str:
    """The address of a file, which names its content; `symbol` is an icon in it."""
    version = hashlib.sha256(static_files()[name]).hexdigest()[:12]
    return f"/static/{name}?v={version}" + (f"#{symbol}" if symbol else "")
