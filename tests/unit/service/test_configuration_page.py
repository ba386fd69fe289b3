"""docs/reference/configuration.md says what the code does: settings, defaults, a file that
loads."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from penstock.model.entities import Right, Secret, Tier
from penstock.model.usage import PriceList
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import (
    SETTINGS,
    GrantSettings,
    HubSettings,
    NamespaceSettings,
    RuleSettings,
    Setting,
    Settings,
)
from penstock.service.config.struct_reader import field_keys, struct_fields

PAGE = Path(__file__).resolve().parents[3] / "docs" / "reference" / "configuration.md"
# Defaults that are not fields of Settings: they belong to the default namespace.
OTHER_DEFAULTS = {"hubs": "`events`", "throughput_units": "`unlimited`", "root_key": "random"}


def test_page_lists_every_setting_as_it_is() -> None:
    assert _rows("| Setting | Default | Meaning |") == [_meaning_row(each) for each in SETTINGS]
    names = _rows("| Key in the file | Flag | Environment variable |")
    assert names == [_name_row(each) for each in SETTINGS]


def test_every_setting_of_the_record_can_be_set() -> None:
    by_others = {"namespaces", "namespaces_given", "prices", "capture"}
    assert set(Settings.__struct_fields__) - by_others <= {setting.field for setting in SETTINGS}


@pytest.mark.parametrize(
    ("header", "struct"),
    [
        ("Key", NamespaceSettings),
        ("Key of a hub", HubSettings),
        ("Key of a grant", GrantSettings),
        ("Key of a rule", RuleSettings),
        ("Key of `prices`", PriceList),
    ],
)
def test_page_lists_every_key_of_a_table(header: str, struct: type[msgspec.Struct]) -> None:
    table = PAGE.read_text().partition(f"\n| {header} |")[2].partition("\n\n")[0]
    cells = re.findall(r"^\| ([^|]*) \|", table, flags=re.MULTILINE)
    listed = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert listed == [key for field in struct_fields(struct) for key in field_keys(field)]


def test_the_whole_file_of_the_page_loads(tmp_path: Path) -> None:
    examples = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(examples) == 1
    file = tmp_path / "penstock.toml"
    file.write_text(examples[0])
    keys = {"TELEMETRY_ROOT_KEY": "root-key", "DEVICES_KEY": "devices-key"}

    settings = load_settings(flags={"config": file}, environ=keys)

    telemetry, reporting = settings.namespaces
    assert settings.data == Path("/var/lib/penstock")
    assert settings.amqp_port is None  # beyond loopback
    assert settings.tls_ca_file == tmp_path / "tls/company-ca.pem"
    assert telemetry.hosts == ("telemetry.example.com", "telemetry.internal")
    assert telemetry.throughput_units == 4
    assert telemetry.maximum_throughput_units == 40
    assert [(grant.throughput_units, grant.partitions) for grant in telemetry.grants] == [(40, 64)]
    assert settings.prices is not None
    assert str(settings.prices.throughput_unit_hour) == "0.026"
    assert [rule.primary_key for rule in telemetry.rules] == [Secret("root-key")]
    assert [(hub.name, hub.partition_count) for hub in telemetry.hubs] == [
        ("readings", 8),
        ("audit", None),
    ]
    assert telemetry.hubs[0].groups == ("billing", "alerts")
    assert telemetry.hubs[0].rules[0].rights is Right.SEND
    assert reporting.tier is Tier.DEDICATED


def _rows(header: str) -> list[str]:
    return PAGE.read_text().partition(f"\n{header}\n")[2].partition("\n\n")[0].splitlines()[1:]


def _meaning_row(setting: Setting) -> str:
    name = setting.key if setting.in_file else setting.flag or setting.variable
    default = OTHER_DEFAULTS.get(setting.field) or _shown(getattr(Settings(), setting.field, None))
    return f"| `{name}` | {default} | {setting.meaning} |"


def _name_row(setting: Setting) -> str:
    key = f"`{setting.key}`" if setting.in_file else "none"
    flag = f"`{setting.flag}`" if setting.flag else "none"
    return f"| {key} | {flag} | `{setting.variable}` |"


def _shown(default: object) -> str:
    if default is None or default == ():
        return "none"
    return f"`{str(default).lower() if isinstance(default, bool) else default}`"
