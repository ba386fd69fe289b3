"""Style sheet, scripts and icon of the portal: read once, served from memory."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from starlette.responses import Response

from penstock.portal.page_request import PageRequest

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def files() -> dict[str, tuple[bytes, str]]:
    folder = Path(__file__).parent / "static"
    return {
        file.name: (file.read_bytes(), _TYPES[file.suffix])
        for file in sorted(folder.iterdir())
        if file.suffix in _TYPES
    }


async def static_file(visit: PageRequest) -> Response:
    found = files().get(visit.words["name"])
    if found is None:
        return Response("There is no such file.\n", status_code=404, media_type="text/plain")
    content, kind = found
    # An hour, and the address names the version: an upgrade is seen at once.
    headers = {"cache-control": "private, max-age=3600"}
    return Response(content, media_type=kind, headers=headers)


async def health(visit: PageRequest) -> Response:
    """`/alive`: the service checks with it that the portal answers."""
    return Response("ok\n", media_type="text/plain")
