"""The audit log: who did what."""

from __future__ import annotations

from starlette.responses import Response

from penstock.portal.lists import list_view
from penstock.portal.page_request import PageRequest
from penstock.portal.shell import page

_SHOWN = 200
_SEARCHED = 1000


async def audit(visit: PageRequest) -> Response:
    newest = _SEARCHED if visit.query.get("find") else _SHOWN
    view = list_view(
        visit,
        await visit.act(lambda client: client.audit(newest=newest)),
        text=lambda entry: f"{entry['who']} {entry['what']} {entry['detail']}",
        sorts={
            "when": lambda entry: entry["at_ms"],
            "who": lambda entry: entry["who"],
            "what": lambda entry: entry["what"],
        },
        sort="-when",
        page_size=_SHOWN,
    )
    return await page(visit, "audit.html", view=view)
