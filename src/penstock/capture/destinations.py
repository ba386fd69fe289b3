"""Destinations by configuration: URL parts, options, credentials, resolution.

The configuration names the destinations, `[capture.destinations.NAME]`. What a hub's description
says (`storageAccountResourceId`, `blobContainer`) only chooses among them.

| URL | Storage |
|---|---|
| `file:///srv/captured` | a directory |
| `abfs://[container[/directory]]`, also `az://` and `abfss://` | Blob or Data Lake Gen2; the account is an option |
| `abfss://container@account.dfs.core.windows.net[/directory]` | the same, as Azure's own tools write it |
| `s3://bucket[/directory]` | S3 or a service with its protocol |
"""  # noqa: E501  # a table

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote, unquote, urlsplit

import msgspec

from penstock.capture.file_names import check_path
from penstock.model import names
from penstock.model.errors import ArgumentError, ConfigurationError

LOCAL = "local"
"""The destination of a service whose configuration names none: a directory of its own."""
AZURE = ("abfs", "abfss", "az")
SCHEMES = ("file", *AZURE, "s3")
# Names of options in the configuration; those of Azure are also the names in fsspec.
SECRETS = ("account_key", "sas_token", "connection_string", "access_key", "secret_key")
AZURE_OPTIONS = ("account_name", "account_host", "account_key", "sas_token", "connection_string")
S3_OPTIONS = ("endpoint_url", "region", "access_key", "secret_key")
AZURE_CREDENTIALS = ("account_key", "sas_token", "connection_string")
_BLOB = "blob.core.windows.net"
_EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"  # the meaning of UseDevelopmentStorage=true


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """A configured destination. `options` has credentials, which no repr shows."""

    name: str
    url: str
    options: dict[str, str] = {}
    iso_time: bool = False  # EnqueuedTimeUtc in ISO 8601 instead of .NET's format

    def __repr__(self) -> str:
        return f"Destination({self.name!r}, {redact_url(self.url)!r})"

    @property
    def parsed_url(self) -> DestinationUrl:
        return parse_destination_url(self.url)


class DestinationFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A destination and the container or directory in it that a hub's files go to."""

    destination: Destination
    container: str

    @property
    def url(self) -> str:
        """Without credentials."""
        scheme, _, path = redact_url(self.destination.url).partition("://")
        added = self.destination.parsed_url.container_suffix(self.container)
        return f"{scheme}://{'/'.join(piece for piece in (path.rstrip('/'), added) if piece)}"

    def __repr__(self) -> str:
        return f"DestinationFolder({self.url!r})"


class DestinationUrl(msgspec.Struct, frozen=True):
    """`host` is the account's, where the URL names one; `container` is empty where a hub's
    description has to name it."""

    scheme: str
    host: str
    container: str
    path: str

    @property
    def is_local(self) -> bool:
        return self.scheme == "file"

    @property
    def is_azure(self) -> bool:
        return self.scheme in AZURE

    @property
    def account(self) -> str:
        return self.host.partition(".")[0]

    def container_suffix(self, container: str) -> str:
        """What a hub's `blobContainer` adds: nothing where the URL names the same container."""
        return "" if not self.is_local and container == self.container else container

    def root(self, container: str) -> str:
        """The path of a hub's files in the storage."""
        pieces = (self.container, self.path, self.container_suffix(container))
        return "/".join(piece for piece in pieces if piece)


def parse_destination_url(url: str) -> DestinationUrl:
    """The URL has passed `check_destination`."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return DestinationUrl("file", "", "", unquote(parts.path))
    container, _, host = parts.netloc.rpartition("@")
    if not container:
        container, host = host, ""
    return DestinationUrl(parts.scheme, host.lower(), container, parts.path.strip("/"))


def redact_url(url: str) -> str:
    """Without a possible secret: before an `@` only Azure's container is kept."""
    parts = urlsplit(url)
    before, _, host = parts.netloc.rpartition("@")
    if before and parts.scheme in AZURE:
        host = f"{before.partition(':')[0]}@{host}"
    return f"{parts.scheme}://{host}{parts.path}"


def check_destination(name: str, url: str, options: Mapping[str, str]) -> str:
    """Return the URL if it can be used with these options. Raises ConfigurationError."""
    parts = urlsplit(url)
    quoted = names.quote_text(name)
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(
            f"The destination '{quoted}' has a URL of scheme "
            f"'{names.quote_text(parts.scheme)}': {', '.join(SCHEMES)} are allowed."
        )
    # Before the `@` of an Azure URL is the container.
    is_user = parts.username and parts.scheme not in AZURE
    if is_user or parts.password or parts.query or parts.fragment:
        raise ConfigurationError(
            f"The URL of the destination '{quoted}' has credentials or a query: "
            "use the keys for them (account_key, sas_token, connection_string, ...)."
        )
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or len(parts.path) < 2):
        raise ConfigurationError(f"The destination '{quoted}' is not file:///absolute/path.")
    if ".." in unquote(parts.path).split("/"):
        raise ConfigurationError(f"The URL of '{quoted}' has a '..' in its path.")
    allowed = _allowed_options(parts.scheme)
    for option in options:
        if option not in allowed:
            raise ConfigurationError(
                f"The destination '{quoted}' has the option '{names.quote_text(option)}': a "
                f"{parts.scheme}:// URL allows {', '.join(allowed) or 'none'}."
            )
    if sum(option in options for option in AZURE_CREDENTIALS) > 1:
        raise ConfigurationError(
            f"The destination '{quoted}' has more than one of {', '.join(AZURE_CREDENTIALS)}: "
            "give one."
        )
    return url


def _allowed_options(scheme: str) -> tuple[str, ...]:
    if scheme == "file":
        return ()
    return AZURE_OPTIONS if scheme in AZURE else S3_OPTIONS


def option_variable(name: str, option: str) -> str:
    """The environment variable of an option that the configuration leaves out.

    >>> option_variable("cold-store", "account_key")
    'PENSTOCK_CAPTURE_COLD_STORE_ACCOUNT_KEY'
    """
    return f"PENSTOCK_CAPTURE_{re.sub('[^A-Z0-9]', '_', name.upper())}_{option.upper()}"


def environment_destination(
    name: str, url: str, environ: Mapping[str, str], options: Mapping[str, str] | None = None
) -> Destination:
    """A destination that the service names, with credentials of this machine's environment, or
    with those `options` that its kind of URL has."""
    values = {
        option: environ[option_variable(name, option)]
        for option in (*AZURE_OPTIONS, *S3_OPTIONS)
        if option_variable(name, option) in environ
    }
    allowed = _allowed_options(urlsplit(url).scheme)
    values |= {option: value for option, value in (options or {}).items() if option in allowed}
    check_destination(name, url, values)
    return Destination(name=name, url=url, options=values)


def resolve_destination(
    destinations: Sequence[Destination], account: str, container: str
) -> DestinationFolder:
    """`account` is a destination's name, or a Resource Manager id that ends in it. Raises
    ArgumentError for a destination that is not configured: nothing else is written to."""
    requested = account.rstrip("/").rpartition("/")[2]
    for destination in destinations:
        if names.fold_name(destination.name) == names.fold_name(requested):
            if container:
                check_path(container)
            _check_account(destination)
            return DestinationFolder(destination=destination, container=container)
    configured = ", ".join(destination.name for destination in destinations) or "none"
    raise ArgumentError(
        f"Capture's destination '{names.quote_text(requested)}' is not configured. Configured: "
        f"{configured}. Name it in [capture.destinations.NAME] of the service's configuration."
    )


def _check_account(destination: Destination) -> None:
    if "connection_string" in destination.options:
        return  # Azure's library finds its account
    url = destination.parsed_url
    if url.is_azure and not storage_endpoint(url, destination.options):
        raise ArgumentError(
            f"Capture's destination '{destination.name}' names no storage account: give it "
            "account_name, connection_string or abfss://container@account.dfs.core.windows.net."
        )


def storage_endpoint(url: DestinationUrl, options: Mapping[str, str]) -> str:
    """The account's Blob endpoint, `https://account.blob.core.windows.net`; empty when neither URL
    nor options name it. Files of Data Lake Gen2 are blobs too, at the account's other host."""
    if "connection_string" in options:
        return _connection_string_endpoint(options["connection_string"])
    if host := options.get("account_host"):
        return f"https://{host.rstrip('/')}"
    if url.host:
        return f"https://{url.host.replace('.dfs.', '.blob.', 1)}"
    account = options.get("account_name")
    return f"https://{account}.{_BLOB}" if account else ""


def connection_fields(text: str) -> dict[str, str]:
    """The fields of an Azure Storage connection string, names in lower case.

    >>> connection_fields("AccountName=a;AccountKey=x==")
    {'accountname': 'a', 'accountkey': 'x=='}
    """
    pairs = (part.partition("=") for part in text.split(";") if "=" in part)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def _connection_string_endpoint(text: str) -> str:
    fields = connection_fields(text)
    if fields.get("usedevelopmentstorage", "").lower() == "true":
        return _EMULATOR
    if endpoint := fields.get("blobendpoint"):
        return endpoint.rstrip("/").partition("?")[0]
    name = fields.get("accountname")
    if not name:
        return ""
    protocol = fields.get("defaultendpointsprotocol", "https")
    suffix = fields.get("endpointsuffix", "core.windows.net")
    return f"{protocol}://{name}.blob.{suffix}"


def file_url(destination: Destination, root: str, path: str) -> str:
    """The file's address for the storage's own clients, as Event Grid's `fileUrl` has it."""
    url, quoted = destination.parsed_url, quote(f"{root}/{path}")
    if url.is_local:
        return f"file://{quoted}"
    endpoint = storage_endpoint(url, destination.options) if url.is_azure else ""
    return f"{endpoint}/{quoted}" if endpoint else f"{url.scheme}://{quoted}"
