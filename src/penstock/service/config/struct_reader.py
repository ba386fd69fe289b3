"""Reads structs from a configuration, by the types of their fields.

A struct's field states a value completely: `name` (the key), type, range, default.
`Meta(extra=...)` of a field's type may say more:

read      a function (value, context) that reads the value instead of the rules for its type
secret    the key may also be written KEY_file (a file has the value) or KEY_env (an environment
          variable has it); errors do not show the value
unique    False: a list may have the same entry twice
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from penstock.model import limits
from penstock.model.entities import LimitSet
from penstock.model.errors import ConfigurationError
from penstock.service.config.document import ConfigValue, refuse_duplicates

S = TypeVar("S", bound=msgspec.Struct)
T = TypeVar("T")

SECRET_SUFFIXES = ("", "_file", "_env")
_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")
_TEXT_MAX = 2048
_PRICE_LIMIT = 1_000_000
_SECRET_FILE_BYTES_MAX = 4 * limits.KB


class ReadContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the meaning of a value depends on beside the value."""

    environ: Mapping[str, str] = {}
    limit_set: LimitSet = LimitSet.SPECIFICATION


def unwrap_type(type_: inspect.Type) -> tuple[inspect.Type, dict[str, Any], dict[str, Any]]:
    """The type of a field without `| None`, what `Meta(extra=...)` says, and what it adds to a JSON
    Schema."""
    extra: dict[str, Any] = {}
    json_schema: dict[str, Any] = {}
    while isinstance(type_, inspect.Metadata | inspect.UnionType):
        if isinstance(type_, inspect.Metadata):
            extra = (type_.extra or {}) | extra
            json_schema = (type_.extra_json_schema or {}) | json_schema
            type_ = type_.type
        else:
            type_ = next(t for t in type_.types if not isinstance(t, inspect.NoneType))
    return type_, extra, json_schema


def struct_fields(struct: type[msgspec.Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return info.fields


def read_struct(struct: type[S], table: ConfigValue, context: ReadContext) -> S:
    """Raises ConfigurationError for an unknown key, a missing one, or a value that is not
    allowed."""
    fields = struct_fields(struct)
    if table.source.is_strict:
        table.refuse_unknown([key for field in fields for key in field_keys(field)])
    values: dict[str, Any] = {}
    for field in fields:
        key = field.encode_name
        value = find_secret(table, key, context) if _is_secret(field) else table.child(key)
        if value is not None:
            values[field.name] = read_value(value, field.type, context)
        elif field.required:
            table.required_child(key)
    return struct(**values)


def field_keys(field: inspect.Field) -> Iterator[str]:
    """The keys that set a field."""
    suffixes = SECRET_SUFFIXES if _is_secret(field) else ("",)
    return (field.encode_name + suffix for suffix in suffixes)


def _is_secret(field: inspect.Field) -> bool:
    _, extra, _ = unwrap_type(field.type)
    return bool(extra.get("secret"))


def read_value(value: ConfigValue, type_: inspect.Type, context: ReadContext) -> Any:
    """Raises ConfigurationError."""
    type_, extra, _ = unwrap_type(type_)
    if "read" in extra:
        return extra["read"](value, context)
    match type_:
        case inspect.StructType(cls=struct):
            return read_struct(struct, value, context)
        case inspect.VarTupleType() as list_type:
            return _read_list(value, list_type, context, is_unique=extra.get("unique", True))
        case inspect.IntType(ge=int(least), le=int(most)):
            return read_whole_number(value, least, most)
        case inspect.BoolType():
            return read_bool(value)
        case inspect.LiteralType(values=words):
            return read_choice(value, {str(word): word for word in words})
        case inspect.EnumType(cls=enum):
            return read_choice(value, {str(member.value).lower(): member for member in enum})
        case inspect.DecimalType():
            return _read_price(value)
        case inspect.StrType(max_length=most):
            return read_short_text(value, most or _TEXT_MAX)
    assert isinstance(type_, inspect.CustomType) and type_.cls is Path, type_
    return read_path(value)


def find_secret(table: ConfigValue, key: str, context: ReadContext) -> ConfigValue | None:
    """The value of `key`, KEY_file or KEY_env, of which one may be there."""
    keys = [key + suffix for suffix in SECRET_SUFFIXES if key + suffix in table.table()]
    if len(keys) > 1:
        raise ConfigurationError(f"{table.where} has {' and '.join(keys)}: one of them is allowed.")
    value = table.child(keys[0]) if keys else None
    if value is None or keys[0] == key:
        return value
    if keys[0].endswith("_file"):
        return read_secret_file(value)
    variable = value.text("the name of an environment variable is allowed")
    if variable not in context.environ:
        value.refuse("that environment variable is not set")
    return ConfigValue.of(context.environ[variable], f"{value.where}: ${variable}")


def read_secret_file(value: ConfigValue) -> ConfigValue:
    """The only content of the file that `value` names; an empty text where it cannot be a key."""
    file = read_path(value)
    try:
        with file.open("rb") as opened:
            content = opened.read(_SECRET_FILE_BYTES_MAX + 1)
        text = content.decode().strip() if len(content) <= _SECRET_FILE_BYTES_MAX else ""
    except OSError as error:
        value.refuse(f"the file cannot be read ({error.strerror})")
    except UnicodeDecodeError:
        text = ""
    return ConfigValue.of(text, f"{value.where}: the content of {file}")


def read_whole_number(value: ConfigValue, least: int, most: int, allowed: str = "") -> int:
    raw = value.raw
    if isinstance(raw, str) and not value.source.is_strict:
        raw = int(raw) if re.fullmatch(r"\s*-?[0-9]{1,9}\s*", raw) else raw
    if isinstance(raw, bool) or not isinstance(raw, int) or not least <= raw <= most:
        value.refuse(allowed or f"a whole number from {least} to {most} is allowed")
    return raw


def read_bool(value: ConfigValue) -> bool:
    raw = value.raw
    if isinstance(raw, str) and not value.source.is_strict:
        raw = {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}.get(raw.lower())
    if not isinstance(raw, bool):
        value.refuse("true or false is allowed")
    return raw


def read_choice(value: ConfigValue, options: Mapping[str, T]) -> T:
    """One of a few words, in any case."""
    allowed = f"{' or '.join(options)} is allowed"
    word = value.text(allowed).lower()
    for option, result in options.items():
        if option.lower() == word:
            return result
    value.refuse(allowed)


def read_short_text(value: ConfigValue, most: int) -> str:
    allowed = f"a text of 1 to {most} printable characters is allowed"
    text = value.text(allowed)
    if not 1 <= len(text) <= most or not text.isprintable():
        value.refuse(allowed)
    return text


def read_path(value: ConfigValue) -> Path:
    """Relative to the folder of the file that names it, else to the current one."""
    allowed = "a path is allowed"
    raw = str(value.raw) if isinstance(value.raw, Path) else value.text(allowed)
    if not raw or "\0" in raw:
        value.refuse(allowed)
    return value.source.folder / Path(raw).expanduser()


def _read_price(value: ConfigValue) -> Decimal:
    """A number, or a text of one where its last digit counts."""
    raw = value.raw
    if isinstance(raw, int | float | str) and not isinstance(raw, bool):
        try:
            price = Decimal(str(raw))
        except InvalidOperation:
            price = Decimal(-1)
        if price.is_finite() and 0 <= price < _PRICE_LIMIT:
            return price
    value.refuse(f"a number from 0 to below {_PRICE_LIMIT} is allowed")


def _read_list(
    value: ConfigValue, type_: inspect.VarTupleType, context: ReadContext, *, is_unique: bool
) -> tuple[Any, ...]:
    """Entries must have different names, where they have names or are texts."""
    items = value.items()
    entries = [read_value(item, type_.item_type, context) for item in items]
    refuse_too_many(value, len(entries), type_.max_length)
    entry_names = [getattr(entry, "name", entry) for entry in entries]
    if is_unique and all(isinstance(name, str) for name in entry_names):
        refuse_duplicates(items, entry_names)
    return tuple(entries)


def refuse_too_many(value: ConfigValue, count: int, most: int | None) -> None:
    if most is not None and count > most:
        raise ConfigurationError(f"{value.where} has {count} entries: at most {most} are allowed.")


Reader = Callable[[ConfigValue, ReadContext], Any]
