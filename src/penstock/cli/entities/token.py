"""`penstock token`: shared access signatures, and admin tokens with a role and an expiry."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated
from urllib.parse import quote

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.output import Format, OutputFormat, print_message, print_record
from penstock.cli.service_options import (
    AdminSession,
    complete_hubs,
    with_service,
    with_whole_service,
)
from penstock.cli.units import parse_seconds
from penstock.model.errors import NotFound

if TYPE_CHECKING:
    from penstock.model.connection_string import Endpoint

app = CommandGroup("Shared access signatures and admin tokens.")

_LONG_S = 7 * 86400


@app.verb()
@with_service
def make(
    service: AdminSession,
    policy: Annotated[
        str | None, typer.Option(help="Whose key signs [default: the connection string's own]")
    ] = None,
    hub: Annotated[
        str | None,
        typer.Option(help="For this event hub alone", autocompletion=complete_hubs),
    ] = None,
    publisher: Annotated[str | None, typer.Option(help="For this publisher alone")] = None,
    ttl: Annotated[str, typer.Option(metavar="TIME", help="How long it is good")] = "1h",
    connection_string: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Sign with its key; any endpoint, Azure's too"),
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Sign a token for a namespace, an event hub or one publisher, over HTTPS and AMQP.

    With --policy the key is asked of the service; without, it is the connection string's own
    (--connection-string, PENSTOCK_CONNECTION_STRING, context, or the service on this machine).
    Prints the token and nothing else.
    """
    from penstock.auth.sas import sign

    if publisher is not None and hub is None:
        raise typer.BadParameter("--publisher needs --hub: a publisher is one of an event hub.")
    lives_s = parse_seconds(ttl, option="--ttl")
    endpoint = _endpoint(service, policy, hub, connection_string)
    if endpoint.key is None or endpoint.key_name is None:
        raise typer.BadParameter("The connection string holds a signature and no key to sign with.")
    hub = hub or endpoint.hub
    path = "/".join(
        quote(part, safe="/" if part is hub else "")
        for part in (hub, *(("publishers", publisher) if publisher else ()))
        if part is not None
    )
    resource = f"sb://{endpoint.host}/{path}"
    expires_s = int(time.time() + lives_s)
    text = sign(resource, endpoint.key_name, endpoint.key, expires_s=expires_s)
    until = datetime.fromtimestamp(expires_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    print_message(f"For {resource}, by the policy '{endpoint.key_name}', until {until}.")
    if lives_s > _LONG_S:
        print_message(
            "It is good for more than a week, and nothing but rotating the key ends it earlier."
        )
    if output is OutputFormat.TABLE:
        typer.echo(text)
    else:
        print_record(
            {
                "resource": resource,
                "policy": endpoint.key_name,
                "expires_at": until,
                "token": text,
            },
            output,
        )


class AdminRole(StrEnum):
    READER = "Reader"
    OPERATOR = "Operator"
    OWNER = "Owner"
    CAPTURE = "Capture"


@app.verb()
@with_whole_service
def admin(
    service: AdminSession,
    role: Annotated[
        AdminRole,
        typer.Option(case_sensitive=False, help="What it may do, see docs/management.md"),
    ],
    ttl: Annotated[str, typer.Option(metavar="TIME", help="How long it is valid")] = "30d",
    name: Annotated[
        str | None, typer.Option(help="Who uses it, for the audit log [default: the role]")
    ] = None,
    output: Format = OutputFormat.TABLE,
) -> None:
    """Issue an admin token for the management API, az, the portal and /metrics.

    Prints the token and nothing else; its id, by which it is revoked, is shown on stderr and in the
    audit log. Needs an admin token with the role Owner.
    """
    lifetime_s = int(parse_seconds(ttl, option="--ttl"))
    issued = service.client.issue_admin_token(
        name or role.value.lower(), role=role.value, lifetime_s=lifetime_s
    )
    print_message(
        f"Admin token {issued['id']} with the role {issued['role']}, until {issued['expiresAt']}. "
        f"'penstock token revoke {issued['id']}' ends it earlier."
    )
    if output is OutputFormat.TABLE:
        typer.echo(issued["token"])
    else:
        record = {name: issued[name] for name in ("id", "name", "role", "token")}
        print_record(record | {"expires_at": issued["expiresAt"]}, output)


@app.verb()
@with_whole_service
def revoke(
    service: AdminSession,
    token_id: Annotated[str, typer.Argument(metavar="ID", help="As `token admin` showed it")],
) -> None:
    """Revoke an admin token by its id: it is refused from now on, also after a restart.

    To revoke every admin token, stop the service and remove admin.secret from the data directory.
    """
    service.client.revoke_admin_token(token_id)
    print_message(f"The admin token {token_id} is revoked.")


def _endpoint(
    service: AdminSession, policy: str | None, hub: str | None, connection_string: str | None
) -> Endpoint:
    from penstock.cli.service_lookup import find_endpoint
    from penstock.model.connection_string import parse_connection_string

    if policy is None or connection_string is not None:
        where = service.where
        return find_endpoint(connection_string, where.data, where.context)[0]
    places = [None] if hub is None else [hub, None]
    for place in places:  # the event hub's own policy is the narrower one
        try:
            keys = service.client.keys(service.namespace, place, policy)
        except NotFound:
            continue
        return parse_connection_string(keys.primary_connection_string)
    raise NotFound(f"There is no policy '{policy}' of '{hub or service.namespace}'.")
