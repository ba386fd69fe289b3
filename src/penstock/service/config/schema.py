"""A JSON Schema (2020-12) of the configuration file, generated from the structs of `settings.py`,
for editors that check a file while it is written."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect

from penstock.capture.destinations import Destination
from penstock.service.config.settings import SETTINGS, DestinationSettings, Settings
from penstock.service.config.struct_reader import field_keys, struct_fields, unwrap_type

Schema = dict[str, Any]


def json_schema_of_file() -> Schema:
    properties: Schema = {}
    for setting in SETTINGS:
        if setting.in_file:
            section, _, key = setting.key.rpartition(".")
            table = properties.setdefault(section, _table({})) if section else None
            (properties if table is None else table["properties"])[key] = _schema(setting.type)
    for field in struct_fields(Settings):
        if field.name in ("namespaces", "prices", "capture"):
            properties[field.encode_name] = _schema(field.type)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Configuration of Penstock",
        **_table(properties),
    }


def _schema(type_: inspect.Type) -> Schema:
    base, _, more = unwrap_type(type_)
    is_complete = bool(more.keys() & {"type", "oneOf"})
    return ({} if is_complete else _base_schema(base)) | more


def _base_schema(type_: inspect.Type) -> Schema:
    match type_:
        case inspect.VarTupleType(item_type=inspect.StructType(cls=struct)) if (
            struct is Destination
        ):
            return {"type": "object", "additionalProperties": _struct_schema(DestinationSettings)}
        case inspect.StructType(cls=struct):
            return _struct_schema(struct)
        case inspect.VarTupleType(item_type=item, max_length=most):
            return {"type": "array", "items": _schema(item)} | (
                {} if most is None else {"maxItems": most}
            )
        case inspect.IntType(ge=least, le=most):
            bounds = {"minimum": least, "maximum": most}
            return {"type": "integer"} | {k: v for k, v in bounds.items() if v is not None}
        case inspect.BoolType():
            return {"type": "boolean"}
        case inspect.DecimalType():
            return {"oneOf": [{"type": "number"}, {"type": "string"}]}
        case inspect.LiteralType(values=words):
            return {"enum": list(words)}
        case inspect.EnumType(cls=enum):
            return {"enum": [str(member.value).lower() for member in enum]}
    return {"type": "string"}


def _struct_schema(struct: type[msgspec.Struct]) -> Schema:
    fields = struct_fields(struct)
    properties = {key: _schema(field.type) for field in fields for key in field_keys(field)}
    return _table(properties, [field.encode_name for field in fields if field.required])


def _table(properties: Schema, required: list[str] | None = None) -> Schema:
    table: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return table | ({"required": required} if required else {})
