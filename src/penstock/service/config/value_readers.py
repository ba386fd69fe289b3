"""Readers of values whose rules are more than a type and a range: names, keys, units, rights."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from penstock.model import limits, names, quotas
from penstock.model.entities import Right, Secret
from penstock.model.errors import ArgumentError, ConfigurationError
from penstock.model.host_names import parse_address
from penstock.model.names import GroupName
from penstock.service.config.document import ConfigValue, refuse_duplicates
from penstock.service.config.struct_reader import (
    ReadContext,
    Reader,
    read_choice,
    read_secret_file,
    read_whole_number,
    refuse_too_many,
)

UNLIMITED = "unlimited"
_MASK_MAX = 4 * limits.KB
_MASK_FIELD = re.compile(r"(json|properties)\.\S+|key")
_HOST = re.compile(r"[a-z0-9]([a-z0-9_.-]*[a-z0-9])?", re.IGNORECASE)
# Manage includes the other two (protocol.md 7.3).
_RIGHTS = {"listen": Right.LISTEN, "send": Right.SEND, "manage": Right.ALL}


def name_reader(check: Callable[[str], Any]) -> Reader:
    """Reads a name that `check` accepts; the error has the text of `check`."""

    def read(value: ConfigValue, context: ReadContext) -> Any:
        try:
            return check(value.text("a name is allowed"))
        except ArgumentError as error:
            raise ConfigurationError(f"{value.where}: {error}") from error

    return read


def read_groups(value: ConfigValue, context: ReadContext) -> tuple[GroupName, ...]:
    """Consumer groups beside `$Default`, which every hub has."""
    groups = [name_reader(names.group_name)(item, context) for item in value.items()]
    return check_groups(value, groups)


def check_groups(value: ConfigValue, groups: list[GroupName]) -> tuple[GroupName, ...]:
    """The groups without `$Default`. Raises for too many, and for one that is there twice."""
    refuse_duplicates(value.items(), groups)
    others = tuple(group for group in groups if group != names.DEFAULT_GROUP)
    refuse_too_many(value, len(others), limits.CONSUMER_GROUPS_MAX)
    return others


def read_rights(value: ConfigValue, context: ReadContext) -> Right:
    rights = Right.NONE
    for item in value.items():
        rights |= read_choice(item, _RIGHTS)
    if rights is Right.NONE:
        raise ConfigurationError(f"{value.where} is empty: {', '.join(_RIGHTS)} are allowed.")
    return rights


def read_host_name(value: ConfigValue, context: ReadContext) -> str:
    """A host name or address, lower-case, without port and brackets."""
    allowed = "a host name or address without port is allowed"
    host = value.text(allowed).strip().lower()
    bare = host.removeprefix("[").removesuffix("]")
    if len(bare) > limits.HOST_NAME_MAX or not (_HOST.fullmatch(bare) or parse_address(bare)):
        value.refuse(allowed)
    return bare


def read_units(value: ConfigValue, context: ReadContext) -> int | str:
    """A number of throughput units or `UNLIMITED`. The catalog checks that more than 20 were
    granted."""
    if isinstance(value.raw, str) and value.raw.lower() == UNLIMITED:
        return UNLIMITED
    return _read_any_units(value, f"or {UNLIMITED}, ")


def read_maximum_units(value: ConfigValue, context: ReadContext) -> int:
    """The upper limit of auto-inflate; 0: it is off."""
    is_off = value.raw in (0, "0") and not isinstance(value.raw, bool)
    return 0 if is_off else _read_any_units(value, "or 0 for no auto-inflate, ")


def _read_any_units(value: ConfigValue, also: str) -> int:
    least, most = limits.THROUGHPUT_UNITS_MIN, limits.THROUGHPUT_UNITS_MAX
    allowed = (
        f"a whole number from {least} to {most}, with a grant 40, 60, 80, 100 or a multiple of "
        f"100, {also}is allowed"
    )
    return _read_units_from(least, value, allowed)


def read_granted_units(value: ConfigValue, context: ReadContext) -> int:
    allowed = "40, 60, 80, 100 or a multiple of 100 is allowed"
    return _read_units_from(limits.THROUGHPUT_UNITS_MAX + 1, value, allowed)


def _read_units_from(least: int, value: ConfigValue, allowed: str) -> int:
    units = read_whole_number(value, least, limits.THROUGHPUT_UNITS_GRANTED_MAX, allowed)
    if not quotas.is_allowed_units(units):
        value.refuse(allowed)
    return units


def read_partition_count(value: ConfigValue, context: ReadContext) -> int:
    """The catalog checks that more than 32 were granted."""
    least, most = context.limit_set.partition_count_min, limits.PARTITION_COUNT_GRANTED_MAX
    return read_whole_number(
        value,
        least,
        most,
        f"a whole number from {least} to {limits.PARTITION_COUNT_MAX}, with a grant to {most}, is "
        f"allowed (limits are '{context.limit_set}')",
    )


def read_mask(value: ConfigValue, context: ReadContext) -> str:
    """Fields of events, as the portal's mask names them."""
    allowed = "json.NAME, properties.NAME and key are allowed, with commas between them"
    text = value.text(allowed)
    fields = text.split(",")
    if len(text) > _MASK_MAX or not all(_MASK_FIELD.fullmatch(field.strip()) for field in fields):
        value.refuse(allowed)
    return text


def read_key(value: ConfigValue, context: ReadContext) -> Secret:
    """A shared access key of any strength: existing clients may have it."""
    # ';' ends a part of a connection string.
    return Secret(_read_secret(value, "key", limits.SAS_KEY_MAX, without=";"))


def read_key_file(value: ConfigValue, context: ReadContext) -> Secret:
    return read_key(read_secret_file(value), context)


def read_secret_text(value: ConfigValue, context: ReadContext) -> str:
    return _read_secret(value, "text", 4096)


def _read_secret(value: ConfigValue, what: str, most: int, *, without: str = "") -> str:
    """The error does not show the value."""
    raw = value.raw if isinstance(value.raw, str) else ""
    if 1 <= len(raw) <= most and raw.isprintable() and not set(without) & set(raw):
        return raw
    allowed = f"1 to {most} printable characters" + (f" without '{without}'" if without else "")
    raise ConfigurationError(f"{value.where} is no usable {what}: {allowed} are allowed.")


def check_webhook(where: str, url: str) -> None:
    """Raises ConfigurationError, which does not show the address: it may hold a key."""
    parts = urlsplit(url)
    is_local = parts.hostname in ("localhost", "127.0.0.1", "::1")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise ConfigurationError(f"{where}.url is no https:// address (http:// on this machine).")
    if not parts.hostname:
        raise ConfigurationError(f"{where}.url names no host.")


def read_spark_conf(value: ConfigValue, context: ReadContext) -> dict[str, str]:
    conf = {}
    for key, raw in value.table().items():
        if not key.startswith("spark."):
            raise ConfigurationError(
                f'{value.where}: settings of Spark are written "spark.NAME" = ....'
            )
        conf[key] = str(raw).lower() if isinstance(raw, bool) else str(raw)
    return conf
