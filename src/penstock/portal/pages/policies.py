"""Shared access policies of a namespace or a hub: rights, keys on demand, tokens, snippets."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from string import Template
from urllib.parse import quote

from starlette.responses import Response

from penstock.auth.sas import sign
from penstock.client import parse_connection_string
from penstock.formats.quantities import format_moment
from penstock.management.client import ManagementClient
from penstock.management.permissions import AdminRole
from penstock.management.resources import AccessKeys, AuthorizationRuleResource
from penstock.model import names
from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError
from penstock.portal import components as ui
from penstock.portal.html import Html, el
from penstock.portal.layout import page
from penstock.portal.page_request import ActionCompleted, PageRequest

RIGHTS = ("Send", "Listen", "Manage")
_SNIPPETS = Path(__file__).parents[1] / "snippets"
_ANY_HUB = "YOUR-EVENT-HUB"  # in snippets
_LIVES = {"1": "1 hour", "24": "1 day", "168": "1 week", "720": "30 days", "8760": "1 year"}


async def policy_list(
    visit: PageRequest, keys: AccessKeys | None = None, token: Html | None = None
) -> Response:
    """With the keys of one policy, or a new token."""
    namespace, hub = visit.namespace, visit.words.get("hub")
    rules = await visit.backend.read(ManagementClient.rules, namespace, hub)
    scope = f"Of the namespace {namespace}; an event hub has its own beside them."
    none = "This event hub has no policies of its own; the namespace's apply."
    forms = None
    if visit.may(AdminRole.ADMIN):
        token_form = _token_form(visit, [rule.name for rule in rules]) if rules else None
        forms = el("div", _create_form(visit), token_form, class_="columns")
    return await page(
        visit,
        el("p", scope) if hub is None else None,
        token,
        *(_rule_card(visit, rule, keys) for rule in rules),
        None if rules else el("p", none, class_="empty"),
        forms,
    )


def _rule_card(
    visit: PageRequest, rule: AuthorizationRuleResource, keys: AccessKeys | None
) -> Html:
    badges = [ui.badge(right, "good" if right != "Manage" else "warn") for right in rule.rights]
    rights = el("span", *badges, class_="row")
    content: Html | None = None
    if keys is not None and keys.key_name.casefold() == rule.name.casefold():
        content = _keys(visit, keys)
    elif visit.may(AdminRole.ADMIN):
        content = _acts(visit, rule)
    return ui.card(rule.name, content, aside=rights, id_=f"policy-{rule.name}")


def _acts(visit: PageRequest, rule: AuthorizationRuleResource) -> Html:
    link = partial(visit.hub_link, "policies", rule.name)
    note = el("small", "This look is written into the audit log.")
    button = ui.submit("Show connection strings")
    show = ui.form(visit, link("keys"), button, note, class_="inline")
    if rule.name == names.ROOT_RULE and "hub" not in visit.words:
        return show
    rights = ui.form(visit, link("rights"), _rights(rule.rights), ui.submit("Save rights"))
    loss = "Clients that use it are cut off at once."
    delete = ui.delete_box(visit, link("delete"), "policy", rule.name, loss)
    return el("div", show, el("details", el("summary", "Change its rights…"), rights), delete)


def _keys(visit: PageRequest, keys: AccessKeys) -> Html:
    string, hub = keys.primary_connection_string, visit.words.get("hub", _ANY_HUB)
    shown = (
        ("Primary connection string", string),
        ("Secondary connection string", keys.secondary_connection_string),
        ("Primary key", keys.primary_key),
        ("Secondary key", keys.secondary_key),
    )
    to = visit.hub_link("policies", keys.key_name, "regenerate")
    renew = []
    for word in ("primary", "secondary"):
        which = ui.hidden("which", f"{word.capitalize()}Key")
        renew.append(ui.action_button(visit, to, f"Regenerate {word} key", which))
    return el(
        "div",
        *((el("h3", title), ui.code(text)) for title, text in shown),
        el("div", *renew, class_="row"),
        el("h3", "Snippets"),
        *_snippets(visit, "connection_string.txt", string=string, hub=hub),
    )


def _snippets(visit: PageRequest, file: str, **values: str) -> list[Html]:
    """Ready programs for each SDK: a line `== LABEL` of the file begins one, `$name` is filled
    in."""
    if ca_file := visit.portal.settings.ca_file:
        values |= {
            "python_ca": f', connection_verify="{ca_file}"',
            "javascript_ca": f"// NODE_EXTRA_CA_CERTS={ca_file} node send.mjs\n",
            "spark_ca": f'\n    .option("tls.caFile", "{ca_file}")',
            "curl_ca": f" --cacert {ca_file}",
        }
    _, *parts = re.split(r"^== (.+)\n", (_SNIPPETS / file).read_text(), flags=re.MULTILINE)
    filled = defaultdict(str, values)  # without a CA file its parts are empty
    return [
        _snippet(label, Template(text).substitute(filled))
        for label, text in zip(parts[::2], parts[1::2], strict=True)
    ]


def _snippet(label: str, text: str) -> Html:
    return el("details", el("summary", label), ui.code(text))


def _rights(chosen: list[str]) -> Html:
    labels = [
        el("label", ui.checkbox(f"right_{right}", right in chosen), right) for right in RIGHTS
    ]
    note = el("small", "Manage includes Send and Listen.")
    return el("fieldset", el("legend", "Rights"), *labels, note)


def _create_form(visit: PageRequest) -> Html:
    fields = (ui.name_field(visit, maxlength=50), _rights(["Listen"]), ui.submit("Create policy"))
    form = ui.form(visit, visit.hub_link("policies"), *fields)
    return ui.card("Create a policy", form, id_="create")


def _token_form(visit: PageRequest, rules: list[str]) -> Html:
    policies = {rule: rule for rule in rules}
    hub_field = ui.field(visit, "Event hub", "hub", help_="empty: the whole namespace")
    if "hub" in visit.words:
        hub_field = ui.hidden("hub", visit.words["hub"])
    publisher_help = "optional: it may publish under this name alone"
    token = ui.form(
        visit,
        visit.hub_link("policies", "-", "token"),
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
    hub, rights = visit.words.get("hub"), _selected_rights(visit)
    await visit.act(lambda client: client.put_rule(visit.namespace, hub, name, rights))
    raise ActionCompleted(visit.hub_link("policies"), text)


async def delete(visit: PageRequest) -> Response:
    hub, name = visit.words.get("hub"), visit.words["rule"]
    visit.check_typed(name)
    await visit.act(lambda client: client.delete_rule(visit.namespace, hub, name))
    raise ActionCompleted(visit.hub_link("policies"), f"The policy '{name}' is deleted.")


async def show_keys(visit: PageRequest) -> Response:
    """Show the keys in the response itself: no URL, cookie or session contains them."""
    return await policy_list(visit, await _read_keys(visit, visit.words["rule"]))


async def _read_keys(visit: PageRequest, name: str) -> AccessKeys:
    hub = visit.words.get("hub")
    return await visit.act(lambda client: client.keys(visit.namespace, hub, name))


async def regenerate(visit: PageRequest) -> Response:
    hub, name, which = visit.words.get("hub"), visit.words["rule"], visit.form.get("which", "")
    keys = await visit.act(lambda client: client.regenerate(visit.namespace, hub, name, which))
    return await policy_list(visit, keys)


async def make_token(visit: PageRequest) -> Response:
    """Signed with the policy's primary key, which only administrators may look at."""
    hub, publisher = visit.text("hub"), visit.text("publisher")
    hours = visit.form.get("hours", "1")
    if hours not in _LIVES:
        raise ArgumentError("A token is good for 1 hour to 1 year.")
    if publisher and not hub:
        raise ArgumentError("A publisher is one of an event hub: name the hub too.")
    if publisher:
        names.publisher_name(publisher)
    if hub:
        await visit.hub(hub)
    keys = await _read_keys(visit, visit.form.get("policy", ""))
    host = parse_connection_string(keys.primary_connection_string).host
    resource = f"sb://{host}/{quote(hub, safe='/')}"
    path = hub or _ANY_HUB
    if publisher:
        resource += f"/publishers/{quote(publisher, safe='')}"
        path += f"/publishers/{publisher}"
    expires_s = visit.portal.clock.now_ms() // 1000 + int(hours) * 3600
    token = sign(resource, keys.key_name, Secret(keys.primary_key), expires_s=expires_s)
    endpoint = keys.primary_connection_string.partition(";")[0]
    string = f"{endpoint};SharedAccessSignature={token}"
    url = f"{visit.portal.settings.https_url or f'https://{host}:8443'}/{path}"
    values = {"string": string, "hub": hub or _ANY_HUB, "token": token, "url": url}
    until = format_moment(expires_s * 1000)
    card = ui.card(
        "Token",
        ui.code(token),
        ui.facts(("For", resource), ("Policy", keys.key_name), ("Good until (UTC)", until)),
        *_snippets(visit, "token.txt", **values),
        _snippet("Connection string", string),
        id_="made-token",
    )
    return await policy_list(visit, token=card)
