"""`penstock config show|validate|schema`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.command_tree import CommandGroup
from penstock.cli.options import argument, option
from penstock.cli.output import TABLE, Format, print_message
from penstock.formats.quantities import format_plural

if TYPE_CHECKING:
    from penstock.service.config.settings import Settings

app = CommandGroup("Show, validate and describe the service's configuration.")

_HIDDEN = "(set, not shown)"
_SECRETS = ("root_key",)

Config = Annotated[
    Path | None, option("FILE", "TOML file, or the emulator's Config.json [PENSTOCK_CONFIG]")
]


@app.verb()
def show(config: Config = None, output: Format = TABLE) -> None:
    """Show the settings that `penstock serve` would use, with their sources and no secrets.

    Examples:
        penstock config show --config penstock.toml
    """
    output.print_rows(
        effective_settings(config), title="Configuration", shown={"value": _format_setting}
    )


@app.verb()
def validate(
    file: Annotated[
        Path | None, argument("FILE", "Configuration file [default: PENSTOCK_CONFIG]")
    ] = None,
) -> None:
    """Check a configuration. An error names the line, and the exit code is 2.

    Environment variables override the file and are checked too.

    Examples:
        penstock config validate penstock.toml
    """
    settings = _load(file)
    _check_certificate(settings)
    hubs = sum(len(each.hubs) for each in settings.namespaces)
    where = file or os.environ.get("PENSTOCK_CONFIG") or "The environment"
    print_message(
        f"{where} is fine: {format_plural(len(settings.namespaces), 'namespace')}, "
        f"{format_plural(hubs, 'event hub')}."
    )


def _check_certificate(settings: Settings) -> None:
    """Raises ConfigurationError for a configured certificate that no client accepts now."""
    from penstock.model.errors import ConfigurationError
    from penstock.service.certificates import configured_certificates, read_validity, server_context
    from penstock.service.readiness import State, judge_certificate

    own = configured_certificates(settings)
    if own is None:
        return
    server_context(own)
    finding = judge_certificate(read_validity(own), now_ms=time.time_ns() // 1_000_000)
    if finding.state is State.FAIL:
        raise ConfigurationError(finding.text)
    if finding.state is State.WARN:
        print_message(f"Warning: {finding.text}")


@app.verb()
def schema(
    json_schema: Annotated[
        bool, option("--json-schema", "A JSON Schema of the file, for editors")
    ] = False,
    output: Format = TABLE,
) -> None:
    """List every setting with its key, flag, variable and default.

    Examples:
        penstock config schema
        penstock config schema --json-schema > penstock.schema.json
    """
    if json_schema:
        from penstock.service.config.schema import json_schema_of_file

        typer.echo(json.dumps(json_schema_of_file(), indent=2))
        return
    from penstock.service.config.settings import SETTINGS, Settings

    default = Settings()
    rows = [
        {
            "key": setting.key if setting.in_file else None,
            "flag": setting.flag,
            "variable": setting.variable,
            "default": [hub.name for hub in default.namespaces[0].hubs]
            if setting.field == "hubs"
            else _value(default, setting.field, {}),
            "meaning": setting.meaning,
        }
        for setting in SETTINGS
    ]
    output.print_rows(rows, title="Settings", shown={"default": _format_setting})


def effective_settings(config: Path | None) -> list[dict[str, object]]:
    """Every value with its source, and the entities; no secrets. Raises ConfigurationError."""
    settings = _load(config)
    return [*_values(settings, config), *_entities(settings)]


def _load(file: Path | None) -> Settings:
    from penstock.service.config.loader import load_settings

    return load_settings(flags={"config": file}, environ=os.environ)


def _values(settings: Settings, config: Path | None) -> list[dict[str, object]]:
    from penstock.service.config.settings import SETTINGS, Settings

    default = Settings()
    rows: list[dict[str, object]] = []
    for setting in SETTINGS:
        if setting.field == "hubs":
            continue  # among the entities
        value = _value(settings, setting.field, os.environ)
        if os.environ.get(setting.variable):
            source = setting.variable
        elif setting.field == "config" and config is not None:
            source = "--config"
        elif value != _value(default, setting.field, {}):
            source = str(settings.config)
        else:
            source = "default"
        rows.append({"setting": setting.key, "value": value, "from": source})
    return rows


def _value(settings: Settings, field: str, environ: Mapping[str, str]) -> object:
    if field in _SECRETS:
        return _HIDDEN if environ.get("PENSTOCK_ROOT_KEY") else None
    if field == "root_key_file":
        return environ.get("PENSTOCK_ROOT_KEY_FILE")
    found = getattr(settings, field)
    if field == "throughput_units" and found is None:
        return "unlimited"
    return str(found) if isinstance(found, Path) else found


def _entities(settings: Settings) -> list[dict[str, object]]:
    source = str(settings.config) if settings.namespaces_given else "default"
    rows: list[dict[str, object]] = []
    for namespace in settings.namespaces:
        place = f"namespace {namespace.name}"
        policies = ", ".join(rule.name for rule in namespace.rules) or "root policy"
        rows.append({"setting": place, "value": policies, "from": source})
        for hub in namespace.hubs:
            said = [
                format_plural(hub.partition_count, "partition") if hub.partition_count else None,
                f"{hub.retention_hours} hours" if hub.retention_hours else None,
                *(f"group {group}" for group in hub.groups),
                *(f"policy {rule.name}" for rule in hub.rules),
            ]
            value = ", ".join(each for each in said if each) or "as it is, or by default"
            rows.append(
                {"setting": f"hub {namespace.name}/{hub.name}", "value": value, "from": source}
            )
    return rows


def _format_setting(value: object) -> str:
    """As it is written in a file: a port is no amount."""
    if isinstance(value, bool):
        return str(value).lower()
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
