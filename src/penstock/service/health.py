"""`/health` (alive) and `/ready` (what is not) on the administration port."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

Checks = dict[str, str]  # part -> "ok", "off", or what is wrong

_FINE = ("ok", "off")
# Named, but not waited for: events come and go without them.
_BESIDE = ("portal", "capture")
_WARNINGS_MAX = 20


def health_routes(
    alive: Callable[[], str | None],
    checks: Callable[[], Checks],
    warnings: Callable[[], list[str]],
) -> list[Route]:
    """`alive` gives None or why the broker is not; `checks` gives every part's state; `warnings`
    what an operator should look at although the service works."""

    async def health(request: Request) -> JSONResponse:
        trouble = alive()
        body = {
            "status": "healthy" if trouble is None else "unhealthy",
            "message": trouble or "Penstock is running.",
        }
        return JSONResponse(body, status_code=200 if trouble is None else 503)

    async def ready(request: Request) -> JSONResponse:
        parts = checks()
        fine = all(state in _FINE for name, state in parts.items() if name not in _BESIDE)
        body = {
            "status": "ready" if fine else "not ready",
            "checks": parts,
            "warnings": warnings()[:_WARNINGS_MAX],
        }
        return JSONResponse(body, status_code=200 if fine else 503)

    return [Route("/health", health), Route("/ready", ready)]
