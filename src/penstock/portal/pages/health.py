"""Health: the parts of the service, its warnings, and where probes ask."""

from __future__ import annotations

from starlette.responses import Response

from penstock.portal.page_request import PageRequest
from penstock.portal.shell import page


async def health(visit: PageRequest) -> Response:
    url = visit.portal.settings.admin_url.rstrip("/")
    return await page(visit, "health.html", health=await visit.backend.health(), admin_url=url)
