"""The options that name a service, and decorators that add them to a command.

The service is looked up when a command first uses it, not before: a command validates its own
options first, so that a wrong option is reported also when no service runs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection, Iterable
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, ParamSpec, TypeVar

import typer

from penstock.cli.options import argument
from penstock.cli.service_lookup import AdminEndpoint, ServiceFlags, data_directory, find_admin
from penstock.model.errors import ConfigurationError, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

P = ParamSpec("P")
T = TypeVar("T")
_COMPLETION_S = 1.0  # completion at the prompt must not block longer


class AdminSession:
    """The service that the options name. It is looked up on first use."""

    def __init__(self, flags: ServiceFlags, *, timeout_s: float = 30.0) -> None:
        self.flags = flags
        self._timeout_s = timeout_s

    @functools.cached_property
    def admin(self) -> AdminEndpoint:
        return find_admin(self.flags)

    @functools.cached_property
    def client(self) -> ManagementClient:
        return self.admin.client(timeout_s=self._timeout_s)

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
            self.admin = self.admin._replace(namespace=names[0])
        assert self.admin.namespace is not None
        return self.admin.namespace

    def forget(self) -> None:
        """Look the service up again on the next use: after a restart its ports may differ."""
        self.close()
        self.__dict__.pop("admin", None)

    def close(self) -> None:
        client: ManagementClient | None = self.__dict__.pop("client", None)
        if client is not None:
            client.close()


def add_options(
    function: Callable[..., None],
    flags: Callable[..., T],
    open_service: Callable[[T, dict[str, Any]], AbstractContextManager[Any]],
    *,
    only: Collection[str] = (),
) -> Callable[..., None]:
    """The command of `function`, and the parameters of `flags` as options, or `only` some of them.
    The first argument of `function` is what `open_service(flags, other arguments)` yields. Another
    parameter whose type is a dataclass stands for its fields."""
    options = [field for field in _fields(flags) if not only or field.name in only]
    own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
    groups: dict[str, Any] = {
        item.name: item.annotation for item in own if dataclasses.is_dataclass(item.annotation)
    }

    @functools.wraps(function)
    def command(**values: Any) -> None:
        chosen = flags(**_take(values, options))
        with open_service(chosen, dict(values)) as service:
            for name, group in groups.items():
                values[name] = group(**_take(values, _fields(group)))
            function(service, **values)

    expanded = [_fields(groups[item.name]) if item.name in groups else [item] for item in own]
    keywords = [item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in chain(*expanded)]
    signature = inspect.Signature([*keywords, *options])
    command.__signature__ = signature  # type: ignore[attr-defined]  # typer reads it
    return command


def _fields(kind: Callable[..., Any]) -> list[inspect.Parameter]:
    return list(inspect.signature(kind, eval_str=True).parameters.values())


def _take(values: dict[str, Any], parameters: Iterable[inspect.Parameter]) -> dict[str, Any]:
    """Remove the values of the parameters."""
    return {parameter.name: values.pop(parameter.name) for parameter in parameters}


def with_service(function: Callable[Concatenate[AdminSession, P], None]) -> Callable[..., None]:
    """A command on one namespace: also --namespace. It receives an AdminSession."""
    return add_options(function, ServiceFlags, _open_session)


def with_whole_service(
    function: Callable[Concatenate[AdminSession, P], None],
) -> Callable[..., None]:
    """A command on the whole service, or one that has its own namespace argument."""
    only = ("data", "context", "admin_url", "admin_token", "ca_file")
    return add_options(function, ServiceFlags, _open_session, only=only)


def with_data_directory(function: Callable[Concatenate[Path, P], None]) -> Callable[..., None]:
    """A command on files of a data directory. It receives the directory, which need not exist."""

    def find_directory(flags: ServiceFlags, _: dict[str, Any]) -> nullcontext[Path]:
        return nullcontext(data_directory(flags))

    return add_options(function, ServiceFlags, find_directory, only=("data", "context"))


def _open_session(flags: ServiceFlags, _: dict[str, Any]) -> closing[AdminSession]:
    return closing(AdminSession(flags))


# --- shell completion -----------------------------------------------------------------------------


def _complete(
    list_entities: Callable[[ManagementClient, str, str | None], Iterable[Any]],
) -> Callable[[typer.Context], list[str]]:
    """A completion of names; no names where the service does not answer within a second."""

    def complete(ctx: typer.Context) -> list[str]:
        names = (field.name for field in dataclasses.fields(ServiceFlags))
        flags = ServiceFlags(**{name: ctx.params.get(name) for name in names})
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

HubName = Annotated[str, argument("HUB", "Event hub", autocompletion=complete_hubs)]
