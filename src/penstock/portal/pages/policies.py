"""Shared access policies of a namespace or a hub: rights, keys on demand, tokens, snippets."""

from __future__ import annotations

from urllib.parse import quote

from starlette.responses import Response

from penstock.auth.sas import sign
from penstock.client import parse_connection_string
from penstock.formats.quantities import format_moment
from penstock.management.resources import AccessKeys, AuthorizationRuleResource
from penstock.model import names
from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal import sdk_snippets
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest, PageRoute
from penstock.portal.users import PortalRole

RIGHTS = ("Send", "Listen", "Manage")
_ANY_HUB = "YOUR-EVENT-HUB"  # in snippets
_LIVES = {"1": "1 hour", "24": "1 day", "168": "1 week", "720": "30 days", "8760": "1 year"}


async def policy_list(
    visit: PageRequest, keys: AccessKeys | None = None, token: Html | None = None
) -> Response:
    """With the keys of one policy, or a new token."""
    namespace, hub = visit.namespace, _hub_in_path(visit)
    rules = await visit.backend.get_shared(
        ("rules", namespace, hub), lambda client: client.rules(namespace, hub)
    )
    scope = f"Of the namespace {namespace}; an event hub has its own beside them."
    none = "This event hub has no policies of its own; the namespace's apply."
    forms = None
    if visit.may(PortalRole.ADMIN):
        token_form = _token_form(visit, hub, [rule.name for rule in rules]) if rules else None
        forms = el("div", _create_form(visit), token_form, class_="columns")
    return await page(
        visit,
        "Access policies",
        el("p", scope) if hub is None else None,
        token,
        *(_rule_card(visit, rule, keys) for rule in rules),
        None if rules else el("p", none, class_="empty"),
        forms,
        active="policies",
        hub=hub,
        tab="policies",
    )


def _hub_in_path(visit: PageRequest) -> str | None:
    return visit.words.get("hub")


def _link(visit: PageRequest, *segments: str) -> str:
    hub = _hub_in_path(visit)
    base = ("policies",) if hub is None else ("hubs", hub, "policies")
    return visit.link(*base, *segments)


def _rule_card(
    visit: PageRequest, rule: AuthorizationRuleResource, keys: AccessKeys | None
) -> Html:
    rights = [ui.badge(right, "good" if right != "Manage" else "warn") for right in rule.rights]
    shown: Html | None = None
    if visit.may(PortalRole.ADMIN):
        is_open = keys is not None and keys.key_name.casefold() == rule.name.casefold()
        shown = _keys(visit, keys) if is_open and keys is not None else _acts(visit, rule)
    return ui.card(
        rule.name, shown, aside=el("span", *rights, class_="row"), id_=f"policy-{rule.name}"
    )


def _acts(visit: PageRequest, rule: AuthorizationRuleResource) -> Html:
    show = ui.form(
        visit,
        _link(visit, rule.name, "keys"),
        ui.submit("Show connection strings"),
        el("small", "This look is written into the audit log."),
        class_="inline",
    )
    if rule.name == names.ROOT_RULE and _hub_in_path(visit) is None:
        return show
    to, loss = _link(visit, rule.name, "delete"), "Clients that use it are cut off at once."
    rights = (_link(visit, rule.name, "rights"), _rights(rule.rights), ui.submit("Save rights"))
    return el(
        "div",
        show,
        el("details", el("summary", "Change its rights…"), ui.form(visit, *rights)),
        ui.delete_box(visit, to, "policy", rule.name, loss),
    )


def _keys(visit: PageRequest, keys: AccessKeys) -> Html:
    to, string = _link(visit, keys.key_name, "regenerate"), keys.primary_connection_string
    hub, ca_file = _hub_in_path(visit) or _ANY_HUB, visit.portal.settings.ca_file or ""
    shown = (
        ("Primary connection string", string),
        ("Secondary connection string", keys.secondary_connection_string),
        ("Primary key", keys.primary_key),
        ("Secondary key", keys.secondary_key),
    )
    renew = [
        ui.action_button(
            visit, to, f"Regenerate {word.lower()} key", ui.hidden("which", f"{word}Key")
        )
        for word in ("Primary", "Secondary")
    ]
    return el(
        "div",
        *((el("h3", title), ui.code(text)) for title, text in shown),
        el("div", *renew, class_="row"),
        el("h3", "Snippets"),
        *_snippets(sdk_snippets.with_connection_string(string, hub, ca_file)),
    )


def _snippets(snippets: sdk_snippets.Snippets) -> list[Html]:
    return [el("details", el("summary", label), ui.code(text)) for label, text in snippets]


def _rights(chosen: list[str]) -> Html:
    boxes = [
        el("input", type="checkbox", name=f"right_{right}", value="yes", checked=right in chosen)
        for right in RIGHTS
    ]
    return el(
        "fieldset",
        el("legend", "Rights"),
        *(el("label", box, right) for box, right in zip(boxes, RIGHTS, strict=True)),
        el("small", "Manage includes Send and Listen."),
    )


def _create_form(visit: PageRequest) -> Html:
    fields = (ui.name_field(visit, maxlength=50), _rights(["Listen"]), ui.submit("Create policy"))
    return ui.card("Create a policy", ui.form(visit, _link(visit), *fields), id_="create")


def _token_form(visit: PageRequest, hub: str | None, rules: list[str]) -> Html:
    policies = {rule: rule for rule in rules}
    hub_field = ui.hidden("hub", hub)
    if hub is None:
        hub_field = ui.field(visit, "Event hub", "hub", help_="empty: the whole namespace")
    publisher_help = "optional: it may publish under this name alone"
    token = ui.form(
        visit,
        _link(visit, "-", "token"),
        ui.select(visit, "Signed by the policy", "policy", policies, wide=True),
        hub_field,
        ui.field(visit, "Publisher", "publisher", help_=publisher_help),
        ui.select(visit, "Good for", "hours", _LIVES, "1"),
        ui.submit("Make token"),
    )
    return ui.card("Make a token (SAS)", token, id_="token")


# --- acts -----------------------------------------------------------------------------------------


def _selected_rights(visit: PageRequest) -> list[str]:
    rights = [right for right in RIGHTS if visit.form.get(f"right_{right}") == "yes"]
    if not rights:
        raise ArgumentError("A policy has at least one right: Send, Listen or Manage.")
    return list(RIGHTS) if "Manage" in rights else rights


async def create(visit: PageRequest) -> Response:
    name = visit.text("name")
    return await _put_rule(visit, name, f"The policy '{name}' is created.")


async def change(visit: PageRequest) -> Response:
    name = visit.words["rule"]
    return await _put_rule(visit, name, f"The rights of '{name}' are saved.")


async def _put_rule(visit: PageRequest, name: str, text: str) -> Response:
    hub, rights = _hub_in_path(visit), _selected_rights(visit)
    await visit.act(lambda client: client.put_rule(visit.namespace, hub, name, rights))
    raise ActionCompleted(_link(visit), text)


async def delete(visit: PageRequest) -> Response:
    hub, name = _hub_in_path(visit), visit.words["rule"]
    visit.check_typed(name)
    await visit.act(lambda client: client.delete_rule(visit.namespace, hub, name))
    raise ActionCompleted(_link(visit), f"The policy '{name}' is deleted.")


async def show_keys(visit: PageRequest) -> Response:
    """Show the keys in the response itself: no URL, cookie or session contains them."""
    return await policy_list(visit, await _read_keys(visit, visit.words["rule"]))


async def _read_keys(visit: PageRequest, name: str) -> AccessKeys:
    hub = _hub_in_path(visit)
    return await visit.backend.ask(
        visit.session, lambda client: client.keys(visit.namespace, hub, name)
    )


async def regenerate(visit: PageRequest) -> Response:
    hub, name, which = _hub_in_path(visit), visit.words["rule"], visit.form.get("which", "")
    keys = await visit.act(lambda client: client.regenerate(visit.namespace, hub, name, which))
    return await policy_list(visit, keys)


async def make_token(visit: PageRequest) -> Response:
    """Signed with the policy's primary key, which only administrators may look at."""
    hub, publisher = visit.text("hub") or None, visit.text("publisher") or None
    hours = visit.form.get("hours", "1")
    if hours not in _LIVES:
        raise ArgumentError("A token is good for 1 hour to 1 year.")
    if publisher is not None and hub is None:
        raise ArgumentError("A publisher is one of an event hub: name the hub too.")
    if publisher is not None:
        names.publisher_name(publisher)
    if hub is not None:
        await visit.backend.hub(visit.namespace, hub)
    keys = await _read_keys(visit, visit.form.get("policy", ""))
    endpoint = parse_connection_string(keys.primary_connection_string)
    parts = [quote(hub, safe="/")] if hub else []
    if publisher:
        parts += ["publishers", quote(publisher, safe="")]
    resource = f"sb://{endpoint.host}/{'/'.join(parts)}"
    expires_s = visit.portal.clock.now_ms() // 1000 + int(hours) * 3600
    token = sign(resource, keys.key_name, Secret(keys.primary_key), expires_s=expires_s)
    snippets = sdk_snippets.with_token(
        token,
        endpoint=keys.primary_connection_string.partition(";")[0],
        https=visit.portal.settings.https_url or f"https://{endpoint.host}:8443",
        hub=hub or _ANY_HUB,
        publisher=publisher,
        ca_file=visit.portal.settings.ca_file or "",
    )
    until = format_moment(expires_s * 1000)
    about = ui.facts([("For", resource), ("Policy", keys.key_name), ("Good until (UTC)", until)])
    shown = ui.card("Token", ui.code(token), about, *_snippets(snippets), id_="made-token")
    return await policy_list(visit, token=shown)


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
