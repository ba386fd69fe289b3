"""Pipelines: Spark jobs that report themselves."""

from __future__ import annotations

from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.portal.page_request import PageRequest
from penstock.portal.shell import page


async def jobs(visit: PageRequest) -> Response:
    return await page(visit, "jobs.html", jobs=await visit.backend.read(ManagementClient.jobs))
