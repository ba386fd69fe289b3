"""A JSON Schema (2020-12) of the configuration file, for editors that check while one types."""

from __future__ import annotations

from typing import Any

from penstock.model import limits
from penstock.model.entities import LimitSet
from penstock.model.usage import PRICE_FIELDS
from penstock.service.config import document as values
from penstock.service.config.loader import SETTINGS, Setting

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_UNITS: Schema = {
    "oneOf": [{"type": "integer", "minimum": limits.THROUGHPUT_UNITS_MIN}, {"const": "unlimited"}]
}
_BY_READER: dict[object, Schema] = {
    values.port: {"type": "integer", "minimum": 0, "maximum": 65535},
    values.yes_or_no: {"type": "boolean"},
    values.throughput_units: _UNITS,
}
_BY_KEY: dict[str, Schema] = {
    "hubs": {"type": "array", "items": _TEXT},
    "public_hosts": {"type": "array", "items": _TEXT},
    "flush": {"enum": ["disk", "os"]},
    "log_level": {"enum": ["debug", "info", "warning", "error"]},
    "limits": {"enum": [limit_set.value for limit_set in LimitSet]},
    "auth.expiry_grace_seconds": {
        "type": "integer",
        "minimum": 0,
        "maximum": limits.EXPIRY_GRACE_S_MAX,
    },
}


def json_schema_of_file() -> Schema:
    top = {s.key: _setting_schema(s) for s in SETTINGS if s.in_file and "." not in s.key}
    tables = {name: _settings_of(name) for name in ("auth", "tls")}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Penstock's configuration",
        **_table(
            {
                **top,
                **tables,
                "prices": _table(
                    {"currency": _TEXT, **{name: {"type": "number"} for name in PRICE_FIELDS}}
                ),
                "namespaces": {"type": "array", "items": _namespace_schema()},
                "capture": _capture(),
            }
        ),
    }


def _capture() -> Schema:
    from penstock.capture.destinations import AZURE_OPTIONS, S3_OPTIONS, SECRETS

    options = dict.fromkeys((*AZURE_OPTIONS, *S3_OPTIONS), _TEXT)
    sources = {f"{name}_{suffix}": _TEXT for name in SECRETS for suffix in ("file", "env")}
    destination = _table(
        {"url": _TEXT, "iso_time": {"type": "boolean"}, **options, **sources}, "url"
    )
    return _table(
        {
            "run": {"type": "boolean"},
            "master": _TEXT,
            "spark": {"type": "object"},
            "notify": _table(
                {
                    "url": _TEXT,
                    "url_env": _TEXT,
                    "hub": _TEXT,
                    "format": {"enum": ["eventgrid", "cloudevents"]},
                }
            ),
            "destinations": {"type": "object", "additionalProperties": destination},
        }
    )


def _settings_of(table: str) -> Schema:
    prefix = f"{table}."
    return _table(
        {
            s.key.removeprefix(prefix): _setting_schema(s)
            for s in SETTINGS
            if s.key.startswith(prefix)
        }
    )


def _setting_schema(setting: Setting) -> Schema:
    known = _BY_KEY.get(setting.key) or _BY_READER.get(setting.read, _TEXT)
    return {**known, "description": setting.meaning}


def _namespace_schema() -> Schema:
    rule = _rule_schema()
    return _table(
        {
            "name": _TEXT,
            "hosts": {"type": "array", "items": _TEXT},
            "tier": {"enum": ["standard", "dedicated"]},
            "limits": _BY_KEY["limits"],
            "throughput_units": _UNITS,
            "maximum_throughput_units": {"type": "integer", "minimum": 0},
            "grants": {"type": "array", "items": _grant()},
            "rules": {"type": "array", "items": rule, "maxItems": limits.AUTHORIZATION_RULES_MAX},
            "hubs": {"type": "array", "items": _hub_schema(rule)},
        },
        "name",
    )


def _hub_schema(rule: Schema) -> Schema:
    return _table(
        {
            "name": _TEXT,
            "partition_count": {
                "type": "integer",
                "minimum": limits.PARTITION_COUNT_MIN_CURRENT,
                "maximum": limits.PARTITION_COUNT_GRANTED_MAX,
            },
            "retention_hours": {
                "type": "integer",
                "minimum": limits.RETENTION_HOURS_MIN,
                "maximum": limits.RETENTION_HOURS_MAX,
            },
            "groups": {"type": "array", "items": _TEXT},
            "rules": {"type": "array", "items": rule, "maxItems": limits.AUTHORIZATION_RULES_MAX},
        },
        "name",
    )


def _grant() -> Schema:
    return _table(
        {
            "throughput_units": {"type": "integer", "minimum": 40},
            "partitions": {
                "type": "integer",
                "minimum": limits.PARTITION_COUNT_MAX + 1,
                "maximum": limits.PARTITION_COUNT_GRANTED_MAX,
            },
            "by": _TEXT,
            "note": _TEXT,
        },
        "by",
    )


def _rule_schema() -> Schema:
    sources = ("key", "key_file", "key_env")
    keys = (*sources, *(f"secondary_{source}" for source in sources))
    return _table(
        {
            "name": _TEXT,
            "rights": {"type": "array", "items": {"enum": ["listen", "send", "manage"]}},
            **dict.fromkeys(keys, _TEXT),
        },
        "name",
        "rights",
    )


def _table(properties: Schema, *required: str) -> Schema:
    found: Schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})
