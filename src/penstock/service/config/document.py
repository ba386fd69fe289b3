"""Values of a configuration, each knowing where it stands, and the readers that check them.

Every refusal is one sentence: the file and line, variable or flag, what was seen, what is allowed.
"""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NoReturn, TypeVar

import msgspec

from penstock.model import limits, quotas
from penstock.model.entities import LimitSet, Secret
from penstock.model.errors import ArgumentError, ConfigurationError
from penstock.model.names import quote_text

T = TypeVar("T")
Reader = Callable[["ConfigValue"], T]
KeyPath = tuple[str | int, ...]

_KEY_FILE_BYTES_MAX = 4 * limits.KB
_PRICE_LIMIT = 1_000_000
_FIELDS_MAX = 4 * limits.KB
_FIELD = re.compile(r"(json|properties)\.\S+|key")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_HOST = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?", re.IGNORECASE)
_TOML_HEADER = re.compile(r"\s*\[(\[)?\s*([^\[\]]+?)\s*\]")
_TOML_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")


class ConfigValue(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as it was given. `typed` is whether its source has numbers and booleans (a file)
    or only texts; `folder` is what relative paths are relative to. `whole` is what the user wrote
    where `raw` is a part of it: errors show it."""

    raw: object
    where: str
    typed: bool = False
    folder: Path = Path()
    whole: str | None = None

    def __repr__(self) -> str:
        return f"Value({self.where})"  # the raw value may be a key

    def refuse(self, allowed: str) -> NoReturn:
        raise ConfigurationError(f"{self.where} is {self._describe()}: {allowed}.")

    def text(self, allowed: str) -> str:
        if not isinstance(self.raw, str):
            self.refuse(allowed)
        return self.raw

    def _describe(self) -> str:
        if self.whole is not None:
            return f"'{quote_text(self.whole)}'"
        if isinstance(self.raw, bool):
            return str(self.raw).lower()
        if isinstance(self.raw, dict | list):
            return "a table" if isinstance(self.raw, dict) else "a list"
        if isinstance(self.raw, Path):
            return str(self.raw)  # whole: a path that is cut cannot be found
        return (
            f"'{quote_text(self.raw)}'" if isinstance(self.raw, str) else quote_text(str(self.raw))
        )


class ConfigTable:
    """One table of a configuration file: its values with their lines, its tables within."""

    def __init__(
        self, document: ConfigDocument, path: KeyPath, entries: Mapping[str, object]
    ) -> None:
        self._document = document
        self._path = path
        self._entries = entries

    @property
    def where(self) -> str:
        return self._document.where(self._path)

    def __contains__(self, key: str) -> bool:
        return key in self._entries

    def names(self) -> list[str]:
        return list(self._entries)

    def value(self, key: str) -> ConfigValue | None:
        if key not in self._entries:
            return None
        where = self._document.where((*self._path, key))
        folder = self._document.file.parent
        return ConfigValue(raw=self._entries[key], where=where, typed=True, folder=folder)

    def read(self, key: str, reader: Reader[T], default: T) -> T:
        value = self.value(key)
        return default if value is None else reader(value)

    def read_required(self, key: str, reader: Reader[T]) -> T:
        value = self.value(key)
        if value is None:
            raise ConfigurationError(f"{self.where} has no '{key}', which it needs.")
        return reader(value)

    def values(self, key: str) -> list[ConfigValue]:
        """The items of a list, each with its own place."""
        whole = self.value(key)
        if whole is None:
            return []
        if not isinstance(whole.raw, list):
            whole.refuse("a list is allowed")
        place = re.escape(key) + "$"
        return [
            ConfigValue(
                raw=item,
                where=re.sub(place, f"{key}[{index}]", whole.where),
                typed=True,
                folder=whole.folder,
            )
            for index, item in enumerate(whole.raw)
        ]

    def tables(self, key: str) -> list[ConfigTable]:
        return [self._table((*self._path, key, n), v) for n, v in enumerate(self.values(key))]

    def table(self, key: str) -> ConfigTable | None:
        value = self.value(key)
        return None if value is None else self._table((*self._path, key), value)

    def refuse_unknown(self, known: Collection[str]) -> None:
        for key in self._entries:
            if key not in known:
                line = self._document.line((*self._path, key))
                raise ConfigurationError(
                    f"{line}: '{quote_text(key)}' is not a setting{_hint(key, known)}"
                )

    def _table(self, path: KeyPath, value: ConfigValue) -> ConfigTable:
        if not isinstance(value.raw, dict):
            value.refuse("a table is allowed")
        return ConfigTable(self._document, path, value.raw)


class ConfigDocument:
    """A TOML file's text beside its content, so that a refusal can name the line."""

    def __init__(self, file: Path, text: str, content: Mapping[str, object]) -> None:
        self.file = file
        self.root = ConfigTable(self, (), content)
        self._lines = dict(_toml_lines(text))

    def where(self, path: KeyPath) -> str:
        """`FILE, line 7: namespaces[0].name`, the line being that of the nearest key found."""
        return f"{self.line(path)}: {_format_key_path(path)}" if path else str(self.file)

    def line(self, path: KeyPath) -> str:
        line = next(
            (
                self._lines[path[:end]]
                for end in range(len(path), 0, -1)
                if path[:end] in self._lines
            ),
            None,
        )
        return str(self.file) if line is None else f"{self.file}, line {line}"


def _toml_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """Where each key stands. Good enough for messages: a key inside an inline table or a multi-line
    string is not found, and its parent's line is named instead."""
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_HEADER.match(line):
            table = ()
            parts = _key_parts(header[2])
            for depth, part in enumerate(parts, 1):
                table += (part,)
                if header[1] and depth == len(parts):
                    counts[table] = counts.get(table, -1) + 1
                if table in counts:
                    table += (counts[table],)
            yield table, number
        elif key := _TOML_KEY.match(line):
            yield (*table, *_key_parts(key[1])), number


def _key_parts(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def _format_key_path(path: KeyPath) -> str:
    """namespaces[0].hubs[1].name"""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".")


def _hint(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key.lower(), known, n=1)
    if near:
        return f": did you mean '{near[0]}'?"
    return f": known here are {', '.join(sorted(known))}."


# --- readers --------------------------------------------------------------------------------------


def whole_number(least: int, most: int) -> Reader[int]:
    allowed = f"a whole number from {least} to {most} is allowed"

    def read(value: ConfigValue) -> int:
        raw = value.raw
        if isinstance(raw, str) and not value.typed and re.fullmatch(r"-?[0-9]{1,9}", raw.strip()):
            raw = int(raw)
        if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
            value.refuse(allowed)
        return raw

    return read


def port(value: ConfigValue) -> int:
    return whole_number(0, 65535)(value)


def yes_or_no(value: ConfigValue) -> bool:
    raw = value.raw
    if isinstance(raw, str) and not value.typed:
        raw = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}.get(raw.lower())
    if not isinstance(raw, bool):
        value.refuse("true or false is allowed")
    return raw


def choice(options: Mapping[str, T]) -> Reader[T]:
    """One of a few words, in any case."""
    allowed = f"{' or '.join(options)} is allowed"

    def read(value: ConfigValue) -> T:
        word = value.text(allowed).lower()
        if word not in options:
            value.refuse(allowed)
        return options[word]

    return read


def path(value: ConfigValue) -> Path:
    """Relative to the folder of the file that names it, else to the current one."""
    allowed = "a path is allowed"
    raw = str(value.raw) if isinstance(value.raw, Path) else value.text(allowed)
    if not raw or "\0" in raw:
        value.refuse(allowed)
    return value.folder / Path(raw).expanduser()


def name(of: Callable[[str], T]) -> Reader[T]:
    """A name under the model's own rules, whose sentence says what is allowed."""

    def read(value: ConfigValue) -> T:
        try:
            return of(value.text("a name is allowed"))
        except ArgumentError as error:
            raise ConfigurationError(f"{value.where}: {error}") from error

    return read


def host_name(value: ConfigValue) -> str:
    """A host name or address, lower-case, without port and brackets."""
    allowed = "a host name or address without port is allowed"
    host = value.text(allowed).strip().lower()
    bare = host.removeprefix("[").removesuffix("]")
    if len(bare) > limits.HOST_NAME_MAX or not (_HOST.fullmatch(bare) or _is_address(bare)):
        value.refuse(allowed)
    return bare


def host_names(value: ConfigValue) -> tuple[str, ...]:
    """Several host names or addresses; a variable separates them by commas."""
    raw = value.raw
    hosts = raw.split(",") if isinstance(raw, str) and not value.typed else raw
    if not isinstance(hosts, list | tuple):
        value.refuse("a list of host names or addresses is allowed")
    if len(hosts) > limits.HOSTS_PER_NAMESPACE_MAX:
        value.refuse(f"at most {limits.HOSTS_PER_NAMESPACE_MAX} host names are allowed")
    checked = [host_name(msgspec.structs.replace(value, raw=host)) for host in hosts]
    return tuple(dict.fromkeys(checked))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def throughput_units(value: ConfigValue) -> int | None:
    """None: unlimited. Whether more than 20 were granted is for the catalog to say."""
    if isinstance(value.raw, str) and value.raw.lower() == "unlimited":
        return None
    return _units(value, "or unlimited, ")


def maximum_throughput_units(value: ConfigValue) -> int:
    """How far auto-inflate goes; 0: it is off."""
    is_off = value.raw in (0, "0") and not isinstance(value.raw, bool)
    return 0 if is_off else _units(value, "or 0 for no auto-inflate, ")


def _units(value: ConfigValue, also: str) -> int:
    least, most = limits.THROUGHPUT_UNITS_MIN, limits.THROUGHPUT_UNITS_MAX
    allowed = (
        f"a whole number from {least} to {most}, with a grant 40, 60, 80, 100 or a multiple of "
        f"100, {also}is allowed"
    )
    try:
        number = whole_number(least, limits.THROUGHPUT_UNITS_GRANTED_MAX)(value)
    except ConfigurationError:
        value.refuse(allowed)
    if not quotas.is_allowed_units(number):
        value.refuse(allowed)
    return number


limit_set = choice({each.value: each for each in LimitSet})


def partition_count(limit_set: LimitSet) -> Reader[int]:
    """Whether more than 32 were granted is for the catalog to say."""
    least, most = limit_set.partition_count_min, limits.PARTITION_COUNT_GRANTED_MAX

    def read(value: ConfigValue) -> int:
        try:
            return whole_number(least, most)(value)
        except ConfigurationError:
            value.refuse(
                f"a whole number from {least} to {limits.PARTITION_COUNT_MAX}, with a grant to "
                f"{most}, is allowed (limits are '{limit_set}')"
            )

    return read


def granted_units(value: ConfigValue) -> int:
    number = whole_number(0, limits.THROUGHPUT_UNITS_GRANTED_MAX)(value)
    if number <= limits.THROUGHPUT_UNITS_MAX or not quotas.is_allowed_units(number):
        value.refuse("40, 60, 80, 100 or a multiple of 100 is allowed")
    return number


def granted_partitions(value: ConfigValue) -> int:
    return whole_number(limits.PARTITION_COUNT_MAX + 1, limits.PARTITION_COUNT_GRANTED_MAX)(value)


def price(value: ConfigValue) -> Decimal:
    """Of a file: a number, or one as a text where its last digit counts."""
    raw = value.raw
    if isinstance(raw, int | float | str) and not isinstance(raw, bool):
        try:
            found = Decimal(str(raw))
        except InvalidOperation:
            found = Decimal(-1)
        if found.is_finite() and 0 <= found < _PRICE_LIMIT:
            return found
    value.refuse(f"a number from 0 to below {_PRICE_LIMIT} is allowed")


def short_text(most: int) -> Reader[str]:
    """A line for people."""
    allowed = f"a text of 1 to {most} printable characters is allowed"

    def read(value: ConfigValue) -> str:
        text = value.text(allowed)
        if not 1 <= len(text) <= most or not text.isprintable():
            value.refuse(allowed)
        return text

    return read


def fields(value: ConfigValue) -> str:
    """Fields of events, as the portal's mask names them."""
    allowed = "json.NAME, properties.NAME and key are allowed, with commas between them"
    text = value.text(allowed)
    if len(text) > _FIELDS_MAX or not all(
        _FIELD.fullmatch(each.strip()) for each in text.split(",")
    ):
        value.refuse(allowed)
    return text


def secret(value: ConfigValue) -> Secret:
    """A shared access key, of any strength: clients that exist may have it. What was seen is never
    shown."""
    raw = value.raw
    if (
        not isinstance(raw, str)
        or not 1 <= len(raw) <= limits.SAS_KEY_MAX
        or not raw.isprintable()
        or ";" in raw  # it ends a part of a connection string
    ):
        raise ConfigurationError(
            f"{value.where} is no usable key: 1 to {limits.SAS_KEY_MAX} printable characters "
            "without ';' are allowed."
        )
    return Secret(raw)


def secret_file(value: ConfigValue) -> Secret:
    """A key that stands alone in a file, so that it need not stand in the configuration."""
    file = path(value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_KEY_FILE_BYTES_MAX + 1)
        text = content.decode() if len(content) <= _KEY_FILE_BYTES_MAX else ""
    except OSError as error:
        value.refuse(f"the file cannot be read ({error.strerror})")
    except UnicodeDecodeError:
        text = ""
    return secret(ConfigValue(raw=text.strip(), where=f"{value.where}: the content of {file}"))


def unique(items: Iterable[T], key: Callable[[T], str], what: str, where: str) -> tuple[T, ...]:
    seen: dict[str, T] = {}
    for item in items:
        folded = key(item).casefold()
        if folded in seen:
            raise ConfigurationError(
                f"{where}: the {what} '{quote_text(key(item))}' is there twice."
            )
        seen[folded] = item
    return tuple(seen.values())
