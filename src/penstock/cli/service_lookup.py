"""Which service a command talks to: flags, environment, context, then runtime.json (docs/cli.md).

Each step is asked for the whole: a flag that names another service is never mixed with a key that
the environment holds for the first. Within a step an address wins over a data directory.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from penstock.cli.contexts import ServiceContext, selected_context
from penstock.model.errors import ConfigurationError, NotFound

if TYPE_CHECKING:
    from penstock.management.client import ManagementClient
    from penstock.model.connection_string import Endpoint

DATA_DEFAULT = Path("penstock-data")


class ServiceFlags(NamedTuple):
    """The flags that name a service; None is what was not given."""

    data: Path | None = None
    context: str | None = None
    admin_url: str | None = None
    admin_token: str | None = None
    ca_file: Path | None = None
    namespace: str | None = None


class AdminEndpoint(NamedTuple):
    """The administration of one service. `namespace` is the one that is meant when none is said."""

    url: str
    token: str | Path | None  # a path is of a file whose token is replaced from time to time
    ca_file: str | None
    namespace: str | None

    def client(self, *, timeout_s: float = 30.0) -> ManagementClient:
        from penstock.management.client import ManagementClient

        if self.token is None:
            raise ConfigurationError(
                f"The admin token of {self.url} is not known: give --admin-token, or set "
                "PENSTOCK_ADMIN_TOKEN."
            )
        return ManagementClient(self.url, self.token, ca_file=self.ca_file, timeout_s=timeout_s)


def find_admin(where: ServiceFlags) -> AdminEndpoint:
    """Raises NotFound when no service is known."""
    step = _of_flags(where) or _of_environment(os.environ) or _of_context(None)
    admin = _admin_of_data(DATA_DEFAULT) if step is None else _admin(step)
    return AdminEndpoint(
        url=admin.url,
        token=where.admin_token or admin.token or _token_file(admin.url),
        ca_file=_path_text(where.ca_file) or admin.ca_file,
        namespace=where.namespace or os.environ.get("PENSTOCK_NAMESPACE") or admin.namespace,
    )


def data_directory(where: ServiceFlags) -> Path:
    """The directory itself, for what is done to files."""
    if where.data is not None:
        return where.data
    for step in (_of_flags(where), _of_environment(os.environ), _of_context(None)):
        if step is not None and step.data is not None:
            return Path(step.data)
    return DATA_DEFAULT


def find_endpoint(
    connection_string: str | None, data: Path | None, context: str | None = None
) -> tuple[Endpoint, ssl.SSLContext | None]:
    """Where events are sent to and read from, and how its certificate is verified."""
    from penstock.model.connection_string import parse_connection_string

    text, ca_file = find_connection_string(connection_string, data, context)
    endpoint = parse_connection_string(text)
    if not endpoint.tls:
        return endpoint, None
    return endpoint, ssl.create_default_context(cafile=ca_file)


def find_connection_string(
    connection_string: str | None, data: Path | None, context: str | None = None
) -> tuple[str, str | None]:
    """Of where events are sent to and read from, and the CA file where one is known."""
    ca_file = os.environ.get("PENSTOCK_CA_FILE")
    if connection_string is not None:
        return connection_string, ca_file or _ca_of_data(data)
    flags = _of_flags(ServiceFlags(data=data, context=context))
    given = os.environ.get("PENSTOCK_CONNECTION_STRING")
    if flags is None and given:
        return given, ca_file or _ca_of_data(None)
    step = flags or _of_environment(os.environ) or _of_context(None)
    if step is not None and step.connection_string is not None:
        return step.connection_string, step.ca_file
    directory = Path(step.data) if step is not None and step.data is not None else DATA_DEFAULT
    facts = _read_runtime(directory)
    text = facts.get("emulator_connection_string") or facts.get("connection_string")
    if text is None:
        raise NotFound(
            "No service is known: give --connection-string, set PENSTOCK_CONNECTION_STRING, use a "
            "context, or run in the directory where `penstock serve` keeps ./penstock-data."
        )
    return str(text), str(facts["ca_file"])


def _token_file(url: str) -> Path | None:
    """PENSTOCK_ADMIN_TOKEN_FILE, if the environment's service is the one at `url`."""
    file = os.environ.get("PENSTOCK_ADMIN_TOKEN_FILE")
    return Path(file) if file and url == os.environ.get("PENSTOCK_ADMIN_URL") else None


# --- steps ----------------------------------------------------------------------------------------


def _of_flags(where: ServiceFlags) -> ServiceContext | None:
    if where.admin_url is not None:
        # The environment's token is of the environment's service, where it names one.
        own = os.environ.get("PENSTOCK_ADMIN_URL") in (None, "", where.admin_url)
        return ServiceContext(
            admin_url=where.admin_url,
            admin_token=os.environ.get("PENSTOCK_ADMIN_TOKEN") if own else None,
            ca_file=os.environ.get("PENSTOCK_CA_FILE") if own else None,
        )
    if where.context is not None:
        return _of_context(where.context)
    return None if where.data is None else ServiceContext(data=str(where.data))


def _of_environment(environ: Mapping[str, str]) -> ServiceContext | None:
    url = environ.get("PENSTOCK_ADMIN_URL")
    if url:
        return ServiceContext(
            admin_url=url,
            admin_token=environ.get("PENSTOCK_ADMIN_TOKEN"),
            ca_file=environ.get("PENSTOCK_CA_FILE"),
        )
    if environ.get("PENSTOCK_CONTEXT"):
        return _of_context(environ["PENSTOCK_CONTEXT"])
    data = environ.get("PENSTOCK_DATA")
    return ServiceContext(data=data) if data else None


def _of_context(name: str | None) -> ServiceContext | None:
    found = selected_context(name)
    return None if found is None else found[1]


def _admin(step: ServiceContext) -> AdminEndpoint:
    if step.admin_url is not None:
        return AdminEndpoint(step.admin_url, step.admin_token, step.ca_file, step.namespace)
    if step.data is None:
        raise ConfigurationError(
            "This context names no administration: `penstock context add` it again with "
            "--admin-url, or with --data."
        )
    admin = _admin_of_data(Path(step.data))
    return admin._replace(namespace=step.namespace or admin.namespace)


def _admin_of_data(directory: Path) -> AdminEndpoint:
    from penstock.io.runtime_file import read_runtime

    facts = read_runtime(directory)
    if facts is None:
        raise NotFound(
            f"No service runs on the data directory {directory}: start one with `penstock serve`, "
            "name the directory with --data, or the service with --admin-url or --context."
        )
    try:
        url, token, ca_file = (str(facts[name]) for name in ("admin", "admin_token", "ca_file"))
        return AdminEndpoint(url, token, ca_file, str(facts["namespace"]))
    except KeyError as error:
        raise ConfigurationError(f"{directory}/runtime.json lacks {error}.") from error


def _ca_of_data(data: Path | None) -> str | None:
    """Of the service on this machine, which the string probably means; None: the system's."""
    directory = data or Path(os.environ.get("PENSTOCK_DATA") or DATA_DEFAULT)
    found = _read_runtime(directory).get("ca_file")
    return None if found is None else str(found)


def _read_runtime(directory: Path) -> Mapping[str, object]:
    from penstock.io.runtime_file import read_runtime

    return read_runtime(directory) or {}


def _path_text(path: Path | None) -> str | None:
    return None if path is None else str(path)
