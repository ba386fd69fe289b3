"""FileStore: put, open, list and check files at a destination, local or by way of fsspec.

A file appears whole or not at all: it is written elsewhere and put in place at the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from penstock.capture import destinations
from penstock.capture.destinations import Destination, DestinationFolder
from penstock.capture.file_names import check_path
from penstock.io.files import fsync_directory, write_file_atomically
from penstock.model import names
from penstock.model.backoff import Backoff
from penstock.model.errors import ArgumentError, NotFound, PenstockError
from penstock.model.extras import require_extra

UPLOAD_TRIES = 5
_BACKOFF = Backoff(0.5, 4.0)
_TIMEOUT_S = 60
_RETRIES = 1
_TEXT_MAX = 300  # of a library's error: an operator has to understand it
_DEFAULT_REGION = "us-east-1"  # S3 refuses to create a bucket with this name as a constraint
# adlfs reads these too, and a connection string of the environment would win over the configured
# account: files would go where the configuration does not allow it.
_AMBIENT = "AZURE_STORAGE_"
_environment_lock = threading.Lock()


class DestinationError(PenstockError):
    """The storage failed to do something; the caller retries."""

    retriable = True


class FileStore:
    """An opened destination folder. Blocks; for one thread. Raises DestinationError, and
    MissingPackage when the extra of its storage is not installed."""

    def __init__(self, target: DestinationFolder) -> None:
        self.target = target
        self._url = target.destination.parsed_url
        self._is_local = self._url.is_local
        if self._is_local:
            self.root = str(Path(self._url.path, *target.container.split("/")))
        else:
            require_extra("capture" if self._url.is_azure else "s3")
            self.root = self._url.root(target.container)
            if not self.root:
                raise ArgumentError(
                    f"The destination '{target.destination.name}' names no container, and neither "
                    "does blobContainer."
                )
        self._file_system: Any = None

    def url(self, path: str) -> str:
        """The file's address for people and in `CaptureFileCreated`."""
        return destinations.file_url(self.target.destination, self.root, path)

    def put(self, source: Path, path: str) -> None:
        """Move a complete local file to `path`, replacing an existing one."""
        with _translate_storage_errors(self, path):
            if self._is_local:
                self._put_local(source, path)
                return
            try:
                self._remote.put_file(str(source), self._full(path), overwrite=True)
            except FileNotFoundError:
                self._create_container()
                self._remote.put_file(str(source), self._full(path), overwrite=True)
            source.unlink(missing_ok=True)

    def upload(self, source: Path, path: str, tries: int = UPLOAD_TRIES) -> None:
        """`put` with retries for some seconds: a failure means that events are read again."""
        for attempt in range(1, tries):
            try:
                return self.put(source, path)
            except DestinationError:
                time.sleep(_BACKOFF.pause_s(attempt))
        self.put(source, path)

    def put_bytes(self, content: bytes, path: str, spool: Path) -> None:
        spool.mkdir(parents=True, exist_ok=True)
        source = spool / f"{os.getpid()}-{path.rpartition('/')[2]}"
        write_file_atomically(source, content, mode=0o644)
        self.put(source, path)

    def open(self, path: str) -> BinaryIO:
        """For reading; the caller closes it. Raises NotFound."""
        with _translate_storage_errors(self, path):
            if self._is_local:
                return Path(self._resolve_inside(path)).open("rb")
            opened: BinaryIO = self._remote.open(self._full(path), "rb")
            return opened

    def size(self, path: str) -> int | None:
        """In bytes; None when there is no such file."""
        try:
            with _translate_storage_errors(self, path):
                if self._is_local:
                    return Path(self._resolve_inside(path)).stat().st_size
                self._remote.invalidate_cache()
                info = self._remote.info(self._full(path))
                return int(info["size"]) if info.get("type") == "file" else None
        except NotFound:
            return None

    def files(self, prefix: str = "") -> list[tuple[str, int]]:
        """Paths and sizes of all files below a directory, sorted."""
        with _translate_storage_errors(self, prefix):
            if self._is_local:
                return sorted(self._walk(prefix))
            start = self._full(prefix) if prefix else self.root
            self._remote.invalidate_cache()
            try:
                infos = self._remote.find(start, detail=True)
            except FileNotFoundError:
                return []
            root_length = len(self.root) + 1
            return sorted(
                (name.lstrip("/")[root_length:], int(info.get("size") or 0))
                for name, info in infos.items()
                if info.get("type") == "file"
            )

    # --- a local directory ------------------------------------------------------------------------

    def _put_local(self, source: Path, path: str) -> None:
        target = Path(self.root, path)
        self._make_directories(target.parent)
        self._resolve_inside(path)
        try:
            source.replace(target)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._put_across(source, target)
        fsync_directory(target.parent)

    def _make_directories(self, directory: Path) -> None:
        """New directories are flushed before a file is put into them."""
        missing = []
        while not directory.exists():
            missing.append(directory)
            directory = directory.parent
        for new in reversed(missing):
            new.mkdir(exist_ok=True)
            fsync_directory(new.parent)

    def _put_across(self, source: Path, target: Path) -> None:
        """From another file system, through a file without a name: no reader sees a part of it."""
        folder = os.open(target.parent, os.O_RDONLY)
        handle = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY, 0o644)
        try:
            with os.fdopen(handle, "wb") as file:
                with source.open("rb") as opened:
                    shutil.copyfileobj(opened, file, 1024 * 1024)
                file.flush()
                os.fsync(file.fileno())
                # With a directory handle, os.link follows the symbolic link to our file.
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

    def _resolve_inside(self, path: str) -> str:
        """The file's real path. Raises ArgumentError where a symbolic link leads out of the
        destination."""
        check_path(path)
        base = os.path.realpath(self._url.path)
        real = os.path.realpath(Path(self.root, path).parent)
        if real != base and not real.startswith(base.rstrip("/") + "/"):
            raise ArgumentError(
                f"'{names.quote_text(path)}' leads out of the destination "
                f"'{self.target.destination.name}' by a symbolic link."
            )
        return str(Path(real, Path(path).name))

    def _walk(self, prefix: str) -> Iterator[tuple[str, int]]:
        for folder, _, file_names in os.walk(Path(self.root, prefix)):
            for name in file_names:
                file = Path(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    yield str(file.relative_to(self.root)), file.stat().st_size

    # --- fsspec -----------------------------------------------------------------------------------

    @property
    def _remote(self) -> Any:
        if self._file_system is None:
            import fsspec  # type: ignore[import-untyped]

            protocol = "abfs" if self._url.is_azure else "s3"
            with _without_ambient_credentials():
                self._file_system = fsspec.filesystem(
                    protocol,
                    skip_instance_cache=True,
                    use_listings_cache=False,
                    **_fsspec_options(self.target.destination),
                )
            _shorten_retries(self._file_system)
        return self._file_system

    def _full(self, path: str) -> str:
        return f"{self.root}/{check_path(path)}"

    def _create_container(self) -> None:
        region = self.target.destination.options.get("region", _DEFAULT_REGION)
        options = {} if region == _DEFAULT_REGION else {"region_name": region}
        with contextlib.suppress(FileExistsError):
            self._remote.mkdir(self.root.partition("/")[0], **options)


def _fsspec_options(destination: Destination) -> dict[str, Any]:
    """In fsspec's names. Without a credential Azure's default chain is used."""
    configured, url = destination.options, destination.parsed_url
    if not url.is_azure:
        return {
            "key": configured.get("access_key"),
            "secret": configured.get("secret_key"),
            "endpoint_url": configured.get("endpoint_url"),
            # Not the client's region: s3fs would create every bucket with it, see
            # `_create_container`.
            "config_kwargs": (
                {"region_name": configured["region"]} if "region" in configured else {}
            ),
        }
    options: dict[str, Any] = {
        name: configured[name] for name in destinations.AZURE_OPTIONS if name in configured
    }
    if "connection_string" not in options:
        options.setdefault("account_name", url.account)
        options["account_host"] = destinations.storage_endpoint(url, configured).partition("://")[2]
    if not any(name in options for name in destinations.AZURE_CREDENTIALS):
        options["anon"] = False  # DefaultAzureCredential
    options["connection_timeout"] = options["read_timeout"] = _TIMEOUT_S
    return options


def _shorten_retries(file_system: Any) -> None:
    """Azure's library waits 15 seconds before its first retry, and longer each time: an outage
    would be reported after a minute. Callers of a store retry themselves."""
    client = getattr(file_system, "service_client", None)
    for policy in getattr(getattr(client, "_pipeline", None), "_impl_policies", ()):
        if hasattr(policy, "initial_backoff"):
            policy.initial_backoff = policy.increment_base = 1
            policy.total_retries = _RETRIES


@contextlib.contextmanager
def _without_ambient_credentials() -> Iterator[None]:
    with _environment_lock:
        hidden = {
            name: os.environ.pop(name) for name in list(os.environ) if name.startswith(_AMBIENT)
        }
        try:
            yield
        finally:
            os.environ.update(hidden)


@contextlib.contextmanager
def _translate_storage_errors(store: FileStore, path: str) -> Iterator[None]:
    """Every library has errors of its own, some with a URL and a signature in them."""
    try:
        yield
    except PenstockError:
        raise
    except FileNotFoundError:
        raise NotFound(f"There is no '{names.quote_text(path)}' at {store.target.url}.") from None
    except Exception as error:  # noqa: BLE001  # of any library
        text = _redact_secrets(store.target.destination.options, f"{type(error).__name__}: {error}")
        raise DestinationError(
            f"{store.target.url} did not take or give '{names.quote_text(path)}': "
            f"{names.quote_text(text.rstrip('.'), most=_TEXT_MAX)}."
        ) from None


def _redact_secrets(options: Mapping[str, str], text: str) -> str:
    """Without whole credentials, and without the parts of them that an error might show alone."""
    text = text.partition("\n")[0].partition("?")[0]
    fields = destinations.connection_fields(options.get("connection_string", ""))
    secrets = [options.get(name) for name in destinations.SECRETS]
    secrets += [fields.get("accountkey"), fields.get("sharedaccesssignature")]
    secrets += re.findall(r"sig=([^&;]+)", ";".join(options.values()))
    for secret in filter(None, secrets):
        text = text.replace(secret, "***")
    return text
