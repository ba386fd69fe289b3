"""The official emulator's Config.json, read as it is.

    {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": [
        {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}]}],
     "LoggingConfig": {"Type": "File"}}}

As in the emulator, keys are matched in any case, numbers may be texts, comments and trailing commas
are passed over, and keys that mean nothing here are ignored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn, TypeVar

from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret
from penstock.model.errors import ArgumentError, ConfigurationError
from penstock.service.config.settings import HubSettings, NamespaceSettings, RuleSettings

# Published in the emulator's documentation and in every connection string of its users.
EMULATOR_KEY = Secret("SAS_KEY_VALUE")

_DEPTH_MAX = 32
_STRING_COMMENT_OR_COMMA = re.compile(
    r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[\]}])', re.DOTALL
)

T = TypeVar("T")


def is_emulator_config(text: str) -> bool:
    """By its first sign: no TOML file begins with a brace."""
    return text.lstrip("\ufeff \t\r\n").startswith(("{", "//", "/*"))


def read_namespaces(
    file: Path, text: str, limit_set: LimitSet = LimitSet.CURRENT
) -> tuple[NamespaceSettings, ...]:
    node = _EmulatorNode(file, "", _parse(file, text))
    listed = node.member("UserConfig").member("NamespaceConfig").items()
    if not listed:
        node.member("UserConfig").member("NamespaceConfig").refuse("one namespace is needed")
    return tuple(_read_namespace(each, limit_set) for each in listed)


def _read_namespace(node: _EmulatorNode, limit_set: LimitSet) -> NamespaceSettings:
    kind = node.optional("Type")
    if kind is not None and str(kind.raw).lower() != "eventhub":
        kind.refuse("EventHub is allowed")
    entities = node.optional("Entities")
    hubs = [_read_hub(each) for each in entities.items()] if entities is not None else []
    root = RuleSettings(name=names.ROOT_RULE, rights=Right.ALL, primary_key=EMULATOR_KEY)
    node.refuse_twice([hub.name for hub in hubs], "event hub")
    return NamespaceSettings(
        name=node.member("Name").name(names.namespace_name),
        rules=(root,),
        hubs=tuple(hubs),
        limits=limit_set,
    )


def _read_hub(node: _EmulatorNode) -> HubSettings:
    listed = node.optional("ConsumerGroups")
    groups = [
        each.member("Name").name(names.group_name)
        for each in (listed.items() if listed is not None else [])
    ]
    node.refuse_twice(groups, "consumer group")
    groups = [group for group in groups if group != names.DEFAULT_GROUP]
    if len(groups) > limits.CONSUMER_GROUPS_MAX and listed is not None:
        listed.refuse(f"at most {limits.CONSUMER_GROUPS_MAX} are allowed beside $Default")
    return HubSettings(
        name=node.member("Name").name(names.hub_name),
        partition_count=_partition_count(node.member("PartitionCount")),
        groups=tuple(groups),
    )


def _partition_count(node: _EmulatorNode) -> int:
    least, most = limits.PARTITION_COUNT_MIN_CURRENT, limits.PARTITION_COUNT_MAX
    raw = node.raw
    if isinstance(raw, str) and re.fullmatch(r"\s*[0-9]{1,9}\s*", raw):
        raw = int(raw)
    if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
        node.refuse(f"a whole number from {least} to {most} is allowed")
    return raw


class _EmulatorNode:
    """A part of the document that knows its own path, for messages."""

    def __init__(self, file: Path, path: str, raw: object) -> None:
        self.raw = raw
        self._file = file
        self._path = path

    def refuse(self, allowed: str) -> NoReturn:
        kinds = {dict: "an object", list: "a list", type(None): "null"}
        seen = kinds.get(type(self.raw)) or f"'{names.quote_text(str(self.raw))}'"
        raise ConfigurationError(f"{self._file}: {self._path or 'the file'} is {seen}: {allowed}.")

    def optional(self, key: str) -> _EmulatorNode | None:
        if not isinstance(self.raw, dict):
            self.refuse(f"an object with '{key}' is needed")
        for found, raw in self.raw.items():
            if found.lower() == key.lower() and raw is not None:
                return _EmulatorNode(self._file, f"{self._path}.{found}".lstrip("."), raw)
        return None

    def member(self, key: str) -> _EmulatorNode:
        found = self.optional(key)
        if found is None:
            place = f"{self._path} has" if self._path else "there is"
            raise ConfigurationError(
                f"{self._file}: {place} no '{key}', which the emulator's Config.json needs."
            )
        return found

    def items(self) -> list[_EmulatorNode]:
        if not isinstance(self.raw, list):
            self.refuse("a list is needed")
        return [
            _EmulatorNode(self._file, f"{self._path}[{n}]", raw) for n, raw in enumerate(self.raw)
        ]

    def name(self, of: Callable[[str], T]) -> T:
        if not isinstance(self.raw, str):
            self.refuse("a name is needed")
        try:
            return of(self.raw)
        except ArgumentError as error:
            raise ConfigurationError(f"{self._file}: {self._path}: {error}") from error

    def refuse_twice(self, given: list[T], what: str) -> None:
        keys = [names.fold_name(str(each)) for each in given]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                raise ConfigurationError(
                    f"{self._file}: {self._path}: the {what} '{given[index]}' is there twice."
                )


def _parse(file: Path, text: str) -> object:
    # Comments become spaces, so that the line numbers of a syntax error stay true.
    plain = _STRING_COMMENT_OR_COMMA.sub(_without_comment, text.lstrip("\ufeff"))
    try:
        content: object = json.loads(plain)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{file}, line {error.lineno}: this is not valid JSON ({error.msg})."
        ) from error
    except RecursionError as error:
        raise ConfigurationError(f"{file}: this JSON is nested too deep.") from error
    return content


def _without_comment(found: re.Match[str]) -> str:
    return found[0] if found[0].startswith('"') else re.sub(r"[^\n]", " ", found[0])
