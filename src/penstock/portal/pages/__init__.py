"""The pages, and where each is found."""

from __future__ import annotations

from penstock.portal import signin, static_files
from penstock.portal.pages import (
    capture,
    events,
    groups,
    hubs,
    namespaces,
    overview,
    policies,
    running,
    scale,
    sending,
)
from penstock.portal.web import Route

ROUTES: tuple[Route, ...] = (
    *overview.ROUTES,
    *namespaces.ROUTES,
    *hubs.ROUTES,
    *events.ROUTES,
    *sending.ROUTES,
    *groups.ROUTES,
    *policies.ROUTES,
    *scale.ROUTES,
    *capture.ROUTES,
    *running.ROUTES,
)

# What strangers may see.
PUBLIC: tuple[Route, ...] = (
    Route("GET", "/signin", signin.open_sign_in),
    Route("POST", "/signin", signin.sign_in),
    Route("POST", "/signout", signin.sign_out),
    Route("GET", "/static/{name}", static_files.static_file),
    Route("GET", "/alive", static_files.alive),
)
