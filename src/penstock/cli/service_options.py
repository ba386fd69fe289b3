"""The options that name a service, and decorators that add them to a command.

The service is looked up when a command first uses it, not before: a command validates its own
options first, so that a wrong option is reported also when no service runs.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec

import typer

from penstock.cli.command_tree import WHICH_SERVICE
from penstock.cli.contexts import complete_contexts
from penstock.cli.service_lookup import AdminEndpoint, ServiceFlags, data_directory, find_admin
from penstock.model.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

P = ParamSpec("P")
_COMPLETION_S = 1.0  # completion at the prompt must not block longer


class ServiceOption(NamedTuple):
    """One option of the section "Which service"; its flag is the name with dashes."""

    name: str
    kind: Any
    metavar: str | None
    text: str
    default: Any = None
    complete: Callable[[], list[str]] | None = None

    def parameter(self) -> inspect.Parameter:
        option = typer.Option(
            f"--{self.name.replace('_', '-')}",
            metavar=self.metavar,
            help=self.text,
            rich_help_panel=WHICH_SERVICE,
            autocompletion=self.complete,
        )
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=self.default,
            annotation=Annotated[self.kind, option],
        )


DATA = ServiceOption(
    *("data", Path | None, "DIR"),
    "Data directory of a service on this machine [default: ./penstock-data]",
)
CONTEXT = ServiceOption(
    *("context", str | None, "NAME", "A name of `penstock context list`"),
    complete=complete_contexts,
)
_WHOLE_SERVICE = (
    DATA,
    CONTEXT,
    ServiceOption(
        "admin_url", str | None, "URL", "Its administration port, such as http://localhost:5300"
    ),
    ServiceOption(
        *("admin_token", str | None, "TOKEN"),
        "Prefer PENSTOCK_ADMIN_TOKEN: other users can see command-line arguments",
    ),
    ServiceOption("ca_file", Path | None, "FILE", "CA file that verifies its certificate (https)"),
)
_NAMESPACE = ServiceOption(
    "namespace", str | None, "NAME", "The namespace [default: the service's own]"
)


class AdminSession:
    """The service that the options name. It is looked up on first use."""

    def __init__(self, flags: ServiceFlags, *, timeout_s: float = 30.0) -> None:
        self.flags = flags
        self._timeout_s = timeout_s
        self._client: ManagementClient | None = None
        self._admin: AdminEndpoint | None = None

    @property
    def admin(self) -> AdminEndpoint:
        if self._admin is None:
            self._admin = find_admin(self.flags)
        return self._admin

    @property
    def client(self) -> ManagementClient:
        if self._client is None:
            self._client = self.admin.client(timeout_s=self._timeout_s)
        return self._client

    @property
    def namespace(self) -> str:
        """The namespace of the flag, the environment, the context or the service on this machine;
        otherwise the only one of the service."""
        if self.admin.namespace is None:
            names = [namespace.name for namespace in self.client.namespaces()]
            if len(names) != 1:
                raise ConfigurationError(
                    f"There are several namespaces ({', '.join(names)}): pass --namespace."
                )
            self._admin = self.admin._replace(namespace=names[0])
        assert self.admin.namespace is not None
        return self.admin.namespace

    def forget(self) -> None:
        """Look the service up again on the next use: after a restart its ports may differ."""
        self.close()
        self._admin = self._client = None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()


def add_options(
    function: Callable[..., None],
    options: Sequence[ServiceOption],
    open_service: Callable[[dict[str, Any], dict[str, Any]], AbstractContextManager[Any]],
) -> Callable[..., None]:
    """The command of `function` with `options` added. The first argument of `function` is what
    `open_service(values of options, other arguments)` yields."""

    @functools.wraps(function)
    def command(**values: Any) -> None:
        chosen = {option.name: values.pop(option.name) for option in options}
        with open_service(chosen, values) as service:
            function(service, **values)

    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # typer reads it
        [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own]
        + [option.parameter() for option in options]
    )
    return command


def with_service(function: Callable[Concatenate[AdminSession, P], None]) -> Callable[..., None]:
    """A command on one namespace: also --namespace. It receives an AdminSession."""
    return add_options(function, (_NAMESPACE, *_WHOLE_SERVICE), _open_session)


def with_whole_service(
    function: Callable[Concatenate[AdminSession, P], None],
) -> Callable[..., None]:
    """A command on the whole service, or one that has its own namespace argument."""
    return add_options(function, _WHOLE_SERVICE, _open_session)


def with_data_directory(function: Callable[Concatenate[Path, P], None]) -> Callable[..., None]:
    """A command on files of a data directory. It receives the directory, which need not exist."""
    return add_options(
        function,
        (DATA, CONTEXT),
        lambda chosen, _: nullcontext(data_directory(ServiceFlags(**chosen))),
    )


def _open_session(chosen: dict[str, Any], _: dict[str, Any]) -> closing[AdminSession]:
    return closing(AdminSession(ServiceFlags(**chosen)))


# --- shell completion -----------------------------------------------------------------------------


def _complete(
    list_entities: Callable[[ManagementClient, str, str | None], Iterable[Any]],
) -> Callable[[typer.Context], list[str]]:
    """A completion of names; no names where the service does not answer within a second."""

    def complete(ctx: typer.Context) -> list[str]:
        flags = ServiceFlags(**{name: ctx.params.get(name) for name in ServiceFlags._fields})
        try:
            with closing(AdminSession(flags, timeout_s=_COMPLETION_S)) as service:
                hub = ctx.params.get("hub")
                entities = list_entities(service.client, service.namespace, hub)
                return [entity.name for entity in entities]
        except (PenstockError, OSError):
            return []

    return complete


complete_hubs = _complete(lambda client, namespace, _: client.hubs(namespace))
complete_groups = _complete(
    lambda client, namespace, hub: client.groups(namespace, hub) if hub else ()
)
complete_namespaces = _complete(lambda client, namespace, hub: client.namespaces())
complete_policies = _complete(lambda client, namespace, hub: client.rules(namespace, hub))

HubName = Annotated[
    str, typer.Argument(metavar="HUB", help="Event hub", autocompletion=complete_hubs)
]
