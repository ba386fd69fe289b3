"""`penstock portal url|password`."""

from __future__ import annotations

import sys
from typing import Annotated, Literal

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.options import argument, option
from penstock.cli.output import print_message
from penstock.cli.server.status import fetch
from penstock.cli.service_options import AdminSession, with_service
from penstock.model.errors import NotFound

app = CommandGroup("The web portal: its address and its users.")

_PASSWORD_MIN = 8
_TIMEOUT_S = 10.0


@app.verb(options=with_service)
def url(
    service: AdminSession,
    sign_in: Annotated[
        bool, option("--sign-in", "Print a link that signs in once, within 10 minutes")
    ] = False,
    open_: Annotated[bool, option("--open", "Open it in the browser")] = False,
) -> None:
    """Print the address of the web portal.

    With --sign-in the link needs no token or password: the first user who opens it is signed in
    with the role of your admin token.

    Examples:
        penstock portal url
        penstock portal url --sign-in --open
    """
    if sign_in:
        address = service.client.sign_in_link()
        print_message("The link signs in once, within 10 minutes: do not share it.")
    else:
        # The root of the administration port redirects to the portal.
        location = fetch(service.admin, "/", timeout_s=_TIMEOUT_S).headers["location"]
        if location is None:
            raise NotFound("The service runs without its portal: start it without --no-portal.")
        address = location
        print_message("penstock portal url --sign-in prints a link that signs in.")
    typer.echo(address)
    if open_:
        import webbrowser

        webbrowser.open(address)


@app.verb()
def password(
    name: Annotated[str, argument("NAME", "Name of the user")],
    role: Annotated[Literal["viewer", "operator", "admin"], option("--role", "Role")] = "viewer",
) -> None:
    """Print a line for the portal's user file, with the password hashed.

    The command asks for the password, or reads it from stdin if that is not a terminal.

    Examples:
        penstock portal password alice --role operator
    """
    from penstock.portal.users import hash_password

    if not name or len(name) > 64 or not name.isprintable() or '"' in name or "\\" in name:
        raise typer.BadParameter("A name has 1 to 64 printable characters, without quotes.")
    if sys.stdin.isatty():
        text = typer.prompt("Password", hide_input=True, confirmation_prompt=True, err=True)
    else:
        text = sys.stdin.readline().rstrip("\r\n")
    if len(text) < _PASSWORD_MIN:
        raise typer.BadParameter(f"A password has at least {_PASSWORD_MIN} characters.")
    typer.echo(f'"{name}" = {{ role = "{role}", password = "{hash_password(text)}" }}')
    print_message("Put this line below [users] in the file that portal_users_file names.")
