"""The official emulator's Config.json: read as its users wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.model.entities import LimitSet, Secret
from penstock.model.errors import ConfigurationError
from penstock.model.names import ROOT_RULE
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import Settings

# The file that the emulator's installer ships, byte for byte in meaning.
SHIPPED: dict[str, Any] = {
    "UserConfig": {
        "NamespaceConfig": [
            {
                "Type": "EventHub",
                "Name": "emulatorNs1",
                "Entities": [
                    {"Name": "eh1", "PartitionCount": "2", "ConsumerGroups": [{"Name": "cg1"}]}
                ],
            }
        ],
        "LoggingConfig": {"Type": "File"},
    }
}

Load = Callable[..., Settings]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def from_content(content: object, **flags: object) -> Settings:
        file = tmp_path / "Config.json"
        file.write_text(content if isinstance(content, str) else json.dumps(content))
        environ = flags.pop("environ", {})
        assert isinstance(environ, dict)
        return load_settings(flags={"config": file, **flags}, environ=environ)

    return from_content


def with_hub(**hub: object) -> dict[str, Any]:
    entity = {"Name": "eh1", "PartitionCount": 2, "ConsumerGroups": [], **hub}
    namespace = {"Type": "EventHub", "Name": "emulatorNs1", "Entities": [entity]}
    return {"UserConfig": {"NamespaceConfig": [namespace]}}


def test_the_shipped_file_gives_its_namespace_hub_and_group(load: Load) -> None:
    settings = load(SHIPPED)

    (namespace,) = settings.namespaces
    (hub,) = namespace.hubs
    root = namespace.rule(ROOT_RULE)
    assert namespace.name == "emulatorNs1"
    assert (hub.name, hub.partition_count, hub.groups) == ("eh1", 2, ("cg1",))
    assert root is not None and root.primary_key == Secret("SAS_KEY_VALUE")
    assert settings.namespaces_given


@pytest.mark.parametrize("count", [1, "1", 32, " 32 "])
def test_partition_counts_may_be_texts_and_one_is_enough(load: Load, count: object) -> None:
    (namespace,) = load(with_hub(PartitionCount=count)).namespaces
    assert namespace.hubs[0].partition_count == int(str(count))
    assert namespace.limits is LimitSet.CURRENT


def test_file_implies_the_current_limits_unless_a_flag_states_others(load: Load) -> None:
    implied, stated = load(SHIPPED), load(SHIPPED, limits="specification")
    assert implied.limits is implied.namespaces[0].limits is LimitSet.CURRENT
    assert stated.limits is stated.namespaces[0].limits is LimitSet.SPECIFICATION


def test_keys_match_in_any_case_and_strange_ones_are_ignored(load: Load) -> None:
    content = """\ufeff
    // a comment, as the emulator allows
    {"userconfig": {"NAMESPACECONFIG": [{ "name": "emulatorNs1", /* and
        another */ "Colour": "http://blue", "entities": [
        {"name": "eh1", "partitioncount": "2", "consumergroups": [{"name": "cg1",},],},
    ],},],},}"""
    (namespace,) = load(content).namespaces
    assert namespace.hubs[0].groups == ("cg1",)


def test_hubs_may_have_no_groups_and_default_is_not_made_twice(load: Load) -> None:
    content = with_hub(ConsumerGroups=[{"Name": "$default"}, {"Name": "cg1"}])
    content["UserConfig"]["NamespaceConfig"][0]["Entities"].append(
        {"Name": "eh2", "PartitionCount": 4}
    )
    hubs = load(content).namespaces[0].hubs
    assert [hub.groups for hub in hubs] == [("cg1",), ()]


def test_flags_and_environment_combine_with_it(load: Load) -> None:
    environ = {"PENSTOCK_ROOT_KEY": "another"}
    settings = load(SHIPPED, hubs=["orders:8"], host="0.0.0.0", environ=environ)
    (namespace,) = settings.namespaces
    root = namespace.rule(ROOT_RULE)
    assert [hub.name for hub in namespace.hubs] == ["eh1", "orders"]
    assert root is not None and root.primary_key == Secret("another")


def test_its_published_key_is_refused_beyond_loopback(load: Load) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(SHIPPED, host="0.0.0.0")
    assert "--host is '0.0.0.0', beyond this machine" in str(caught.value)
    assert "PENSTOCK_ROOT_KEY" in str(caught.value)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("{", "line 1: this is not valid JSON"),
        ('{"a": 1,\n\n"b" 2}', "line 3: this is not valid JSON"),
        ('{"a": ' + "[" * 100_000, "nested too deep"),
        ({}, "Config.json has no 'UserConfig', which it needs"),
        ({"UserConfig": {}}, "UserConfig has no 'NamespaceConfig'"),
        ({"UserConfig": 5}, "UserConfig is 5: a table is allowed"),
        ({"UserConfig": {"NamespaceConfig": {}}}, "NamespaceConfig is a table: a list is allowed"),
        ({"UserConfig": {"NamespaceConfig": []}}, "is a list: one namespace is needed"),
        ({"UserConfig": {"NamespaceConfig": [{}]}}, "NamespaceConfig[0] has no 'Name'"),
        (with_hub(Name=None), "Entities[0] has no 'Name'"),
        (with_hub(Name=7), "Entities[0].Name is 7: a name is allowed"),
        (with_hub(Name="a b"), "Entities[0].Name: The event hub name 'a b' is invalid"),
        (with_hub(PartitionCount=0), "PartitionCount is 0: a whole number from 1 to 32 is"),
        (with_hub(PartitionCount="33"), "PartitionCount is '33': a whole number from 1 to 32"),
        (with_hub(PartitionCount=True), "PartitionCount is true: a whole number from 1 to 32"),
        (with_hub(PartitionCount="many"), "PartitionCount is 'many': a whole number"),
        (with_hub(ConsumerGroups="cg1"), "ConsumerGroups is 'cg1': a list is allowed"),
        (with_hub(ConsumerGroups=[{"Name": "a"}] * 2), "ConsumerGroups[1]: 'a' is there twice"),
        (
            with_hub(ConsumerGroups=[{"Name": f"cg{n}"} for n in range(21)]),
            "ConsumerGroups has 21 entries: at most 20 are allowed",
        ),
    ],
)
def test_a_bad_part_is_named_with_what_is_allowed(
    load: Load, content: object, sentence: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(content)
    assert sentence in str(caught.value)
    assert "Config.json" in str(caught.value)
    assert len(str(caught.value)) < 400


def test_another_services_namespace_is_refused(load: Load) -> None:
    content = with_hub()
    content["UserConfig"]["NamespaceConfig"][0]["Type"] = "ServiceBus"
    with pytest.raises(ConfigurationError, match="'ServiceBus': EventHub is allowed"):
        load(content)


def test_a_hub_named_twice_is_refused(load: Load) -> None:
    content = with_hub()
    entities = content["UserConfig"]["NamespaceConfig"][0]["Entities"]
    entities.append({**entities[0], "Name": "EH1"})
    with pytest.raises(ConfigurationError, match="'EH1' is there twice"):
        load(content)
