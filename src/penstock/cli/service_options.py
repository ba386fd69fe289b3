"""Which service a command uses: the options that name it, how it is found, and decorators that add
the options to a command.

A service is named by flags, then environment, then context, then ./penstock-data. The first step
that names a service decides alone. A flag that names one service is never combined with a key that
the environment holds for another. Within a step an address takes precedence over a data directory.

The service is looked up when a command first uses it, not before: a command validates its own
options first, so that a wrong option is reported also when no service runs.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import AbstractContextManager, closing, nullcontext, suppress
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, NamedTuple, ParamSpec, TypeVar

import typer

from penstock.cli.command_tree import WHICH_SERVICE
from penstock.cli.contexts import ServiceContext, complete_contexts, selected_context
from penstock.cli.options import argument, option
from penstock.io.runtime_file import read_runtime
from penstock.model.errors import ConfigurationError, NotFound, PenstockError

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient

P = ParamSpec("P")
T = TypeVar("T")

_COMPLETION_S = 1.0  # completion at the prompt must not block longer
DATA_DEFAULT = Path("penstock-data")


service_option = functools.partial(option, rich_help_panel=WHICH_SERVICE)
DataOption = Annotated[
    Path | None,
    service_option("DIR", "Data directory of a service on this machine [default: ./penstock-data]"),
]
ContextOption = Annotated[
    str | None,
    service_option("NAME", "A name of `penstock context list`", autocompletion=complete_contexts),
]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServiceFlags:
    """The flags that name a service, in the order of the help; None where a flag is absent."""

    namespace: Annotated[
        str | None, service_option("NAME", "The namespace [default: the service's own]")
    ] = None
    data: DataOption = None
    context: ContextOption = None
    admin_url: Annotated[
        str | None, service_option("URL", "Its administration port, such as http://localhost:5300")
    ] = None
    admin_token: Annotated[
        str | None,
        service_option(
            "TOKEN", "Prefer PENSTOCK_ADMIN_TOKEN: other users can see command-line arguments"
        ),
    ] = None
    ca_file: Annotated[
        Path | None, service_option("FILE", "CA file that verifies its certificate (https)")
    ] = None


class AdminEndpoint(NamedTuple):
    """The management API of one service. `namespace` is the default namespace of commands."""

    url: str
    token: str | Path | None  # a path: a file in which another process renews the token
    ca_file: str | None
    namespace: str | None

    def client(self, *, timeout_s: float = 30.0) -> ManagementClient:
        """Raises ConfigurationError without an admin token."""
        from penstock.management.client import ManagementClient

        if self.token is None:
            raise ConfigurationError(
                f"There is no admin token for {self.url}: pass --admin-token, or set "
                "PENSTOCK_ADMIN_TOKEN."
            )
        return ManagementClient(self.url, self.token, ca_file=self.ca_file, timeout_s=timeout_s)


def find_admin(flags: ServiceFlags) -> AdminEndpoint:
    """The management API that the steps lead to. Raises NotFound when none of them names one."""
    step = _find_step(flags) or ServiceContext(data=str(DATA_DEFAULT))
    if step.admin_url is not None:
        admin = AdminEndpoint(step.admin_url, step.admin_token, step.ca_file, step.namespace)
    elif step.data is not None:
        admin = _admin_of_data(Path(step.data))
        admin = admin._replace(namespace=step.namespace or admin.namespace)
    else:
        raise ConfigurationError(
            "This context has neither an administration URL nor a data directory: repeat `penstock "
            "context add` with --admin-url or --data."
        )
    return AdminEndpoint(
        url=admin.url,
        token=flags.admin_token or admin.token or _token_file(admin.url),
        ca_file=admin.ca_file if flags.ca_file is None else str(flags.ca_file),
        namespace=flags.namespace or os.environ.get("PENSTOCK_NAMESPACE") or admin.namespace,
    )


def data_directory(flags: ServiceFlags) -> Path:
    """The data directory itself, for commands that read or write its files."""
    if flags.data is not None:
        return flags.data
    for step in (_step_of_flags(flags), _step_of_environment(), selected_context(None)):
        if step is not None and step.data is not None:
            return Path(step.data)
    return DATA_DEFAULT


def find_connection_string(
    connection_string: str | None, data: Path | None, context: str | None = None
) -> tuple[str, str | None]:
    """The connection string for events, and the CA file where one is configured. Raises NotFound
    when no step leads to one."""
    flags = ServiceFlags(data=data, context=context)
    ca_file = os.environ.get("PENSTOCK_CA_FILE")
    if connection_string is None and _step_of_flags(flags) is None:
        connection_string = os.environ.get("PENSTOCK_CONNECTION_STRING") or None
    if connection_string is not None:
        # The string probably means the service on this machine; otherwise the CA file does no harm.
        local = data or Path(os.environ.get("PENSTOCK_DATA") or DATA_DEFAULT)
        local_ca_file = (read_runtime(local) or {}).get("ca_file")
        return connection_string, ca_file or (None if local_ca_file is None else str(local_ca_file))
    step = _find_step(flags) or ServiceContext()
    if step.connection_string is not None:
        return step.connection_string, step.ca_file
    directory = Path(step.data or DATA_DEFAULT)
    runtime = read_runtime(directory) or {}
    text = runtime.get("emulator_connection_string") or runtime.get("connection_string")
    if text is None and step.admin_url is not None:
        raise NotFound(
            f"The connection string of {step.admin_url} is not known: pass --connection-string, or "
            "set PENSTOCK_CONNECTION_STRING."
        )
    if text is None:
        raise NotFound(
            f"No service runs on the data directory {directory}: start one with `penstock serve`, "
            "name the directory with --data, or the service with --connection-string or --context."
        )
    return str(text), str(runtime["ca_file"])


# --- steps ----------------------------------------------------------------------------------------


def _find_step(flags: ServiceFlags) -> ServiceContext | None:
    return _step_of_flags(flags) or _step_of_environment() or selected_context(None)


def _step_of_flags(flags: ServiceFlags) -> ServiceContext | None:
    if flags.admin_url is not None:
        # The token of the environment belongs to the service of the environment, if it names one.
        is_same = os.environ.get("PENSTOCK_ADMIN_URL") in (None, "", flags.admin_url)
        return _admin_context(flags.admin_url, os.environ if is_same else {})
    if flags.context is not None:
        return selected_context(flags.context)
    return None if flags.data is None else ServiceContext(data=str(flags.data))


def _step_of_environment() -> ServiceContext | None:
    url, data = os.environ.get("PENSTOCK_ADMIN_URL"), os.environ.get("PENSTOCK_DATA")
    if url:
        return _admin_context(url, os.environ)
    if os.environ.get("PENSTOCK_CONTEXT"):
        return selected_context(os.environ["PENSTOCK_CONTEXT"])
    return ServiceContext(data=data) if data else None


def _admin_context(url: str, environ: Mapping[str, str]) -> ServiceContext:
    token, ca_file = (environ.get(f"PENSTOCK_{name}") for name in ("ADMIN_TOKEN", "CA_FILE"))
    return ServiceContext(admin_url=url, admin_token=token, ca_file=ca_file)


def _token_file(url: str) -> Path | None:
    """PENSTOCK_ADMIN_TOKEN_FILE, if `url` is the service of the environment."""
    file = os.environ.get("PENSTOCK_ADMIN_TOKEN_FILE")
    return Path(file) if file and url == os.environ.get("PENSTOCK_ADMIN_URL") else None


def _admin_of_data(directory: Path) -> AdminEndpoint:
    runtime = read_runtime(directory)
    if runtime is None:
        raise NotFound(
            f"No service runs on the data directory {directory}: start one with `penstock serve`, "
            "name the directory with --data, or the service with --admin-url or --context."
        )
    try:
        return AdminEndpoint(
            *(str(runtime[name]) for name in ("admin", "admin_token", "ca_file", "namespace"))
        )
    except KeyError as error:
        raise ConfigurationError(f"{directory}/runtime.json lacks {error}.") from error


# --- commands -------------------------------------------------------------------------------------


@dataclasses.dataclass(repr=False)  # the flags may hold a token
class AdminSession:
    """The service that the options name. It is looked up on first use."""

    flags: ServiceFlags
    timeout_s: float = 30.0

    @functools.cached_property
    def admin(self) -> AdminEndpoint:
        return find_admin(self.flags)

    @functools.cached_property
    def client(self) -> ManagementClient:
        return self.admin.client(timeout_s=self.timeout_s)

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

    @property
    def runtime(self) -> Mapping[str, object]:
        """What runtime.json adds, if it is the file of this service; otherwise nothing."""
        with suppress(PenstockError):
            runtime = read_runtime(data_directory(self.flags)) or {}
            return runtime if runtime.get("admin") == self.admin.url else {}
        return {}

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
