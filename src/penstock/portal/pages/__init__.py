"""The pages, and where each is found."""

from __future__ import annotations

from penstock.management.permissions import AdminRole
from penstock.portal import responses, sign_in
from penstock.portal.page_request import PageRoute
from penstock.portal.pages import (
    audit,
    capture,
    connections,
    events,
    groups,
    health,
    hubs,
    jobs,
    namespaces,
    overview,
    policies,
    scale,
    search,
    send,
)


def _policy_routes(scope: str) -> tuple[PageRoute, ...]:
    prefix = f"{scope}/policies"
    rule = prefix + "/{rule}"
    return (
        PageRoute("GET", prefix, policies.policy_list),
        PageRoute("POST", prefix, policies.create, AdminRole.ADMIN),
        PageRoute("GET", f"{scope}/new-policy", policies.new_policy, AdminRole.ADMIN),
        PageRoute("GET", f"{scope}/new-token", policies.new_token, AdminRole.ADMIN),
        PageRoute("POST", f"{prefix}/-/token", policies.make_token, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/keys", policies.show_keys, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/regenerate", policies.regenerate, AdminRole.ADMIN),
        PageRoute("GET", f"{rule}/rights", policies.edit_rights, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/rights", policies.change, AdminRole.ADMIN),
        PageRoute("GET", f"{rule}/delete", policies.confirm_delete, AdminRole.ADMIN),
        PageRoute("POST", f"{rule}/delete", policies.delete, AdminRole.ADMIN),
    )


_CLOSE_CONNECTION = "/connections/{connection}/close"
_GROUP, _EVENT = "/hubs/{hub}/groups/{group}", "/hubs/{hub}/events/{partition}/{number}"
ROUTES: tuple[PageRoute, ...] = (
    PageRoute("GET", "/", overview.overview),
    PageRoute("GET", "/namespaces", namespaces.namespace_list),
    PageRoute("GET", "/new-namespace", namespaces.new_namespace, AdminRole.ADMIN),
    PageRoute("POST", "/namespaces", namespaces.create, AdminRole.ADMIN),
    PageRoute("GET", "/namespaces/delete", namespaces.confirm_delete, AdminRole.ADMIN),
    PageRoute("POST", "/namespaces/delete", namespaces.delete, AdminRole.ADMIN),
    PageRoute("GET", "/hubs", hubs.hub_list),
    PageRoute("GET", "/new-hub", hubs.new_hub, AdminRole.OPERATOR),
    PageRoute("POST", "/hubs", hubs.create, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}", hubs.hub_page),
    PageRoute("POST", "/hubs/{hub}/edit", hubs.edit, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}/delete", hubs.confirm_delete, AdminRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/delete", hubs.delete, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}/events", events.explorer),
    PageRoute("GET", "/hubs/{hub}/events/stream", events.stream),
    PageRoute("GET", "/hubs/{hub}/events/download", events.download),
    PageRoute("GET", _EVENT, events.event_page),
    PageRoute("GET", f"{_EVENT}/body", events.event_body),
    PageRoute("GET", "/hubs/{hub}/send", send.send_page, AdminRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/send", send.send, AdminRole.OPERATOR),
    PageRoute("GET", "/hubs/{hub}/groups", groups.group_list),
    PageRoute("GET", "/hubs/{hub}/new-group", groups.new_group, AdminRole.OPERATOR),
    PageRoute("POST", "/hubs/{hub}/groups", groups.create, AdminRole.OPERATOR),
    PageRoute("GET", f"{_GROUP}/delete", groups.confirm_delete, AdminRole.OPERATOR),
    PageRoute("POST", f"{_GROUP}/delete", groups.delete, AdminRole.OPERATOR),
    PageRoute("GET", f"{_GROUP}/seek", groups.move, AdminRole.OPERATOR),
    PageRoute("POST", f"{_GROUP}/seek", groups.seek, AdminRole.OPERATOR),
    *_policy_routes(""),
    *_policy_routes("/hubs/{hub}"),
    PageRoute("GET", "/scale", scale.scale),
    PageRoute("POST", "/scale", scale.save, AdminRole.OPERATOR),
    PageRoute("POST", "/scale/grant", scale.grant, AdminRole.ADMIN),
    PageRoute("POST", "/scale/withdraw", scale.withdraw, AdminRole.ADMIN),
    PageRoute("GET", "/capture", capture.capture_list),
    PageRoute("GET", "/hubs/{hub}/capture", capture.hub_capture),
    PageRoute("POST", "/hubs/{hub}/capture", capture.save, AdminRole.OPERATOR),
    PageRoute("GET", "/jobs", jobs.jobs),
    PageRoute("GET", "/connections", connections.connections),
    PageRoute("POST", _CLOSE_CONNECTION, connections.close_connection, AdminRole.OPERATOR),
    PageRoute("GET", "/audit", audit.audit, AdminRole.OPERATOR),
    PageRoute("GET", "/health", health.health),
    PageRoute("GET", "/search", search.search),
)
# These need no session.
PUBLIC: tuple[PageRoute, ...] = (
    PageRoute("GET", "/signin", sign_in.open_sign_in, AdminRole.NOBODY),
    PageRoute("POST", "/signin", sign_in.sign_in, AdminRole.NOBODY),
    PageRoute("POST", "/signout", sign_in.sign_out, AdminRole.NOBODY),
    PageRoute("GET", "/static/{name}", responses.static_file, AdminRole.NOBODY),
    PageRoute("GET", "/alive", responses.health, AdminRole.NOBODY),
)
