"""`penstock portal`: where the web portal is, and lines for its user file."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.output import print_message
from penstock.cli.service_options import AdminSession, with_service
from penstock.model.errors import NotFound

app = CommandGroup("The web portal: where it is, who may sign in.")

_ROLES = ("viewer", "operator", "admin")
_PASSWORD_MIN = 8


@app.verb()
@with_service
def url(
    service: AdminSession,
    sign_in: Annotated[
        bool, typer.Option("--sign-in", help="A link that signs in once, within 10 minutes")
    ] = False,
    open_: Annotated[bool, typer.Option("--open", help="In this machine's browser")] = False,
) -> None:
    """Print the address of the web portal.

    With --sign-in a link that needs no token or password: who opens it first is signed in with the
    role of your admin token.
    """
    import webbrowser

    if sign_in:
        address = service.client.sign_in_link()
        print_message(
            "The link works once, within 10 minutes. Whoever has it can sign in: do not share it."
        )
    else:
        address = _address(service)
        print_message("penstock portal url --sign-in prints a link that signs in.")
    typer.echo(address)
    if open_:
        webbrowser.open(address)


def _address(service: AdminSession) -> str:
    """`/` of the administration port leads there."""
    from penstock.io.http_client import HttpClient

    client = service.client
    with HttpClient(client.url, ca_file=client.ca_file, timeout_s=10) as http:
        response = http.request("GET", "/")
    if response.status == 307 and response.headers["location"]:
        return str(response.headers["location"])
    raise NotFound("The service runs without its portal: start it without --no-portal.")


@app.verb()
def password(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who signs in")],
    role: Annotated[str, typer.Option(help="viewer, operator or admin")] = "viewer",
) -> None:
    """Print a user's line for the portal's user file, with the password hashed.

    Asks for the password, or reads it from standard input when that is no terminal.
    """
    from penstock.portal.users import hash_password

    if role not in _ROLES:
        raise typer.BadParameter(f"'{role}' is no role: {', '.join(_ROLES)} are.")
    if not name or len(name) > 64 or not name.isprintable() or '"' in name or "\\" in name:
        raise typer.BadParameter("A name is 1 to 64 printable characters, without quotes.")
    if sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    if len(text) < _PASSWORD_MIN:
        raise typer.BadParameter(f"A password has at least {_PASSWORD_MIN} characters.")
    typer.echo(f'"{name}" = {{ role = "{role}", password = "{hash_password(text)}" }}')
    print_message("Put the line under [users] of the file that portal_users_file names.")
