"""The pages, and where each is found."""

from __future__ import annotations

from penstock.management.permissions import AdminRole
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


def _policy_routes(prefix: str) -> tuple[PageRoute, ...]:
    rule = prefix + "/{rule}"
    return (
        PageRoute("GET", prefix, policies.policy_list),
        PageRoute("POST", prefix, policies.create, AdminRole.ADMIN),
        PageRoute("POST", f"{prefix}/-/token", policies.make_token, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/keys", policies.show_keys, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/regenerate", policies.regenerate, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/rights", policies.change, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/delete", policies.delete, AdminRole.ADMIN),
    )


_CLOSE_CONNECTION = "/connections/{connection}/close"
_GROUP, _EVENT = "/hubs/{hub}/groups/{group}", "/hubs/{hub}/events/{partition}/{number}"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("GET", "/", overview.overview),
    PageRoute("GET", "/namespaces", namespaces.namespace_list),
    PageRoute("POST", "/namespaces", namespaces.create, AdminRole.ADMIN),
    PageRoute("POST", "/namespaces/delete", namespaces.delete, AdminRole.ADMIN),
    PageRoute("GET", "/hubs", hubs.hub_list),
    PageRoute("POST", "/hubs", hubs.create, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}", hubs.hub_page),
    PageRoute("POST", "/hubs/{hub}/edit", hubs.edit, AdminRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/delete", hubs.delete, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}/events", events.explorer),
    PageRoute("GET", "/hubs/{hub}/events/stream", events.stream),
    PageRoute("GET", "/hubs/{hub}/events/download", events.download),
    PageRoute("GET", _EVENT, events.event_page),
    PageRoute("GET", f"{_EVENT}/body", events.event_body),
    PageRoute("GET", "/hubs/{hub}/send", send.send_page, AdminRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/send", send.send, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}/groups", groups.group_list),
    PageRoute("POST", "/hubs/{hub}/groups", groups.create, AdminRole.OPERATOR),
    PageRoute("POST", f"{_GROUP}/delete", groups.delete, AdminRole.OPERATOR),
    PageRoute("POST", f"{_GROUP}/seek", groups.seek, AdminRole.OPERATOR),
    *_policy_routes("/policies"),
    *_policy_routes("/hubs/{hub}/policies"),
    PageRoute("GET", "/scale", scale.scale),
    PageRoute("POST", "/scale", scale.save, AdminRole.OPERATOR),
    PageRoute("POST", "/scale/grant", scale.grant, AdminRole.ADMIN),
    PageRoute("POST", "/scale/withdraw", scale.withdraw, AdminRole.ADMIN),
    PageRoute("GET", "/capture", capture.capture_list),
    PageRoute("GET", "/hubs/{hub}/capture", capture.hub_capture),
    PageRoute("POST", "/hubs/{hub}/capture", capture.save, AdminRole.OPERATOR),
    PageRoute("GET", "/jobs", activity.jobs),
    PageRoute("GET", "/connections", activity.connections),
    PageRoute("POST", _CLOSE_CONNECTION, activity.close_connection, AdminRole.OPERATOR),
    PageRoute("GET", "/audit", activity.audit, AdminRole.OPERATOR),
    PageRoute("GET", "/health", activity.health),
)
# These need no session.
PUBLIC: tuple[PageRoute, ...] = (
    PageRoute("GET", "/signin", sign_in.open_sign_in, AdminRole.NOBODY),
    PageRoute("POST", "/signin", sign_in.sign_in, AdminRole.NOBODY),
    PageRoute("POST", "/signout", sign_in.sign_out, AdminRole.NOBODY),
    PageRoute("GET", "/static/{name}", responses.static_file, AdminRole.NOBODY),
    PageRoute("GET", "/alive", responses.health, AdminRole.NOBODY),
)
