"""Shared access policies of a namespace or a hub: rights, keys on demand, tokens, snippets."""

from __future__ import annotations

import re
from collections import defaultdict
from pathlib import Path
from string import Template
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from penstock.auth.sas import sign
from penstock.client import parse_connection_string
from penstock.formats.quantities import format_moment
from penstock.management.client import ManagementClient
from penstock.management.resources import AccessKeys, AuthorizationRuleResource
from penstock.model import names
from penstock.model.entities import Secret
from penstock.model.errors import ArgumentError, NotFound
from penstock.portal.page_request import ActionCompleted, PageRequest
from penstock.portal.shell import page

RIGHTS = ("Send", "Listen", "Manage")
_SNIPPETS = Path(__file__).parents[1] / "snippets"
_ANY_HUB = "YOUR-EVENT-HUB"  # in snippets
_LIVES = {"1": "1 hour", "24": "1 day", "168": "1 week", "720": "30 days", "8760": "1 year"}


class Snippet(msgspec.Struct, frozen=True):
    label: str
    text: str


class PolicyKeys(msgspec.Struct, frozen=True):
    """What a policy's row shows once, after its keys were asked for."""

    policy: str
    texts: list[Snippet]
    snippets: list[Snippet]


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    token: str
    facts: list[tuple[str, str]]
    snippets: list[Snippet]


async def policy_list(
    visit: PageRequest, keys: PolicyKeys | None = None, token: NewToken | None = None
) -> Response:
    """With the keys of one policy, or a new token."""
    hub = visit.words.get("hub")
    rules = await visit.backend.read(ManagementClient.rules, visit.namespace, hub)
    return await page(
        visit,
        "policies.html",
        rules=rules,
        keys=keys,
        token=token,
        root=names.ROOT_RULE if hub is None else None,
    )


async def new_policy(visit: PageRequest) -> Response:
    return await page(visit, "policy_new.html", rights=RIGHTS, chosen=["Listen"])


async def new_token(visit: PageRequest) -> Response:
    rules = await visit.backend.read(
        ManagementClient.rules, visit.namespace, visit.words.get("hub")
    )
    return await page(visit, "token_new.html", rules=[rule.name for rule in rules], lives=_LIVES)


async def edit_rights(visit: PageRequest) -> Response:
    rule = await _find_rule(visit)
    return await page(visit, "policy_rights.html", rule=rule, rights=RIGHTS, chosen=rule.rights)


async def confirm_delete(visit: PageRequest) -> Response:
    return await page(visit, "policy_delete.html", rule=await _find_rule(visit))


async def _find_rule(visit: PageRequest) -> AuthorizationRuleResource:
    name, hub = visit.words["rule"], visit.words.get("hub")
    for rule in await visit.backend.read(ManagementClient.rules, visit.namespace, hub):
        if rule.name.casefold() == name.casefold():
            return rule
    raise NotFound(f"There is no policy '{name}' here.")


def _policy_keys(visit: PageRequest, keys: AccessKeys) -> PolicyKeys:
    string, hub = keys.primary_connection_string, visit.words.get("hub", _ANY_HUB)
    texts = [
        Snippet("Primary connection string", string),
        Snippet("Secondary connection string", keys.secondary_connection_string),
        Snippet("Primary key", keys.primary_key),
        Snippet("Secondary key", keys.secondary_key),
    ]
    snippets = _snippets(visit, "connection_string.txt", string=string, hub=hub)
    return PolicyKeys(keys.key_name, texts, snippets)


def _snippets(visit: PageRequest, file: str, **values: str) -> list[Snippet]:
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
        Snippet(label, Template(text).substitute(filled))
        for label, text in zip(parts[::2], parts[1::2], strict=True)
    ]


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
    keys = await _read_keys(visit, visit.words["rule"])
    return await policy_list(visit, _policy_keys(visit, keys))


async def _read_keys(visit: PageRequest, name: str) -> AccessKeys:
    hub = visit.words.get("hub")
    return await visit.act(lambda client: client.keys(visit.namespace, hub, name))


async def regenerate(visit: PageRequest) -> Response:
    hub, name, which = visit.words.get("hub"), visit.words["rule"], visit.form.get("which", "")
    keys = await visit.act(lambda client: client.regenerate(visit.namespace, hub, name, which))
    return await policy_list(visit, _policy_keys(visit, keys))


async def make_token(visit: PageRequest) -> Response:
    """Signed with the policy's primary key, which only administrators may look at."""
    hub, publisher = visit.text("hub"), visit.text("publisher")
    hours = visit.form.get("hours", "1")
    if hours not in _LIVES:
        raise ArgumentError("A token is valid for 1 hour to 1 year.")
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
    shown = NewToken(
        token=token,
        facts=[("For", resource), ("Policy", keys.key_name), ("Valid until (UTC)", until)],
        snippets=[
            *_snippets(visit, "token.txt", **values),
            Snippet("Connection string", string),
        ],
    )
    return await policy_list(visit, token=shown)
