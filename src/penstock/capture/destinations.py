"""Where captured files go: directories, Blob, Data Lake and S3, by way of fsspec.

A destination is one that the configuration names: `[capture.destinations.NAME]`. What a hub's
description says (`storageAccountResourceId`, `blobContainer`) only chooses among them. A file
appears whole or not at all: it is written elsewhere and put in place at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote, urlsplit

import msgspec

from penstock.capture.addresses import (
    AZURE,
    SCHEMES,
    connection_fields,
    file_url,
    has_credentials,
    parse_destination_url,
    storage_endpoint,
)
from penstock.capture.file_names import check_path
from penstock.io.files import fsync_directory
from penstock.model import names
from penstock.model.errors import ArgumentError, ConfigurationError, NotFound, PenstockError

LOCAL = "local"
"""The destination of a service whose configuration names none: a directory of its own."""
# Options by scheme: what the configuration calls them, and what fsspec's file systems do.
SECRETS = ("account_key", "sas_token", "connection_string", "access_key", "secret_key")
AZURE_OPTIONS = ("account_name", "account_host", "account_key", "sas_token", "connection_string")
S3_OPTIONS = ("endpoint_url", "region", "access_key", "secret_key")
_CREDENTIALS = ("account_key", "sas_token", "connection_string")
_TIMEOUT_S = 60
_TRIES_AGAIN = 1
_SHOWN_MAX = 300  # of what a library says: an operator has to understand it
_NO_CONSTRAINT = "us-east-1"  # S3 refuses a bucket that is made with its first region's name
# adlfs looks for these too, and a connection string of the environment would win over the
# configuration's own account: files would go where no configuration allows it.
_AMBIENT = "AZURE_STORAGE_"
_environment = threading.Lock()


class DestinationError(PenstockError):
    """The storage did not do what was asked; it is asked again."""

    retriable = True


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """One of the configuration. `options` hold credentials; no repr shows them."""

    name: str
    url: str
    options: dict[str, str] = {}
    iso_time: bool = False  # EnqueuedTimeUtc as ISO 8601 instead of .NET's way

    def __repr__(self) -> str:
        return f"Destination({self.name!r}, {redact_url(self.url)!r})"

    __str__ = __repr__


class DestinationFolder(msgspec.Struct, frozen=True, kw_only=True):
    """A destination, and the place in it that a hub's files go to."""

    destination: Destination
    container: str

    @property
    def url(self) -> str:
        """Without credentials: for people."""
        scheme, _, rest = redact_url(self.destination.url).partition("://")
        added = parse_destination_url(self.destination.url).container_suffix(self.container)
        path = "/".join(piece for piece in (rest.rstrip("/"), added) if piece)
        return f"{scheme}://{path}"

    def __repr__(self) -> str:
        return f"Target({self.url!r})"


def check_destination(name: str, url: str, options: Mapping[str, str]) -> str:
    """The URL, if it can be used with these options; else the sentence that says why not is the
    error's (ConfigurationError)."""
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise ConfigurationError(
            f"The destination '{names.quote_text(name)}' has a URL of scheme "
            f"'{names.quote_text(parts.scheme)}': {', '.join(SCHEMES)} are allowed."
        )
    if has_credentials(parts):
        raise ConfigurationError(
            f"The URL of the destination '{names.quote_text(name)}' holds credentials or a query: "
            "they have keys of their own (account_key, sas_token, connection_string, ...)."
        )
    if parts.scheme == "file" and (parts.netloc not in ("", "localhost") or len(parts.path) < 2):
        raise ConfigurationError(
            f"The destination '{names.quote_text(name)}' is no file:///absolute/path."
        )
    if any(part == ".." for part in unquote(parts.path).split("/")):
        raise ConfigurationError(f"The URL of '{names.quote_text(name)}' has a '..' in its path.")
    allowed = _options_of(parts.scheme)
    for option in options:
        if option not in allowed:
            told = ", ".join(allowed) or "none"
            raise ConfigurationError(
                f"The destination '{names.quote_text(name)}' has the option "
                f"'{names.quote_text(option)}': "
                f"of a {parts.scheme}:// URL {told} are allowed."
            )
    if sum(option in options for option in _CREDENTIALS) > 1:
        raise ConfigurationError(
            f"The destination '{names.quote_text(name)}' has more than one of "
            f"{', '.join(_CREDENTIALS)}: give one."
        )
    return url


def _options_of(scheme: str) -> tuple[str, ...]:
    if scheme == "file":
        return ()
    return AZURE_OPTIONS if scheme in AZURE else S3_OPTIONS


def option_variable(name: str, option: str) -> str:
    """Of the environment, for an option that the configuration leaves out.

    >>> variable_of("cold-store", "account_key")
    'PENSTOCK_CAPTURE_COLD_STORE_ACCOUNT_KEY'
    """
    return f"PENSTOCK_CAPTURE_{re.sub('[^A-Z0-9]', '_', name.upper())}_{option.upper()}"


def environment_destination(
    name: str, url: str, environ: Mapping[str, str], options: Mapping[str, str] | None = None
) -> Destination:
    """One that the service names, with credentials of this machine's environment, or with options
    that are given: those that its kind of URL knows."""
    found = {
        option: environ[option_variable(name, option)]
        for option in (*AZURE_OPTIONS, *S3_OPTIONS)
        if option_variable(name, option) in environ
    }
    known = _options_of(urlsplit(url).scheme)
    found |= {option: value for option, value in (options or {}).items() if option in known}
    check_destination(name, url, found)
    return Destination(name=name, url=url, options=found)


def resolve_destination(
    destinations: Sequence[Destination], account: str, container: str
) -> DestinationFolder:
    """`account` is a destination's name, or a Resource Manager id that ends in it. Raises
    ArgumentError: nothing that the configuration does not name is written to."""
    wanted = account.rstrip("/").rpartition("/")[2]
    for destination in destinations:
        if names.fold_name(destination.name) == names.fold_name(wanted):
            if container:
                check_path(container)
            _check_account(destination)
            return DestinationFolder(destination=destination, container=container)
    known = ", ".join(destination.name for destination in destinations) or "none"
    raise ArgumentError(
        f"Capture's destination '{names.quote_text(wanted)}' is not configured. Configured: "
        f"{known}. "
        "Name it in [capture.destinations.NAME] of the service's configuration."
    )


def _check_account(destination: Destination) -> None:
    address = parse_destination_url(destination.url)
    if "connection_string" in destination.options:
        return  # whose account Azure's library finds
    if address.is_azure and not storage_endpoint(address, destination.options):
        raise ArgumentError(
            f"Capture's destination '{destination.name}' names no storage account: give it "
            "account_name, connection_string or abfss://container@account.dfs.core.windows.net."
        )


def redact_url(url: str) -> str:
    """Without what might be a secret: of what stands before an `@` only Azure's container."""
    parts = urlsplit(url)
    before, _, host = parts.netloc.rpartition("@")
    if before and parts.scheme in AZURE:
        host = f"{before.partition(':')[0]}@{host}"
    return f"{parts.scheme}://{host}{parts.path}"


class FileStore:
    """A target, opened. Blocks; for one thread. Raises DestinationError."""

    def __init__(self, target: DestinationFolder) -> None:
        self.target = target
        self._address = parse_destination_url(target.destination.url)
        self._is_local = self._address.is_local
        if self._is_local:
            pieces = target.container.split("/")
            self.root = os.path.join(self._address.path, *pieces)  # noqa: PTH118
            self._base = self._address.path
        else:
            self.root = self._address.root(target.container)
            if not self.root:
                raise ArgumentError(
                    f"The destination '{target.destination.name}' names no container, and neither "
                    "does blobContainer."
                )
        self._file_system: Any = None

    def url(self, path: str) -> str:
        """As people and `CaptureFileCreated` call the file."""
        return file_url(self._address, self.target.destination.options, self.root, path)

    def put(self, source: Path, path: str) -> None:
        """Move a finished local file into place; one that is there is replaced. It is gone from
        where it was, or will be when the spool is swept."""
        with _translate_storage_errors(self, path):
            if self._is_local:
                self._put_local(source, path)
                return
            try:
                self._remote.put_file(str(source), self._full(path), overwrite=True)
            except FileNotFoundError:
                self._make_container()
                self._remote.put_file(str(source), self._full(path), overwrite=True)
            source.unlink(missing_ok=True)

    def put_bytes(self, content: bytes, path: str, spool: Path) -> None:
        spool.mkdir(parents=True, exist_ok=True)
        source = spool / f"{os.getpid()}-{path.rpartition('/')[2]}"
        with source.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.put(source, path)

    def open(self, path: str) -> BinaryIO:
        """To be read and closed. NotFound."""
        with _translate_storage_errors(self, path):
            if self._is_local:
                return Path(self._inside(path)).open("rb")
            opened: BinaryIO = self._remote.open(self._full(path), "rb")
            return opened

    def size(self, path: str) -> int | None:
        """In bytes; None when there is no such file."""
        try:
            with _translate_storage_errors(self, path):
                if self._is_local:
                    return Path(self._inside(path)).stat().st_size
                self._remote.invalidate_cache()
                told = self._remote.info(self._full(path))
                return int(told["size"]) if told.get("type") == "file" else None
        except NotFound:
            return None

    def files(self, prefix: str = "") -> list[tuple[str, int]]:
        """Paths below the target and sizes, in order, of everything under a directory."""
        with _translate_storage_errors(self, prefix):
            if self._is_local:
                return sorted(self._walk(prefix))
            start = self._full(prefix) if prefix else self.root
            self._remote.invalidate_cache()
            try:
                found = self._remote.find(start, detail=True)
            except FileNotFoundError:
                return []
            cut = len(self.root) + 1
            return sorted(
                (name.lstrip("/")[cut:], int(told.get("size") or 0))
                for name, told in found.items()
                if told.get("type") == "file"
            )

    def check(self) -> None:
        """Whether the storage answers."""
        with _translate_storage_errors(self, ""):
            if self._is_local:
                Path(self.root).mkdir(parents=True, exist_ok=True)
                self._inside("x")
            else:
                self._remote.invalidate_cache()
                try:
                    self._remote.ls(self.root.partition("/")[0])
                except FileNotFoundError:
                    self._make_container()

    # --- a directory ------------------------------------------------------------------------------

    def _put_local(self, source: Path, path: str) -> None:
        target = Path(self.root, path)
        self._make_directories(target.parent)
        self._inside(path)
        try:
            source.replace(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._put_across(source, target)
        fsync_directory(target.parent)

    def _make_directories(self, directory: Path) -> None:
        """Those that are new are on disk before a file stands in them."""
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for each in reversed(missing):
            each.mkdir(exist_ok=True)
            fsync_directory(each.parent)

    def _put_across(self, source: Path, target: Path) -> None:
        """From another file system: by way of a file without a name, so that nobody sees a part."""
        folder = os.open(target.parent, os.O_RDONLY)
        handle = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o644)
        try:
            with os.fdopen(handle, "wb") as file:
                with source.open("rb") as opened:
                    shutil.copyfileobj(opened, file, 1024 * 1024)
                file.flush()
                os.fsync(file.fileno())
                # With a directory given, Python lets the system follow the link to our file.
                link = f"/proc/self/fd/{file.fileno()}"
                try:
                    os.link(link, target.name, src_dir_fd=folder, dst_dir_fd=folder)
                except FileExistsError:
                    aside = f".{target.name}.{os.getpid()}"
                    Path(target.parent, aside).unlink(missing_ok=True)
                    os.link(link, aside, src_dir_fd=folder, dst_dir_fd=folder)
                    Path(target.parent, aside).replace(target)
        finally:
            os.close(folder)
        source.unlink(missing_ok=True)

    def _inside(self, path: str) -> str:
        """The file's real path: no link on the way leads out of the destination."""
        check_path(path)
        base = os.path.realpath(self._base)
        real = os.path.realpath(Path(self.root, path).parent)
        if real != base and not real.startswith(base.rstrip("/") + "/"):
            raise ArgumentError(
                f"'{names.quote_text(path)}' leads out of the destination "
                f"'{self.target.destination.name}' by a symbolic link."
            )
        return str(Path(real, Path(path).name))

    def _walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        top = Path(self.root, prefix) if prefix else Path(self.root)
        for folder, _, found in os.walk(top):
            for name in found:
                file = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    yield str(file.relative_to(self.root)), file.stat().st_size

    # --- the others -------------------------------------------------------------------------------

    @property
    def _remote(self) -> Any:
        if self._file_system is None:
            import fsspec  # type: ignore[import-untyped]

            protocol = "abfs" if self._address.is_azure else "s3"
            with _own_environment():
                self._file_system = fsspec.filesystem(
                    protocol,
                    skip_instance_cache=True,
                    use_listings_cache=False,
                    **_options(self.target.destination),
                )
            _try_again_soon(self._file_system)
        return self._file_system

    def _full(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}"

    def _make_container(self) -> None:
        told = {}
        region = self.target.destination.options.get("region")
        if region and region != _NO_CONSTRAINT:
            told["region_name"] = region
        with contextlib.suppress(FileExistsError):
            self._remote.mkdir(self.root.partition("/")[0], **told)


def _options(destination: Destination) -> dict[str, Any]:
    """In fsspec's words. Without a credential Azure's own chain of them is asked."""
    given = destination.options
    if parse_destination_url(destination.url).scheme == "s3":
        return {
            "key": given.get("access_key"),
            "secret": given.get("secret_key"),
            "endpoint_url": given.get("endpoint_url"),
            # Not as the client's: s3fs would make every bucket with it, see `_make_container`.
            "config_kwargs": {"region_name": given["region"]} if "region" in given else {},
        }
    options: dict[str, Any] = {name: given[name] for name in AZURE_OPTIONS if name in given}
    if "connection_string" not in options:
        address = parse_destination_url(destination.url)
        options.setdefault("account_name", address.account)
        options["account_host"] = storage_endpoint(address, given).partition("://")[2]
    if not any(name in options for name in _CREDENTIALS):
        options["anon"] = False  # DefaultAzureCredential
    options["connection_timeout"] = options["read_timeout"] = _TIMEOUT_S
    return options


def _try_again_soon(file_system: Any) -> None:
    """Azure's library waits 15 seconds before it tries again, and longer each time: a minute until
    anybody hears that storage is away. Whoever uses a store tries again himself."""
    client = getattr(file_system, "service_client", None)
    for policy in getattr(getattr(client, "_pipeline", None), "_impl_policies", ()):
        if hasattr(policy, "initial_backoff"):
            policy.initial_backoff = policy.increment_base = 1
            policy.total_retries = _TRIES_AGAIN


@contextlib.contextmanager
def _own_environment() -> Iterator[None]:
    """Without what adlfs would take instead of what it is given."""
    with _environment:
        kept = {
            name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_AMBIENT)
        }
        try:
            yield
        finally:
            os.environ.update(kept)


@contextlib.contextmanager
def _translate_storage_errors(store: FileStore, path: str) -> Iterator[None]:
    """Every library has errors of its own, some with a URL and a signature in them."""
    try:
        yield
    except PenstockError:
        raise
    except FileNotFoundError:
        raise NotFound(f"There is no '{names.quote_text(path)}' at {store.target.url}.") from None
    except Exception as error:  # noqa: BLE001  # of whatever library
        text = _redact_secrets(store.target.destination, f"{type(error).__name__}: {error}")
        raise DestinationError(
            f"{store.target.url} did not take or give '{names.quote_text(path)}': "
            f"{names.quote_text(text.rstrip('.'), most=_SHOWN_MAX)}."
        ) from None


def _redact_secrets(destination: Destination, text: str) -> str:
    text = text.partition("\n")[0].partition("?")[0]
    for secret in _secrets(destination.options):
        text = text.replace(secret, "***")
    return text


def _secrets(options: Mapping[str, str]) -> Iterator[str]:
    """Whole, and the parts of them that an error might show alone."""
    for name in SECRETS:
        if given := options.get(name):
            yield given
    fields = connection_fields(options.get("connection_string", ""))
    told = [fields.get("accountkey"), fields.get("sharedaccesssignature")]
    told += re.findall(r"sig=([^&;]+)", ";".join(options.values()))
    yield from (secret for secret in told if secret)
