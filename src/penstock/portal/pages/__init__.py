"""The pages, and where each is found."""

from __future__ import annotations

from penstock.portal import sign_in, static_files
from penstock.portal.application import Route
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

ROUTES: tuple[Route, ...] = (
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
PUBLIC: tuple[Route, ...] = (
    Route("GET", "/signin", sign_in.open_sign_in),
    Route("POST", "/signin", sign_in.sign_in),
    Route("POST", "/signout", sign_in.sign_out),
    Route("GET", "/static/{name}", static_files.static_file),
    Route("GET", "/alive", static_files.alive),
)
