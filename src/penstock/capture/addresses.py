"""A destination's URL taken apart: which account and container or bucket, which directory.

| URL | is |
|---|---|
| `file:///srv/captured` | a directory |
| `abfs://[container[/directory]]`, `az://` and `abfss://` alike | Blob or Data Lake Gen2; the account is an option |
| `abfss://container@account.dfs.core.windows.net[/directory]` | the same, as Azure's own tools write it |
| `s3://bucket[/directory]` | S3 or what speaks its protocol |
"""  # noqa: E501  # a table

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import SplitResult, quote, unquote, urlsplit

import msgspec

AZURE = ("abfs", "abfss", "az")
SCHEMES = ("file", *AZURE, "s3")
_BLOB = "blob.core.windows.net"
_EMULATOR = "http://127.0.0.1:10000/devstoreaccount1"  # what UseDevelopmentStorage=true means


class DestinationUrl(msgspec.Struct, frozen=True):
    """`host` is the account's, where the URL names one; `container` is empty where the description
    of a hub has to name it."""

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
        """What a hub's `blobContainer` adds: nothing where the URL names the very same."""
        return "" if not self.is_local and container == self.container else container

    def root(self, container: str) -> str:
        """The place of a hub's files in its storage."""
        pieces = (self.container, self.path, self.container_suffix(container))
        return "/".join(piece for piece in pieces if piece)


def parse_destination_url(url: str) -> DestinationUrl:
    """Of a URL that `is_addressable`."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        return DestinationUrl("file", "", "", unquote(parts.path))
    container, _, host = parts.netloc.rpartition("@")
    if not container:
        container, host = host, ""
    return DestinationUrl(parts.scheme, host.lower(), container, parts.path.strip("/"))


def has_credentials(parts: SplitResult) -> bool:
    """Whether a URL holds what has options of its own. Before the `@` of an Azure URL stands the
    container."""
    own = parts.username and parts.scheme not in AZURE
    return bool(own or parts.password or parts.query or parts.fragment)


def storage_endpoint(address: DestinationUrl, options: Mapping[str, str]) -> str:
    """Where the account's blobs are, `https://account.blob.core.windows.net`; empty when neither
    URL nor options tell. Data Lake Gen2's files are blobs too, at the account's other host."""
    if "connection_string" in options:
        return _of_connection_string(options["connection_string"])
    if host := options.get("account_host"):
        return f"https://{host.rstrip('/')}"
    if address.host:
        return f"https://{address.host.replace('.dfs.', '.blob.', 1)}"
    name = options.get("account_name")
    return f"https://{name}.{_BLOB}" if name else ""


def connection_fields(text: str) -> dict[str, str]:
    """Of an Azure Storage connection string, names in small letters.

    >>> connection_fields("AccountName=a;AccountKey=x==")
    {'accountname': 'a', 'accountkey': 'x=='}
    """
    pairs = (part.partition("=") for part in text.split(";") if "=" in part)
    return {name.strip().lower(): value.strip() for name, _, value in pairs}


def file_url(address: DestinationUrl, options: Mapping[str, str], root: str, path: str) -> str:
    """As Event Grid's `fileUrl` has it: an address that the storage's own clients open."""
    if address.is_local:
        return f"file://{quote(f'{root}/{path}')}"
    whole = quote(f"{root}/{path}")
    if not address.is_azure:
        return f"s3://{whole}"
    endpoint = storage_endpoint(address, options)
    return f"{endpoint}/{whole}" if endpoint else f"{address.scheme}://{whole}"


def _of_connection_string(text: str) -> str:
    fields = connection_fields(text)
    if fields.get("usedevelopmentstorage", "").lower() == "true":
        return _EMULATOR
    if told := fields.get("blobendpoint"):
        return told.rstrip("/").partition("?")[0]
    name = fields.get("accountname")
    if not name:
        return ""
    protocol = fields.get("defaultendpointsprotocol", "https")
    suffix = fields.get("endpointsuffix", "core.windows.net")
    return f"{protocol}://{name}.blob.{suffix}"
