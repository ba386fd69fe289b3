"""Values of a configuration with the place where each was written: a flag, an environment variable,
or a line of a file.

Every error is one sentence: the place, the value, what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from penstock.model.errors import ConfigurationError
from penstock.model.names import quote_text

KeyPath = tuple[str | int, ...]

_TOML_HEADER = re.compile(r"\s*\[(\[)?\s*([^\[\]]+?)\s*\]")
_TOML_KEY = re.compile(r"\s*([A-Za-z0-9_.\"'-]+)\s*=")
_JSON_TOKEN = re.compile(
    r'(?P<string>"(?:[^"\\]|\\.)*")|(?P<comment>//[^\n]*|/\*.*?\*/)|(?P<sign>[{}\[\]:,])'
    r"|(?P<other>[^\s{}\[\]:,\"/]+)",
    re.DOTALL,
)


class ConfigSource(msgspec.Struct, frozen=True, kw_only=True):
    """A flag, an environment variable or a file."""

    name: str
    folder: Path = Path()  # relative paths start here
    lines: Mapping[KeyPath, int] | None = None  # line of each key of a file
    is_strict: bool = False  # a number must not be written as a text, unknown keys are errors
    ignores_case: bool = False  # `lines` and the content have lower-case keys

    @property
    def is_file(self) -> bool:
        return self.lines is not None

    def fold_key(self, key: str) -> str:
        return key.lower() if self.ignores_case else key

    def line(self, path: KeyPath) -> str:
        """`FILE, line 7`: the line of the nearest key that was found."""
        folded = tuple(self.fold_key(key) if isinstance(key, str) else key for key in path)
        for end in range(len(folded), 0, -1):
            if self.lines and folded[:end] in self.lines:
                return f"{self.name}, line {self.lines[folded[:end]]}"
        return self.name


class ConfigValue(msgspec.Struct, frozen=True, kw_only=True):
    """A value, a table or a list of a configuration. `whole` is what the user wrote where `raw` is
    a part of it: errors show it."""

    raw: object
    source: ConfigSource
    path: KeyPath = ()
    whole: str | None = None

    @staticmethod
    def of(raw: object, name: str) -> ConfigValue:
        """The value of a flag, a variable, or a whole file."""
        return ConfigValue(raw=raw, source=ConfigSource(name=name))

    def __repr__(self) -> str:
        return f"ConfigValue({self.where})"  # the raw value may be a key

    @property
    def where(self) -> str:
        """`FILE, line 7: namespaces[0].name`, or the name of the flag or variable."""
        line = self.source.line(self.path)
        keys = (f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path)
        return f"{line}: {''.join(keys).removeprefix('.')}" if self.path else line

    def refuse(self, allowed: str) -> NoReturn:
        raise ConfigurationError(f"{self.where} is {self._describe()}: {allowed}.")

    def text(self, allowed: str) -> str:
        if not isinstance(self.raw, str):
            self.refuse(allowed)
        return self.raw

    def table(self) -> Mapping[str, object]:
        if not isinstance(self.raw, dict):
            self.refuse("a table is allowed")
        return self.raw

    def child(self, key: str) -> ConfigValue | None:
        folded = self.source.fold_key(key)
        entries = self.table()
        return self._part(entries[folded], key) if folded in entries else None

    def required_child(self, key: str) -> ConfigValue:
        value = self.child(key)
        if value is None:
            raise ConfigurationError(f"{self.where} has no '{key}', which it needs.")
        return value

    def items(self) -> list[ConfigValue]:
        """The entries of a list. In a flag or a variable a text is a list with commas."""
        entries = self.raw
        if isinstance(entries, str) and not self.source.is_file:
            entries = entries.split(",")
        if not isinstance(entries, list | tuple):
            self.refuse("a list is allowed")
        if not self.source.is_file:
            return [msgspec.structs.replace(self, raw=entry) for entry in entries]
        return [self._part(entry, index) for index, entry in enumerate(entries)]

    def refuse_unknown(self, known: Collection[str]) -> None:
        """Raises for a key of this table that is not `known`, with the nearest one that is."""
        for key in self.table():
            if key not in known:
                near = difflib.get_close_matches(key.lower(), known, n=1)
                hint = (
                    f"did you mean '{near[0]}'?"
                    if near
                    else f"known here are {', '.join(sorted(known))}."
                )
                line = self.source.line((*self.path, key))
                raise ConfigurationError(f"{line}: '{quote_text(key)}' is not a setting: {hint}")

    def _part(self, raw: object, key: str | int) -> ConfigValue:
        return ConfigValue(raw=raw, source=self.source, path=(*self.path, key))

    def _describe(self) -> str:
        raw = self.raw if self.whole is None else self.whole
        if isinstance(raw, bool):
            return str(raw).lower()
        if isinstance(raw, dict | list):
            return "a table" if isinstance(raw, dict) else "a list"
        if isinstance(raw, Path):
            return str(raw)  # in full: a truncated path cannot be found
        return f"'{quote_text(raw)}'" if isinstance(raw, str) else quote_text(str(raw))


def refuse_duplicates(values: Iterable[ConfigValue], names: Iterable[str]) -> None:
    """Raises for the first value whose name, in any case, an earlier one has."""
    seen = set()
    for value, name in zip(values, names, strict=True):
        if name.casefold() in seen:
            raise ConfigurationError(f"{value.where}: '{quote_text(name)}' is there twice.")
        seen.add(name.casefold())


def toml_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The line of each key. Good enough for messages: a key inside an inline table or a multi-line
    string is not found, and its parent's line is named instead."""
    counts: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for number, line in enumerate(text.splitlines(), 1):
        if header := _TOML_HEADER.match(line):
            table = ()
            parts = _split_key(header[2])
            for depth, part in enumerate(parts, 1):
                table += (part,)
                if header[1] and depth == len(parts):
                    counts[table] = counts.get(table, -1) + 1
                if table in counts:
                    table += (counts[table],)
            yield table, number
        elif key := _TOML_KEY.match(line):
            yield (*table, *_split_key(key[1])), number


def _split_key(dotted: str) -> list[str]:
    return [part.strip().strip("\"'") for part in dotted.split(".")]


def json_lines(text: str) -> Iterator[tuple[KeyPath, int]]:
    """The line of each key and of each list entry; keys are in lower case. Good enough for
    messages."""
    containers: list[tuple[KeyPath, bool]] = []  # the open ones; whether it is a list
    indexes: list[int] = []  # the current entry of each open container
    key: str | None = None
    line, position = 1, 0
    for token in _JSON_TOKEN.finditer(text):
        sign = token["sign"]
        parent, in_list = containers[-1] if containers else ((), False)
        line += text.count("\n", position, token.start())
        position = token.start()
        if token["comment"] or sign == ":":
            continue
        if sign in ("}", "]"):
            if not containers:
                return
            containers.pop()
            indexes.pop()
        elif sign == ",":
            key = None
            if indexes:
                indexes[-1] += 1
        elif containers and not in_list and key is None:
            key = token[0].strip('"').lower()
            yield (*parent, key), line
        else:
            path = (*parent, indexes[-1] if in_list else key or "") if containers else ()
            if in_list:
                yield path, line
            if sign in ("{", "["):
                containers.append((path, sign == "["))
                indexes.append(0)
                key = None
