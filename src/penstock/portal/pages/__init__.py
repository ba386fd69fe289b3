"""The pages, and where each is found."""

from __future__ import annotations

from penstock.portal import responses, sign_in
from penstock.portal.page_request import PageRoute
from penstock.portal.pages import (
    activity,
    capture,
    events,
    groups,
    hubs,
    namespaces,
    overview,
    policies,
    scale,
    send,
)

ROUTES: tuple[PageRoute, ...] = (
    *overview.ROUTES,
    *namespaces.ROUTES,
    *hubs.ROUTES,
    *events.ROUTES,
    *send.ROUTES,
    *groups.ROUTES,
    *policies.ROUTES,
    *scale.ROUTES,
    *capture.ROUTES,
    *activity.ROUTES,
)

# What strangers may see.
PUBLIC: tuple[PageRoute, ...] = (
    PageRoute("GET", "/signin", sign_in.open_sign_in),
    PageRoute("POST", "/signin", sign_in.sign_in),
    PageRoute("POST", "/signout", sign_in.sign_out),
    PageRoute("GET", "/static/{name}", responses.static_file),
    PageRoute("GET", "/alive", responses.health),
)
