"""`penstock config`: lines of errors, the schema, what is never shown."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.output import OutputFormat
from penstock.cli.server.config import effective_settings, schema, validate
from penstock.model.errors import ConfigurationError
from penstock.service.config.document import json_lines
from penstock.service.config.schema import json_schema_of_file
from penstock.service.config.settings import SETTINGS

DOCUMENT = Path(__file__).parents[3] / "docs" / "reference" / "configuration.md"
EMULATOR = """{
  // the emulator takes comments
  "UserConfig": {
    "NamespaceConfig": [
      {"Type": "EventHub", "Name": "emulatorNs1",
       "Entities": [
         {"Name": "eh1", "PartitionCount": "2"},
         {"Name": "eh2",
          "PartitionCount": "99"}
       ]}
    ]
  }
}
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.toml", "data = 'x'\namqp_port = 99999\n", "line 2: amqp_port is 99999"),
        ("b.toml", "data = 'x'\n\namqp_prt = 1\n", "line 3: 'amqp_prt' is not a setting"),
        ("c.toml", "data = 'x'\nhost = = 1\n", "line 2"),
        ("d.json", EMULATOR, "line 9: UserConfig.NamespaceConfig[0].Entities[1].PartitionCount"),
        ("e.json", '{"UserConfig":\n {"NamespaceConfig": []}}', "line 2: UserConfig.Namespace"),
        ("f.json", '{"UserConfig":\n {"NamespaceConfig": ]}}', "line 2: this is not valid JSON"),
    ],
)
def test_error_names_its_line(tmp_path: Path, name: str, text: str, said: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        validate(file)
    assert said in str(refused.value)


def test_good_file_is_told_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "Config.json"
    file.write_text(EMULATOR.replace("99", "4"))
    validate(file)
    assert capsys.readouterr().err == f"{file} is fine: 1 namespace, 2 event hubs.\n"


def test_lines_of_every_path() -> None:
    assert dict(json_lines('{"a": 1,\n "B": [\n {"c": {}},\n 2]}')) == {
        ("a",): 1,
        ("b",): 2,
        ("b", 0): 3,
        ("b", 0, "c"): 3,
        ("b", 1): 4,
    }


def test_values_say_where_they_are_from_and_keep_keys_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "p.toml"
    file.write_text(
        "https_port = 1443\n[[namespaces]]\nname = 'telemetry'\n"
        "[[namespaces.rules]]\nname = 'devices'\nrights = ['send']\nkey = 'very-secret-key'\n"
        "[[namespaces.hubs]]\nname = 'readings'\npartition_count = 8\n"
    )
    monkeypatch.setenv("PENSTOCK_ADMIN_PORT", "1300")
    monkeypatch.setenv("PENSTOCK_ROOT_KEY", "another-secret-key")
    rows = {str(row["setting"]): row for row in effective_settings(file)}
    assert rows["https_port"] == {"setting": "https_port", "value": 1443, "from": str(file)}
    assert rows["admin_port"]["from"] == "PENSTOCK_ADMIN_PORT"
    assert rows["amqp_port"]["from"] == "default"
    assert "devices" in str(rows["namespace telemetry"]["value"])
    assert rows["hub telemetry/readings"]["value"] == "8 partitions"
    assert "secret-key" not in json.dumps(list(rows.values()))


def test_schema_knows_every_setting_of_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    found = json_schema_of_file()
    tables = {"auth", "tls"}
    keys = {f"{table}.{k}" for table in tables for k in found["properties"][table]["properties"]}
    keys |= set(found["properties"]) - {*tables, "prices", "namespaces", "capture"}
    assert keys == {setting.key for setting in SETTINGS if setting.in_file}
    schema(output=OutputFormat.JSON)
    rows = json.loads(capsys.readouterr().out)
    assert [row["variable"] for row in rows] == [setting.variable for setting in SETTINGS]


def test_schema_takes_the_document_s_example() -> None:
    text = DOCUMENT.read_text().partition("```toml\n")[2].partition("```")[0]
    assert problems(tomllib.loads(text), json_schema_of_file(), "file") == []
    assert problems({"amqp_prt": 1}, json_schema_of_file(), "file") == ["file.amqp_prt: unknown"]


def problems(value: Any, rule: dict[str, Any], where: str) -> list[str]:
    """As much of JSON Schema as our schema uses."""
    kinds: dict[str, type | tuple[type, ...]] = {
        "object": dict,
        "array": list,
        "string": str,
        "integer": int,
        "number": (int, float),
        "boolean": bool,
    }
    found: list[str] = []
    if "type" in rule and not isinstance(value, kinds[rule["type"]]):
        found.append(f"{where}: no {rule['type']}")
    if "enum" in rule and value not in rule["enum"]:
        found.append(f"{where}: {value}")
    if "oneOf" in rule and all(problems(value, each, where) for each in rule["oneOf"]):
        found.append(f"{where}: none of")
    if "const" in rule and value != rule["const"]:
        found.append(f"{where}: not {rule['const']}")
    if isinstance(value, dict):
        known = rule.get("properties", {})
        found += [f"{where}.{key}: unknown" for key in value if key not in known]
        found += [f"{where}.{key}: missing" for key in rule.get("required", []) if key not in value]
        for key in value.keys() & known.keys():
            found += problems(value[key], known[key], f"{where}.{key}")
    if isinstance(value, list):
        for index, each in enumerate(value):
            found += problems(each, rule.get("items", {}), f"{where}[{index}]")
    return found
