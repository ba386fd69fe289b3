"""`penstock policy create|list|show|delete|rotate|connection-string`: shared access policies."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.confirm import DryRun, Yes, confirm
from penstock.cli.output import Format, OutputFormat, print_message, print_record, print_rows
from penstock.cli.service_options import (
    AdminSession,
    complete_hubs,
    complete_policies,
    with_service,
)
from penstock.model.errors import AlreadyExists, NotFound

if TYPE_CHECKING:
    from penstock.management.client import AccessKeys, AuthorizationRuleResource

app = CommandGroup("Shared access policies, their keys and connection strings.")

_HIDDEN = "(hidden; --reveal shows it)"


class PolicyKey(StrEnum):
    PRIMARY = "primary"
    SECONDARY = "secondary"
    BOTH = "both"


Name = Annotated[str, typer.Argument(metavar="POLICY", autocompletion=complete_policies)]
Hub = Annotated[
    str | None,
    typer.Option(
        metavar="HUB", help="Of one event hub, not the namespace", autocompletion=complete_hubs
    ),
]
Reveal = Annotated[bool, typer.Option("--reveal", help="Show the keys themselves")]


@app.verb()
@with_service
def create(
    service: AdminSession,
    name: Annotated[str, typer.Argument(metavar="POLICY", help="Its name")],
    rights: Annotated[
        list[str] | None,
        typer.Option("--right", "-r", metavar="RIGHT", help="listen, send or manage; several"),
    ] = None,
    hub: Hub = None,
    reveal: Reveal = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Make a policy with two keys of its own."""
    client, namespace = service.client, service.namespace
    if not rights:
        raise typer.BadParameter("A policy has rights: --right listen, send or manage.")
    if any(each.name.casefold() == name.casefold() for each in client.rules(namespace, hub)):
        raise AlreadyExists(f"The policy '{name}' exists already.")
    made = client.put_rule(namespace, hub, name, _rights(rights))
    print_message(f"The policy '{made.name}' of {_of(service, hub)} may {_describe_rights(made)}.")
    if output is not OutputFormat.TABLE or reveal:
        print_record(_policy_record(service, hub, made, reveal=reveal), output)


@app.verb("list")
@with_service
def list_(
    service: AdminSession,
    hub: Hub = None,
    all_: Annotated[bool, typer.Option("--all", "-a", help="Of all event hubs too")] = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """The policies of the namespace, or of one event hub."""
    client, namespace = service.client, service.namespace
    places = [hub]
    if all_:
        places = [None, *(each.name for each in client.hubs(namespace))]
    rows = [
        {"name": rule.name, "rights": rule.rights, "hub": place}
        for place in places
        for rule in client.rules(namespace, place)
    ]
    print_rows(rows, output, title="Policies")


@app.verb()
@with_service
def show(
    service: AdminSession,
    name: Name,
    hub: Hub = None,
    reveal: Reveal = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """One policy; its keys and connection strings only with --reveal."""
    rule = _find(service, hub, name)
    print_record(_policy_record(service, hub, rule, reveal=reveal), output)


@app.verb()
@with_service
def delete(
    service: AdminSession, name: Name, hub: Hub = None, yes: Yes = False, dry_run: DryRun = False
) -> None:
    """Delete a policy: whoever uses its keys is cut off, open links too."""
    rule = _find(service, hub, name)
    what = f"The policy '{rule.name}' of {_of(service, hub)} goes; its users are cut off."
    if confirm(what, rule.name, yes=yes, dry_run=dry_run):
        service.client.delete_rule(service.namespace, hub, rule.name)
        print_message(f"The policy '{rule.name}' is deleted.")


@app.verb()
@with_service
def rotate(
    service: AdminSession,
    name: Name,
    key: Annotated[PolicyKey, typer.Option(help="primary, secondary or both")] = PolicyKey.PRIMARY,
    hub: Hub = None,
    reveal: Reveal = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Draw new keys: whoever uses the old one is cut off, open links too."""
    rule = _find(service, hub, name)
    which = "both keys" if key is PolicyKey.BOTH else f"the {key} key"
    what = f"Who uses {which} of '{rule.name}' of {_of(service, hub)} is cut off."
    if not confirm(what, rule.name, yes=yes, dry_run=dry_run):
        return
    for each in (PolicyKey.PRIMARY, PolicyKey.SECONDARY) if key is PolicyKey.BOTH else (key,):
        service.client.regenerate(service.namespace, hub, rule.name, f"{each.capitalize()}Key")
    print_message(f"New: {which} of '{rule.name}'.")
    if output is not OutputFormat.TABLE or reveal:
        print_record(_policy_record(service, hub, rule, reveal=reveal), output)


@app.verb("connection-string")
@with_service
def connection_string(
    service: AdminSession,
    name: Annotated[
        str, typer.Argument(metavar="POLICY", autocompletion=complete_policies)
    ] = "RootManageSharedAccessKey",
    hub: Hub = None,
    key: Annotated[PolicyKey, typer.Option(help="primary or secondary")] = PolicyKey.PRIMARY,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Print a policy's connection string, and nothing else."""
    keys = service.client.keys(service.namespace, hub, name)
    text = (
        keys.secondary_connection_string
        if key is PolicyKey.SECONDARY
        else (keys.primary_connection_string)
    )
    if output is OutputFormat.TABLE:
        typer.echo(text)
    else:
        print_record({"name": keys.key_name, "hub": hub, "connection_string": text}, output)


def _rights(given: list[str]) -> list[str]:
    known = {"listen": "Listen", "send": "Send", "manage": "Manage"}
    words = [word for each in given for word in each.replace(",", " ").split()]
    unknown = [word for word in words if word.casefold() not in known]
    if unknown:
        raise typer.BadParameter(f"'{unknown[0]}' is no right: listen, send and manage are.")
    found = {known[word.casefold()] for word in words}
    if "Manage" in found:  # it includes the others, and Azure wants them said (protocol.md 7.3)
        found = set(known.values())
    return sorted(found)


def _find(service: AdminSession, hub: str | None, name: str) -> AuthorizationRuleResource:
    for rule in service.client.rules(service.namespace, hub):
        if rule.name.casefold() == name.casefold():
            return rule
    raise NotFound(f"There is no policy '{name}' of {_of(service, hub)}.")


def _policy_record(
    service: AdminSession, hub: str | None, rule: AuthorizationRuleResource, *, reveal: bool
) -> dict[str, object]:
    record: dict[str, object] = {"name": rule.name, "rights": rule.rights, "hub": hub}
    keys: AccessKeys | None = None
    if reveal:
        keys = service.client.keys(service.namespace, hub, rule.name)
    for field in (
        "primary_key",
        "secondary_key",
        "primary_connection_string",
        "secondary_connection_string",
    ):
        record[field] = _HIDDEN if keys is None else getattr(keys, field)
    return record


def _of(service: AdminSession, hub: str | None) -> str:
    return f"the namespace '{service.namespace}'" if hub is None else f"the event hub '{hub}'"


def _describe_rights(rule: AuthorizationRuleResource) -> str:
    return " and ".join(right.lower() for right in rule.rights)
