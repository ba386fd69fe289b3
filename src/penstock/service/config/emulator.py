"""The official emulator's Config.json.

    {"UserConfig": {"NamespaceConfig": [{"Type": "EventHub", "Name": "emulatorNs1", "Entities": [
        {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}]}],
     "LoggingConfig": {"Type": "File"}}}

As in the emulator, keys are matched in any case, numbers may be texts, comments and trailing commas
are allowed, and other keys are ignored.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from penstock.model import limits, names
from penstock.model.entities import LimitSet, Right, Secret
from penstock.model.errors import ConfigurationError
from penstock.model.names import GroupName, NamespaceName
from penstock.service.config.document import ConfigSource, ConfigValue, json_lines
from penstock.service.config.settings import (
    HubNameText,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
)
from penstock.service.config.struct_reader import ReadContext, read_struct
from penstock.service.config.value_readers import check_groups, name_reader

# Published in the emulator's documentation and in every connection string of its users.
EMULATOR_KEY = Secret("SAS_KEY_VALUE")

_STRING_COMMENT_OR_COMMA = re.compile(
    r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[\]}])', re.DOTALL
)


class EmulatorGroup(msgspec.Struct, frozen=True, rename="pascal"):
    name: Annotated[GroupName, Meta(extra={"read": name_reader(names.group_name)})]


def _read_groups(value: ConfigValue, context: ReadContext) -> tuple[GroupName, ...]:
    groups = [read_struct(EmulatorGroup, item, context).name for item in value.items()]
    return check_groups(value, groups)


class EmulatorHub(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    name: HubNameText
    partition_count: Annotated[
        int, Meta(ge=limits.PARTITION_COUNT_MIN_CURRENT, le=limits.PARTITION_COUNT_MAX)
    ]
    consumer_groups: Annotated[tuple[GroupName, ...], Meta(extra={"read": _read_groups})] = ()


class EmulatorNamespace(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    type: Literal["EventHub"] = "EventHub"
    name: Annotated[NamespaceName, Meta(extra={"read": name_reader(names.namespace_name)})]
    entities: tuple[EmulatorHub, ...] = ()


def is_emulator_config(text: str) -> bool:
    """By its first character: no TOML file begins with a brace."""
    return text.lstrip("\ufeff \t\r\n").startswith(("{", "//", "/*"))


def read_namespaces(
    file: Path, text: str, limit_set: LimitSet = LimitSet.CURRENT
) -> tuple[NamespaceSettings, ...]:
    """Raises ConfigurationError."""
    content = _parse(file, text)
    source = ConfigSource(name=str(file), lines=dict(json_lines(text)), ignores_case=True)
    root = ConfigValue(raw=content, source=source)
    listed = root.required_child("UserConfig").required_child("NamespaceConfig")
    tables = listed.items()
    if not tables:
        listed.refuse("one namespace is needed")
    root_rule = RuleSettings(name=names.ROOT_RULE, rights=Right.ALL, primary_key=EMULATOR_KEY)
    return tuple(
        NamespaceSettings(
            name=namespace.name,
            rules=(root_rule,),
            hubs=tuple(
                HubSettings(
                    name=hub.name, partition_count=hub.partition_count, groups=hub.consumer_groups
                )
                for hub in namespace.entities
            ),
            limits=limit_set,
        )
        for namespace in (read_struct(EmulatorNamespace, t, ReadContext()) for t in tables)
    )


def _parse(file: Path, text: str) -> object:
    # Comments become spaces, so that the line numbers of a syntax error stay true.
    plain = _STRING_COMMENT_OR_COMMA.sub(_blank_comment, text.lstrip("\ufeff"))
    try:
        return json.loads(plain, object_pairs_hook=_fold_keys)
    except json.JSONDecodeError as error:
        raise ConfigurationError(
            f"{file}, line {error.lineno}: this is not valid JSON ({error.msg})."
        ) from error
    except RecursionError as error:
        raise ConfigurationError(f"{file}: this JSON is nested too deep.") from error


def _fold_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """Null means that the key is absent. The first of several spellings of a key counts."""
    return {key.lower(): value for key, value in reversed(pairs) if value is not None}


def _blank_comment(match: re.Match[str]) -> str:
    return match[0] if match[0].startswith('"') else re.sub(r"[^\n]", " ", match[0])
