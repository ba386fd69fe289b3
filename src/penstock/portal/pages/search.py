"""Go to: event hubs, pages and actions by name. A script shows it as a dialog on every page."""

from __future__ import annotations

import msgspec
from starlette.responses import Response

from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.portal.page_request import PageRequest
from penstock.portal.shell import NAVIGATION, page

_SHOWN = 20
_FIND_MAX = 200  # characters


class Target(msgspec.Struct, frozen=True):
    label: str
    kind: str
    icon: str
    url: str


async def search(visit: PageRequest) -> Response:
    words = visit.query.get("find", "")[:_FIND_MAX].casefold().split()
    found = [
        each
        for each in await _targets(visit)
        if all(word in f"{each.label} {each.kind}".casefold() for word in words)
    ]
    return await page(visit, "search.html", found=found[:_SHOWN], find=visit.query.get("find", ""))


async def _targets(visit: PageRequest) -> list[Target]:
    pages = [
        Target(each.label, "page", each.icon, visit.link(each.word))
        for each in NAVIGATION
        if visit.session.role >= each.role
    ]
    hubs = await visit.visible_hubs() if visit.namespace else []
    targets = [Target(hub.name, "event hub", "hub", visit.link("hubs", hub.name)) for hub in hubs]
    targets += pages
    if visit.may(AdminRole.OPERATOR):
        targets.append(Target("Create event hub", "action", "plus", visit.link("new-hub")))
        targets += [
            Target(
                f"Send events to {hub.name}", "action", "send", visit.link("hubs", hub.name, "send")
            )
            for hub in hubs
        ]
    targets += [
        Target(job["name"], "pipeline", "jobs", visit.link("jobs"))
        for job in await visit.backend.read(ManagementClient.jobs)
    ]
    return targets
