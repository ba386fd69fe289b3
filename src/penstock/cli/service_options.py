"""`@with_service`: a command that talks to the administration, with the options that say whose."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec

import typer

from penstock.cli.command_tree import WHICH_SERVICE
from penstock.cli.service_lookup import AdminEndpoint, ServiceFlags, find_admin
from penstock.model.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

P = ParamSpec("P")
_COMPLETION_S = 1.0  # nobody waits longer for a name at the prompt

DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="Data directory of a service on this machine [default: ./penstock-data]",
        rich_help_panel=WHICH_SERVICE,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option(
        "--context",
        metavar="NAME",
        help="One of `penstock context list`",
        rich_help_panel=WHICH_SERVICE,
        autocompletion=lambda: _context_names(),
    ),
]
_ADMIN = (
    (
        "admin_url",
        Annotated[
            str | None,
            typer.Option(
                "--admin-url",
                metavar="URL",
                help="Its administration, such as http://localhost:5300",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
    ),
    (
        "admin_token",
        Annotated[
            str | None,
            typer.Option(
                "--admin-token",
                metavar="TOKEN",
                help="Better in PENSTOCK_ADMIN_TOKEN: others see a command's words",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
    ),
    (
        "ca_file",
        Annotated[
            Path | None,
            typer.Option(
                "--ca-file",
                metavar="FILE",
                help="What its certificate is verified with (https)",
                rich_help_panel=WHICH_SERVICE,
            ),
        ],
    ),
)
_NAMESPACE = (
    "namespace",
    Annotated[
        str | None,
        typer.Option(
            "--namespace",
            metavar="NAME",
            help="Within this namespace [default: the service's own]",
            rich_help_panel=WHICH_SERVICE,
        ),
    ],
)
_OPTIONS = (("data", DataOption), ("context", ContextOption), *_ADMIN)


class AdminSession:
    """The service that a command was pointed at; asked only when something is needed of it."""

    def __init__(self, where: ServiceFlags, *, timeout_s: float = 30.0) -> None:
        self.where = where
        self._timeout_s = timeout_s
        self._client: ManagementClient | None = None
        self._admin: AdminEndpoint | None = None

    @property
    def admin(self) -> AdminEndpoint:
        if self._admin is None:
            self._admin = find_admin(self.where)
        return self._admin

    @property
    def client(self) -> ManagementClient:
        if self._client is None:
            self._client = self.admin.client(timeout_s=self._timeout_s)
        return self._client

    @property
    def namespace(self) -> str:
        """As the flag, the environment, the context or the service on this machine says; else the
        only one there is."""
        if self.admin.namespace is None:
            known = [each.name for each in self.client.namespaces()]
            if len(known) != 1:
                raise ConfigurationError(
                    f"There are several namespaces ({', '.join(known)}): give --namespace."
                )
            self._admin = self.admin._replace(namespace=known[0])
        assert self.admin.namespace is not None
        return self.admin.namespace

    def forget(self) -> None:
        """Look for it anew the next time."""
        self.close()
        self._admin = self._client = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def with_service(
    function: Callable[Concatenate[AdminSession, P], None],
) -> Callable[..., None]:
    """Within a namespace: `--namespace` too."""
    return _add_options(function, (_NAMESPACE, *_OPTIONS))


def with_whole_service(
    function: Callable[Concatenate[AdminSession, P], None],
) -> Callable[..., None]:
    """For acts that name their namespace themselves, or none."""
    return _add_options(function, _OPTIONS)


def _add_options(
    function: Callable[..., None], options: tuple[tuple[str, Any], ...]
) -> Callable[..., None]:
    @functools.wraps(function)
    def command(**given: Any) -> None:
        service = AdminSession(ServiceFlags(**{name: given.pop(name) for name, _ in options}))
        try:
            function(service, **given)
        finally:
            service.close()

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    more = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in options
    ]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
        [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own] + more
    )
    return command


# --- names at the prompt --------------------------------------------------------------------------


def complete_hubs(ctx: typer.Context) -> list[str]:
    """Names of event hubs, when the service is near and quick; nothing when it is not."""
    return _complete(ctx, lambda client, namespace: [hub.name for hub in client.hubs(namespace)])


def complete_groups(ctx: typer.Context) -> list[str]:
    hub = ctx.params.get("hub")
    if not isinstance(hub, str):
        return []
    return _complete(
        ctx, lambda client, namespace: [each.name for each in client.groups(namespace, hub)]
    )


def complete_namespaces(ctx: typer.Context) -> list[str]:
    return _complete(ctx, lambda client, _: [each.name for each in client.namespaces()])


def complete_policies(ctx: typer.Context) -> list[str]:
    hub = ctx.params.get("hub")
    return _complete(
        ctx, lambda client, namespace: [each.name for each in client.rules(namespace, hub)]
    )


def _complete(ctx: typer.Context, ask: Callable[[ManagementClient, str], list[str]]) -> list[str]:
    try:
        given = {name: ctx.params.get(name) for name in ServiceFlags._fields}
        service = AdminSession(ServiceFlags(**given), timeout_s=_COMPLETION_S)
        try:
            return ask(service.client, service.namespace)
        finally:
            service.close()
    except (PenstockError, OSError):
        return []


def _context_names() -> list[str]:
    from penstock.cli.contexts import contexts_file, read_contexts

    try:
        return sorted(read_contexts(contexts_file()).contexts)
    except (PenstockError, OSError):
        return []


HubName = Annotated[
    str, typer.Argument(metavar="HUB", help="Event hub", autocompletion=complete_hubs)
]
