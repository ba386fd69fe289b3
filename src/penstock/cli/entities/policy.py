"""`penstock policy ...` and `penstock token ...`: keys, connection strings and tokens."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Literal
from urllib.parse import quote

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.options import argument, option, parse_seconds
from penstock.cli.output import TABLE, Format, OutputFormat, print_message
from penstock.cli.service_options import (
    AdminSession,
    complete_hubs,
    complete_policies,
    with_service,
    with_whole_service,
)
from penstock.model.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from penstock.management.resources import AuthorizationRuleResource
    from penstock.model.connection_string import Endpoint

app = CommandGroup("Shared access policies, keys, connection strings.", with_service)
token_app = CommandGroup("SAS tokens and admin tokens.", with_whole_service)

_HIDDEN = "(hidden; --reveal shows it)"
_KEYS = (
    *("primary_key", "secondary_key"),
    *("primary_connection_string", "secondary_connection_string"),
)
_RIGHTS = {"listen": "Listen", "send": "Send", "manage": "Manage"}
_LONG_S = 7 * 86400


Name = Annotated[str, argument("POLICY", "Policy", autocompletion=complete_policies)]
Hub = Annotated[
    str | None,
    option(
        "HUB", "Policies of this event hub instead of the namespace", autocompletion=complete_hubs
    ),
]
Reveal = Annotated[bool, option("--reveal", "Show the keys")]


@app.verb()
def create(
    service: AdminSession,
    name: Annotated[str, argument("POLICY", "Name of the new policy")],
    rights: Annotated[
        list[str], option("--right -r RIGHT", "Right: listen, send or manage; repeatable")
    ],
    hub: Hub = None,
    reveal: Reveal = False,
    output: Format = TABLE,
) -> None:
    """Create a policy with two new keys.

    Examples:
        penstock policy create devices --right send --hub orders
        penstock policy create billing -r listen -r send --reveal
    """
    names = _parse_rights(rights)
    client, namespace = service.client, service.namespace
    if any(rule.name.casefold() == name.casefold() for rule in client.rules(namespace, hub)):
        raise AlreadyExists(f"The policy '{name}' exists already.")
    rule = client.put_rule(namespace, hub, name, names)
    may = " and ".join(right.lower() for right in rule.rights)
    print_message(f"Created the policy '{rule.name}' of {_describe(service, hub)}: it may {may}.")
    if output is not TABLE or reveal:
        output.print_record(_policy_record(service, hub, rule, reveal=reveal))


@app.verb("list")
def list_(
    service: AdminSession,
    hub: Hub = None,
    all_: Annotated[bool, option("--all -a", "Also those of every event hub")] = False,
    output: Format = TABLE,
) -> None:
    """List the policies of the namespace or of one event hub.

    Examples:
        penstock policy list
        penstock policy list --hub orders
    """
    client, namespace = service.client, service.namespace
    parents = [None, *(entity.name for entity in client.hubs(namespace))] if all_ else [hub]
    rows = [
        {"name": rule.name, "rights": rule.rights, "hub": parent}
        for parent in parents
        for rule in client.rules(namespace, parent)
    ]
    output.print_rows(rows, title="Policies")


@app.verb()
def show(
    service: AdminSession,
    name: Name,
    hub: Hub = None,
    reveal: Reveal = False,
    output: Format = TABLE,
) -> None:
    """Show one policy; keys and connection strings only with --reveal.

    Examples:
        penstock policy show devices --hub orders --reveal
    """
    rule = _find_policy(service, hub, name)
    output.print_record(_policy_record(service, hub, rule, reveal=reveal))


@app.verb()
def delete(
    service: AdminSession, name: Name, hub: Hub = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a policy. Clients that use its keys lose access, also on open links.

    Examples:
        penstock policy delete devices --hub orders --yes
    """
    rule = _find_policy(service, hub, name)
    what = (
        f"This deletes the policy '{rule.name}' of {_describe(service, hub)}: clients that use its "
        "keys lose access."
    )
    if confirm(what, rule.name, yes=yes, dry_run=dry_run):
        service.client.delete_rule(service.namespace, hub, rule.name)
        print_message(f"Deleted the policy '{rule.name}'.")


@app.verb()
def rotate(
    service: AdminSession,
    name: Name,
    key: Annotated[
        Literal["primary", "secondary", "both"], option("--key", "The key to replace")
    ] = "primary",
    hub: Hub = None,
    reveal: Reveal = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Format = TABLE,
) -> None:
    """Replace keys of a policy. Clients that use the old key lose access, also on open links.

    Examples:
        penstock policy rotate devices --hub orders --key secondary --yes
    """
    rule = _find_policy(service, hub, name)
    is_both = key == "both"
    which = f"{'both keys' if is_both else f'the {key} key'} of the policy '{rule.name}'"
    what = f"This replaces {which} of {_describe(service, hub)}: clients that use it lose access."
    if not confirm(what, rule.name, yes=yes, dry_run=dry_run):
        return
    for word in ("Primary", "Secondary") if is_both else (key.capitalize(),):
        service.client.regenerate(service.namespace, hub, rule.name, f"{word}Key")
    print_message(f"Replaced {which}.")
    if output is not TABLE or reveal:
        output.print_record(_policy_record(service, hub, rule, reveal=reveal))


@app.verb("connection-string")
def connection_string(
    service: AdminSession,
    name: Name = "RootManageSharedAccessKey",
    hub: Hub = None,
    key: Annotated[Literal["primary", "secondary"], option("--key", "Which key")] = "primary",
    plain: Annotated[
        bool, option("--plain", "For the plain TCP port of a service on this machine")
    ] = False,
    output: Format = TABLE,
) -> None:
    """Print the connection string of a policy and nothing else.

    It is for TLS; with --plain the official SDKs need neither a CA nor the port 5671.

    Examples:
        penstock policy connection-string --plain
        penstock policy connection-string devices --hub orders
    """
    keys = service.client.keys(service.namespace, hub, name)
    text = getattr(keys, f"{key}_connection_string")
    if plain:
        if not (amqp := service.runtime.get("amqp")):
            raise NotFound(f"{service.admin.url} has no plain TCP port that is known here.")
        text = f"Endpoint=sb://{amqp};{text.partition(';')[2]};UseDevelopmentEmulator=true;"
    _print_secret(text, {"name": keys.key_name, "hub": hub, "connection_string": text}, output)


@token_app.verb(options=with_service)
def make(
    service: AdminSession,
    policy: Annotated[
        str | None,
        option("TEXT", "Policy whose key signs [default: that of the connection string]"),
    ] = None,
    hub: Annotated[
        str | None, option("TEXT", "Only for this event hub", autocompletion=complete_hubs)
    ] = None,
    publisher: Annotated[str | None, option("TEXT", "Only for this publisher")] = None,
    ttl: Annotated[str, option("TIME", "How long the token is valid")] = "1h",
    connection_string: Annotated[
        str | None, option("STRING", "Sign with the key of this connection string, also for Azure")
    ] = None,
    output: Format = TABLE,
) -> None:
    """Sign a SAS token for a namespace, an event hub or one publisher, for HTTPS and AMQP.

    With --policy the service provides the key. Otherwise the key of the connection string signs:
    --connection-string, PENSTOCK_CONNECTION_STRING, the context, or the service on this machine.
    Only the token is printed to stdout.

    Examples:
        penstock token make --hub orders --ttl 8h
        penstock token make --policy devices --hub orders --publisher meter-1
    """
    from penstock.auth.sas import sign

    if publisher is not None and hub is None:
        raise typer.BadParameter("--publisher needs --hub: a publisher belongs to an event hub.")
    lifetime_s = parse_seconds(ttl, option="--ttl")
    endpoint = _find_signing_endpoint(service, policy, hub, connection_string)
    if endpoint.key is None or endpoint.key_name is None:
        raise typer.BadParameter("The connection string holds a signature, not a key to sign with.")
    path = quote(hub or endpoint.hub or "")
    if publisher is not None:
        path += f"/publishers/{quote(publisher, safe='')}"
    resource = f"sb://{endpoint.host}/{path}"
    expires_s = int(time.time() + lifetime_s)
    text = sign(resource, endpoint.key_name, endpoint.key, expires_s=expires_s)
    until = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print_message(f"For {resource}, signed with the policy '{endpoint.key_name}', until {until}.")
    if lifetime_s > _LONG_S:
        print_message("It is valid for more than a week; only rotating the key ends it earlier.")
    record = {"resource": resource, "policy": endpoint.key_name, "expires_at": until, "token": text}
    _print_secret(text, record, output)


@token_app.verb()
def admin(
    service: AdminSession,
    role: Annotated[
        Literal["Reader", "Operator", "Owner", "Capture"],
        option("--role", "Its permissions, see docs/reference/management.md", case_sensitive=False),
    ],
    ttl: Annotated[str, option("TIME", "How long the token is valid")] = "30d",
    name: Annotated[
        str | None, option("TEXT", "Name of its user in the audit log [default: the role]")
    ] = None,
    output: Format = TABLE,
) -> None:
    """Issue an admin token for the management API, az, the portal and /metrics.

    Only the token is printed to stdout; its id, by which it is revoked, is shown on stderr and in
    the audit log. This needs an admin token with the role Owner.

    Examples:
        penstock token admin --role Reader --ttl 7d --name prometheus
    """
    lifetime_s = int(parse_seconds(ttl, option="--ttl"))
    issued = service.client.issue_admin_token(
        name or role.lower(), role=role, lifetime_s=lifetime_s
    )
    print_message(
        f"Admin token {issued['id']} with the role {issued['role']}, until {issued['expiresAt']}. "
        f"'penstock token revoke {issued['id']}' ends it earlier."
    )
    record = {key: issued[key] for key in ("id", "name", "role", "token")}
    _print_secret(issued["token"], record | {"expires_at": issued["expiresAt"]}, output)


@token_app.verb()
def revoke(
    service: AdminSession,
    token_id: Annotated[str, argument("ID", "Id that `penstock token admin` showed")],
) -> None:
    """Revoke an admin token by its id: it is refused from now on, also after a restart.

    To revoke every admin token, stop the service and remove admin.secret from the data directory.

    Examples:
        penstock token revoke 3f9a1c
    """
    service.client.revoke_admin_token(token_id)
    print_message(f"Revoked the admin token {token_id}.")


def _parse_rights(texts: list[str]) -> list[str]:
    words = [word.casefold() for text in texts for word in text.replace(",", " ").split()]
    for word in words:
        if word not in _RIGHTS:
            raise typer.BadParameter(
                f"'{word}' is not a right: use listen, send or manage.", param_hint="--right"
            )
    if "manage" in words:  # includes the others, which Azure requires too (protocol.md 7.3)
        words = list(_RIGHTS)
    return sorted({_RIGHTS[word] for word in words})


def _find_policy(service: AdminSession, hub: str | None, name: str) -> AuthorizationRuleResource:
    for rule in service.client.rules(service.namespace, hub):
        if rule.name.casefold() == name.casefold():
            return rule
    raise NotFound(f"There is no policy '{name}' of {_describe(service, hub)}.")


def _policy_record(
    service: AdminSession, hub: str | None, rule: AuthorizationRuleResource, *, reveal: bool
) -> dict[str, object]:
    record: dict[str, object] = {"name": rule.name, "rights": rule.rights, "hub": hub}
    if not reveal:
        return record | dict.fromkeys(_KEYS, _HIDDEN)
    keys = service.client.keys(service.namespace, hub, rule.name)
    return record | {field: getattr(keys, field) for field in _KEYS}


def _describe(service: AdminSession, hub: str | None) -> str:
    return f"the namespace '{service.namespace}'" if hub is None else f"the event hub '{hub}'"


def _print_secret(text: str, record: Mapping[str, object], output: OutputFormat) -> None:
    """The text alone, for a pipe or a variable; or the record as JSON."""
    if output is TABLE:
        typer.echo(text)
    else:
        output.print_record(record)


def _find_signing_endpoint(
    service: AdminSession, policy: str | None, hub: str | None, connection_string: str | None
) -> Endpoint:
    from penstock.cli.service_options import find_connection_string
    from penstock.model.connection_string import parse_connection_string

    if policy is None or connection_string is not None:
        flags = service.flags
        text, _ = find_connection_string(connection_string, flags.data, flags.context)
        return parse_connection_string(text)
    for parent in [None] if hub is None else [hub, None]:  # the hub's own policy is narrower
        try:
            keys = service.client.keys(service.namespace, parent, policy)
        except NotFound:
            continue
        return parse_connection_string(keys.primary_connection_string)
    raise NotFound(f"There is no policy '{policy}' of {_describe(service, hub)}.")
