"""`[capture]` of a configuration file: where captured files may go, what the job runs on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from penstock.capture.destinations import (
    AZURE_OPTIONS,
    LOCAL,
    S3_OPTIONS,
    SECRETS,
    Destination,
    check_destination,
    option_variable,
)
from penstock.model.errors import ConfigurationError
from penstock.service.config import document as values
from penstock.service.config.document import ConfigTable, ConfigValue
from penstock.service.config.settings import CaptureJobConfig, NotificationSettings

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_TEXT_MAX = 2048
_SECRET_MAX = 4096
_DESTINATIONS_MAX = 256
_OPTIONS = tuple(dict.fromkeys((*AZURE_OPTIONS, *S3_OPTIONS)))
_text = values.short_text(_TEXT_MAX)
_format = values.choice({"eventgrid": "eventgrid", "cloudevents": "cloudevents"})


class CaptureConfigReader:
    """`environ` is where `..._env` finds its values, and where credentials may stand:
    PENSTOCK_CAPTURE_NAME_ACCOUNT_KEY."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ

    def read(self, root: ConfigTable) -> CaptureJobConfig:
        table = root.table("capture")
        if table is None:
            return CaptureJobConfig()
        table.refuse_unknown(("run", "master", "spark", "notify", "destinations"))
        spark = table.table("spark")
        conf = {} if spark is None else {key: _conf(spark, key) for key in spark.names()}
        return CaptureJobConfig(
            run=table.read("run", values.yes_or_no, True),
            master=table.read("master", _text, CaptureJobConfig().master),
            spark=conf,
            notify=self._notify(table.table("notify")),
            destinations=self._destinations(table.table("destinations")),
        )

    def _destinations(self, table: ConfigTable | None) -> tuple[Destination, ...]:
        if table is None:
            return ()
        found = []
        for name in table.names():
            each = table.table(name)
            assert each is not None
            if _NAME.fullmatch(name) is None:
                raise ConfigurationError(
                    f"{each.where}: a destination's name is 1 to 64 letters, digits, _ . and -."
                )
            found.append(self._destination(name, each))
        if len(found) > _DESTINATIONS_MAX:
            raise ConfigurationError(
                f"{table.where} has {len(found)} entries: at most {_DESTINATIONS_MAX} are allowed."
            )
        return values.unique(found, lambda each: each.name, "destination", table.where)

    def _destination(self, name: str, table: ConfigTable) -> Destination:
        sources = [f"{secret}_{suffix}" for secret in SECRETS for suffix in ("file", "env")]
        table.refuse_unknown(("url", "iso_time", *_OPTIONS, *sources))
        options: dict[str, str] = {}
        for option in _OPTIONS:
            value = (
                self._secret(name, option, table)
                if option in SECRETS
                else table.read(option, _text, "")
            )
            if value:
                options[option] = value
        url = table.read_required("url", _text)
        try:
            check_destination(name, url, options)
        except ConfigurationError as error:
            raise ConfigurationError(f"{table.where}: {error}") from None
        return Destination(
            name=name,
            url=url,
            options=options,
            iso_time=table.read("iso_time", values.yes_or_no, False),
        )

    def _secret(self, name: str, option: str, table: ConfigTable) -> str:
        """From the file itself, from a file, from a variable; what was seen is never shown."""
        given = [key for key in (option, f"{option}_file", f"{option}_env") if key in table]
        if len(given) > 1:
            raise ConfigurationError(
                f"{table.where} has {' and '.join(given)}: one of them is allowed."
            )
        if not given:
            return self._environ.get(option_variable(name, option), "")
        return table.read_required(given[0], self._reader(given[0], option))

    def _reader(self, key: str, option: str) -> values.Reader[str]:
        if key == option:
            return _secret_text
        return _secret_file if key.endswith("_file") else self._secret_variable

    def _secret_variable(self, value: ConfigValue) -> str:
        name = value.text("the name of an environment variable is allowed")
        if name not in self._environ:
            value.refuse("that environment variable is not set")
        return _secret_text(ConfigValue(raw=self._environ[name], where=f"{value.where}: ${name}"))

    def _notify(self, table: ConfigTable | None) -> NotificationSettings | None:
        if table is None:
            return None
        table.refuse_unknown(("url", "url_env", "hub", "format"))
        url = ""
        if "url_env" in table:
            url = table.read_required("url_env", self._secret_variable)
        elif "url" in table:
            url = table.read_required("url", _secret_text)
        hub = table.read("hub", _text, "")
        if bool(url) == bool(hub):
            raise ConfigurationError(f"{table.where} needs a url or a hub, one of the two.")
        if url:
            _check_hook(table.where, url)
        return NotificationSettings(
            url=url, hub=hub, format=table.read("format", _format, "eventgrid")
        )


def destinations_of(config: CaptureJobConfig, data: Path) -> tuple[Destination, ...]:
    """Those of the configuration; of a service that names none, a directory of its own."""
    if config.destinations:
        return config.destinations
    return (Destination(name=LOCAL, url=(data.resolve() / "captured").as_uri()),)


def _conf(table: ConfigTable, key: str) -> str:
    if not key.startswith("spark."):
        raise ConfigurationError(
            f'{table.where}: Spark\'s settings are written "spark.NAME" = ....'
        )
    value = table.value(key)
    assert value is not None
    return str(value.raw).lower() if isinstance(value.raw, bool) else str(value.raw)


def _secret_text(value: ConfigValue) -> str:
    raw = value.raw
    if not isinstance(raw, str) or not 1 <= len(raw) <= _SECRET_MAX or not raw.isprintable():
        raise ConfigurationError(
            f"{value.where} is no usable text: 1 to {_SECRET_MAX} printable characters are allowed."
        )
    return raw


def _secret_file(value: ConfigValue) -> str:
    file = values.path(value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_SECRET_MAX + 1)
    except OSError as error:
        value.refuse(f"the file cannot be read ({error.strerror})")
    text = content.decode(errors="replace").strip()
    return _secret_text(ConfigValue(raw=text, where=f"{value.where}: the content of {file}"))


def _check_hook(where: str, url: str) -> None:
    """A hook's address may hold its key: it is not shown."""
    parts = urlsplit(url)
    is_near = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_near):
        raise ConfigurationError(f"{where}.url is no https:// address (http:// on this machine).")
    if not parts.hostname:
        raise ConfigurationError(f"{where}.url names no host.")
