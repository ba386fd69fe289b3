"""The frame of every page: navigation, tabs of a hub, layouts, error pages."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.portal.charts import RANGE_DEFAULT, chosen_range, time_ranges
from penstock.portal.page_request import PageRequest
from penstock.portal.templating import render


class NavigationEntry(msgspec.Struct, frozen=True):
    """`word` is the first segment of the address, `key` follows `g` on the keyboard."""

    word: str
    label: str
    key: str
    icon: str
    group: str = ""
    role: AdminRole = AdminRole.VIEWER


NAVIGATION = (
    NavigationEntry("", "Overview", "o", "overview"),
    NavigationEntry("hubs", "Event hubs", "h", "hub", "Data"),
    NavigationEntry("connections", "Connections", "n", "connections", "Data"),
    NavigationEntry("jobs", "Pipelines", "p", "jobs", "Processing"),
    NavigationEntry("capture", "Capture", "a", "capture", "Processing"),
    NavigationEntry("scale", "Throughput units", "u", "scale", "Namespace"),
    NavigationEntry("policies", "Access policies", "k", "policies", "Namespace"),
    NavigationEntry("namespaces", "Namespaces", "m", "namespaces", "Service"),
    NavigationEntry("health", "Health", "e", "health", "Service"),
    NavigationEntry("audit", "Audit log", "l", "audit", "Service", AdminRole.OPERATOR),
)
HUB_TABS = (
    ("", "Overview"),
    ("events", "Events"),
    ("groups", "Consumer groups"),
    ("capture", "Capture"),
    ("policies", "Access policies"),
)
_TITLES = {403: "Not allowed", 404: "Not found"}
_PRODUCTION = ("prod", "live")  # in the name of an environment


async def page(
    visit: PageRequest, template: str, *, status: int = 200, **values: object
) -> Response:
    """A page of a template that extends `layout`. For a script that updates an open page it is the
    live parts alone, and 304 if they are as they were."""
    word, _, tab, *_ = [*visit.route.pattern.strip("/").split("/"), "", ""]
    is_hub = "hub" in visit.words
    shared: dict[str, Any] = {
        "active": word,
        "tab": tab,
        "hub_tabs": HUB_TABS,
        "tab_label": dict(HUB_TABS).get(tab, ""),
        **await _frame(visit),
    }
    if is_hub:
        shared["hub"] = await visit.hub()
    layouts = {"1": "live.html", "dialog": "dialog.html"}
    usual = "hub_shell.html" if is_hub else "shell.html"
    layout = layouts.get(visit.request.headers.get("x-live", ""), usual)
    return _respond(visit, template, {"layout": layout, **shared, **values}, status)


def bare_page(
    visit: PageRequest, template: str, *, status: int = 200, **values: object
) -> Response:
    """A page without navigation: it needs no session and no service."""
    return _respond(visit, template, {"layout": "bare.html", **_common(visit), **values}, status)


async def error_page(visit: PageRequest, status: int, text: str) -> Response:
    """An error in the frame, or without one if the service does not answer."""
    values = {"error_title": _TITLES.get(status, "That did not work"), "error_text": text}
    try:
        shared = {"active": "", **await _frame(visit), "is_updated": False}
        return _respond(visit, "error.html", {"layout": "shell.html", **shared, **values}, status)
    except Exception:  # noqa: BLE001  # whatever it is, the user gets an answer
        return bare_page(visit, "error.html", status=status, **values)


def retry_page() -> Response:
    """A page that requests the same address again."""
    return HTMLResponse('<!doctype html><meta http-equiv="refresh" content="0">')


def _respond(visit: PageRequest, template: str, values: dict[str, Any], status: int) -> Response:
    content = render(template, {"visit": visit, **values})
    response: Response = HTMLResponse(content, status)
    if visit.is_live and status == 200:
        tag = f'"{sha256(content).hexdigest()[:24]}"'
        if visit.request.headers.get("if-none-match") == tag:
            response = Response(status_code=304)
        response.headers["etag"] = tag
    return response


def _common(visit: PageRequest) -> dict[str, Any]:
    cookies, environment = visit.request.cookies, visit.portal.settings.environment
    theme, chosen = cookies.get("penstock_theme"), chosen_range(visit)
    return {
        "theme": theme if theme in ("dark", "light") else "",
        "is_dense": cookies.get("penstock_density") == "dense",
        "environment": environment,
        "is_alarming": any(word in environment.casefold() for word in _PRODUCTION),
        "is_updated": visit.request.method == "GET",  # the answer to a form cannot be asked again
        "now_ms": visit.portal.clock.now_ms(),
        "time_ranges": time_ranges(),
        "time_range": None if chosen == RANGE_DEFAULT else chosen,
    }


async def _frame(visit: PageRequest) -> dict[str, Any]:
    namespaces = await visit.backend.read(ManagementClient.namespaces)
    navigation = [each for each in NAVIGATION if visit.session.role >= each.role]
    counts = {"namespaces": len(namespaces)}
    if visit.namespace:
        counts["hubs"] = len(await visit.visible_hubs())
    crumbs = [(visit.namespace, visit.link(""))] if visit.namespace else []
    if "hub" in visit.words:
        crumbs.append(("Event hubs", visit.link("hubs")))
    return {
        **_common(visit),
        "namespaces": namespaces,
        "navigation": navigation,
        "counts": counts,
        "crumbs": crumbs,
    }
