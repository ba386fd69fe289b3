"""Shared access policies of a namespace or a hub: rights, keys on demand, tokens, snippets."""

from __future__ import annotations

import base64
import hashlib
import hmac
from urllib.parse import quote

from starlette.responses import Response

from penstock.client import parse_connection_string
from penstock.formats.quantities import format_moment
from penstock.management.client import AccessKeys, AuthorizationRuleResource
from penstock.model import names
from penstock.model.errors import ArgumentError
from penstock.portal import sdk_snippets
from penstock.portal.components import (
    badge,
    card,
    code,
    delete_box,
    facts,
    field,
    form,
    select,
    submit,
)
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.users import PortalRole

RIGHTS = ("Send", "Listen", "Manage")
ROOT = "RootManageSharedAccessKey"
_LIVES = {"1": "1 hour", "24": "1 day", "168": "1 week", "720": "30 days", "8760": "1 year"}


async def policy_list(visit: PageRequest) -> Response:
    return await _policy_page(visit, _hub_in_path(visit))


def _hub_in_path(visit: PageRequest) -> str | None:
    return visit.words.get("hub")


def _base(hub: str | None) -> tuple[str, ...]:
    return ("policies",) if hub is None else ("hubs", hub, "policies")


async def _policy_page(
    visit: PageRequest, hub: str | None, *, keys: AccessKeys | None = None, made: Html | None = None
) -> Response:
    namespace = visit.namespace
    rules = await visit.backend.get_shared(
        ("rules", namespace, hub), lambda client: client.rules(namespace, hub)
    )
    title = "Access policies"
    return await page(
        visit,
        title,
        el("p", f"Of the namespace {namespace}; an event hub has its own beside them.")
        if hub is None
        else None,
        made,
        *(_rule_card(visit, hub, rule, keys) for rule in rules),
        el("p", "This event hub has no policies of its own; the namespace's apply.", class_="empty")
        if not rules
        else None,
        el(
            "div",
            _create_form(visit, hub),
            _token_form(visit, hub, [rule.name for rule in rules]),
            class_="columns",
        )
        if visit.may(PortalRole.ADMIN)
        else None,
        active="policies" if hub is None else "hubs",
        hub=hub,
        tab="policies",
    )


def _rule_card(
    visit: PageRequest, hub: str | None, rule: AuthorizationRuleResource, keys: AccessKeys | None
) -> Html:
    rights = [badge(right, "good" if right != "Manage" else "warn") for right in rule.rights]
    shown: Html | None = None
    if visit.may(PortalRole.ADMIN):
        is_open = keys is not None and keys.key_name.casefold() == rule.name.casefold()
        shown = _keys(visit, hub, keys) if is_open and keys is not None else _acts(visit, hub, rule)
    return card(
        rule.name, shown, aside=el("span", *rights, class_="row"), id_=f"policy-{rule.name}"
    )


def _acts(visit: PageRequest, hub: str | None, rule: AuthorizationRuleResource) -> Html:
    base = (*_base(hub), rule.name)
    show = form(
        visit,
        visit.link(*base, "keys"),
        submit("Show connection strings"),
        el("small", "This look is written into the audit log."),
        class_="inline",
    )
    if rule.name == ROOT and hub is None:
        return show
    return el(
        "div",
        show,
        el(
            "details",
            el("summary", "Change its rights…"),
            form(visit, visit.link(*base, "rights"), _rights(rule.rights), submit("Save rights")),
        ),
        delete_box(
            visit,
            visit.link(*base, "delete"),
            "policy",
            rule.name,
            "Clients that use it are cut off at once.",
        ),
    )


def _keys(visit: PageRequest, hub: str | None, keys: AccessKeys) -> Html:
    base = (*_base(hub), keys.key_name)
    string = keys.primary_connection_string
    event_hub = hub or "YOUR-EVENT-HUB"
    renew = [
        form(
            visit,
            visit.link(*base, "regenerate"),
            el("input", type="hidden", name="which", value=which),
            el("button", f"Regenerate {label} key", type="submit", class_="danger small"),
            class_="inline",
        )
        for which, label in (("PrimaryKey", "primary"), ("SecondaryKey", "secondary"))
    ]
    ca_file = visit.portal.settings.ca_file or ""
    return el(
        "div",
        el("h3", "Primary connection string"),
        code(string),
        el("h3", "Secondary connection string"),
        code(keys.secondary_connection_string),
        el("h3", "Primary key"),
        code(keys.primary_key),
        el("h3", "Secondary key"),
        code(keys.secondary_key),
        el("div", *renew, class_="row"),
        el("h3", "Snippets"),
        *(
            el("details", el("summary", label), code(text))
            for label, text in sdk_snippets.with_connection_string(string, event_hub, ca_file)
        ),
    )


def _rights(chosen: list[str]) -> Html:
    return el(
        "fieldset",
        el("legend", "Rights"),
        *(
            el(
                "label",
                el(
                    "input",
                    type="checkbox",
                    name=f"right_{right}",
                    value="yes",
                    checked=right in chosen,
                ),
                right,
            )
            for right in RIGHTS
        ),
        el("small", "Manage includes Send and Listen."),
    )


def _create_form(visit: PageRequest, hub: str | None) -> Html:
    return card(
        "Create a policy",
        form(
            visit,
            visit.link(*_base(hub)),
            field(
                "Name",
                "name",
                visit.form_value("name"),
                required=True,
                maxlength=50,
                autocomplete="off",
            ),
            _rights(["Listen"]),
            submit("Create policy"),
        ),
        id_="create",
    )


def _token_form(visit: PageRequest, hub: str | None, rules: list[str]) -> Html | None:
    if not rules:
        return None
    return card(
        "Make a token (SAS)",
        form(
            visit,
            visit.link(*_base(hub), "-", "token"),
            select(
                "Signed by the policy",
                "policy",
                {rule: rule for rule in rules},
                visit.form_value("policy"),
                wide=True,
            ),
            field(
                "Event hub",
                "hub",
                hub or visit.form_value("hub"),
                readonly=hub is not None,
                help_="empty: the whole namespace" if hub is None else "",
            )
            if hub is None
            else el("input", type="hidden", name="hub", value=hub),
            field(
                "Publisher",
                "publisher",
                visit.form_value("publisher"),
                help_="optional: it may publish under this name alone",
            ),
            select("Good for", "hours", _LIVES, visit.form_value("hours", "1")),
            submit("Make token"),
        ),
        id_="token",
    )


# --- acts -----------------------------------------------------------------------------------------


def _selected_rights(visit: PageRequest) -> list[str]:
    rights = [right for right in RIGHTS if visit.form.get(f"right_{right}") == "yes"]
    if not rights:
        raise ArgumentError("A policy has at least one right: Send, Listen or Manage.")
    return list(RIGHTS) if "Manage" in rights else rights


async def create(visit: PageRequest) -> Response:
    hub, name, rights = (
        _hub_in_path(visit),
        visit.form.get("name", "").strip(),
        _selected_rights(visit),
    )
    await visit.backend.act(
        visit.session, lambda client: client.put_rule(visit.namespace, hub, name, rights)
    )
    raise ActionCompleted(visit.link(*_base(hub)), f"The policy '{name}' is created.")


async def change(visit: PageRequest) -> Response:
    hub, name, rights = _hub_in_path(visit), visit.words["rule"], _selected_rights(visit)
    await visit.backend.act(
        visit.session, lambda client: client.put_rule(visit.namespace, hub, name, rights)
    )
    raise ActionCompleted(visit.link(*_base(hub)), f"The rights of '{name}' are saved.")


async def delete(visit: PageRequest) -> Response:
    hub, name = _hub_in_path(visit), visit.words["rule"]
    if visit.form.get("confirm") != name:
        raise ArgumentError(f"Type '{name}' to delete it: nothing was deleted.")
    await visit.backend.act(
        visit.session, lambda client: client.delete_rule(visit.namespace, hub, name)
    )
    raise ActionCompleted(visit.link(*_base(hub)), f"The policy '{name}' is deleted.")


async def show_keys(visit: PageRequest) -> Response:
    """The answer itself holds them: they lie in no address, cookie or memory of ours."""
    hub, name = _hub_in_path(visit), visit.words["rule"]
    keys = await visit.backend.ask(
        visit.session, lambda client: client.keys(visit.namespace, hub, name)
    )
    return await _policy_page(visit, hub, keys=keys)


async def regenerate(visit: PageRequest) -> Response:
    hub, name, which = _hub_in_path(visit), visit.words["rule"], visit.form.get("which", "")
    keys = await visit.backend.act(
        visit.session, lambda client: client.regenerate(visit.namespace, hub, name, which)
    )
    return await _policy_page(visit, hub, keys=keys)


async def make_token(visit: PageRequest) -> Response:
    """Signed with the policy's primary key, which only administrators may look at."""
    place, policy = _hub_in_path(visit), visit.form.get("policy", "")
    hub = visit.form.get("hub", "").strip() or None
    publisher = visit.form.get("publisher", "").strip() or None
    hours = visit.form.get("hours", "1")
    if hours not in _LIVES:
        raise ArgumentError("A token is good for 1 hour to 1 year.")
    if publisher is not None and hub is None:
        raise ArgumentError("A publisher is one of an event hub: name the hub too.")
    if publisher is not None:
        names.publisher_name(publisher)
    if hub is not None:
        await visit.backend.hub(visit.namespace, hub)
    keys = await visit.backend.ask(
        visit.session, lambda client: client.keys(visit.namespace, place, policy)
    )
    endpoint = parse_connection_string(keys.primary_connection_string)
    parts = [quote(hub, safe="/")] if hub else []
    if publisher:
        parts += ["publishers", quote(publisher, safe="")]
    resource = f"sb://{endpoint.host}/{'/'.join(parts)}"
    expires_s = visit.portal.clock.now_ms() // 1000 + int(hours) * 3600
    token = _sign_token(resource, keys.key_name, keys.primary_key, expires_s)
    https = visit.portal.settings.https_url or f"https://{endpoint.host}:8443"
    usable = sdk_snippets.with_token(
        token,
        endpoint=keys.primary_connection_string.partition(";")[0],
        host=endpoint.host,
        https=https,
        hub=hub or "YOUR-EVENT-HUB",
        publisher=publisher,
        ca_file=visit.portal.settings.ca_file or "",
    )
    made = card(
        "Token",
        code(token),
        facts(
            [
                ("For", resource),
                ("Policy", keys.key_name),
                ("Good until (UTC)", format_moment(expires_s * 1000)),
            ]
        ),
        *(el("details", el("summary", label), code(text)) for label, text in usable),
        id_="made-token",
    )
    return await _policy_page(visit, place, made=made)


def _sign_token(resource: str, key_name: str, key: str, expires_s: int) -> str:
    """As every Event Hubs client signs (HMAC-SHA256 over the address and the expiry)."""
    address = quote(resource, safe="")
    digest = hmac.digest(key.encode(), f"{address}\n{expires_s}".encode(), hashlib.sha256)
    signature = quote(base64.b64encode(digest), safe="")
    return (
        f"SharedAccessSignature sr={address}&sig={signature}&se={expires_s}"
        f"&skn={quote(key_name, safe='')}"
    )


def _routes(prefix: str) -> tuple[PageRoute, ...]:
    rule = prefix + "/{rule}"
    return (
        PageRoute("GET", prefix, policy_list),
        PageRoute("POST", prefix, create, PortalRole.ADMIN),
        PageRoute("POST", f"{prefix}/-/token", make_token, PortalRole.ADMIN),
        PageRoute("POST", f"{rule}/keys", show_keys, PortalRole.ADMIN),
        PageRoute("POST", f"{rule}/regenerate", regenerate, PortalRole.ADMIN),
        PageRoute("POST", f"{rule}/rights", change, PortalRole.ADMIN),
        PageRoute("POST", f"{rule}/delete", delete, PortalRole.ADMIN),
    )


ROUTES = (*_routes("/policies"), *_routes("/hubs/{hub}/policies"))
