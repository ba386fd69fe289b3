"""deploy/helm: what the chart renders fits `penstock serve` and the image."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.support.dockerfile import Dockerfile, ImageSettings
from tests.support.helm import Chart, merge

from penstock import __version__
from penstock.service.config.loader import load_settings
from penstock.service.config.settings import SETTINGS
from penstock.service.management_context import UNCHECKED_PATHS

ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm"
DEADLINE_S = 60
EVERYTHING: dict[str, Any] = {
    "image": {"repository": "registry.example/penstock", "tag": "full"},
    "imagePullSecrets": [{"name": "pull"}],
    "fullnameOverride": "hub",
    "config": 'hubs = ["orders:8"]\n\n[prices]\ncurrency = "EUR"\n',
    "publicHosts": ["hub.example.com"],
    "rootKey": {"value": "k=y"},
    "tls": {"existingSecret": "certificate"},
    "plainAmqp": True,
    "environment": {"PENSTOCK_LOG_LEVEL": "debug", "PENSTOCK_FLUSH": "os"},
    "environmentFrom": [{"secretRef": {"name": "capture"}}],
    "persistence": {"storageClass": "fast", "size": "1Ti"},
    "service": {"type": "LoadBalancer", "annotations": {"a": "b"}},
    "serviceMonitor": {"enabled": True, "tokenSecret": "reader", "labels": {"release": "p"}},
    "podAnnotations": {"c": "d"},
    "nodeSelector": {"disk": "nvme"},
    "tolerations": [{"key": "x", "operator": "Exists"}],
    "affinity": {"nodeAffinity": {}},
    "priorityClassName": "high",
}
EXISTING: dict[str, Any] = {"rootKey": {"existingSecret": "mine"}, "podDisruptionBudget": {}}
NOTHING = {"podDisruptionBudget": {"enabled": False}}
CASES = {"default": {}, "everything": EVERYTHING, "existing": EXISTING, "least": NOTHING}
# What an object may have; every other field is refused, so that a misspelled one is found.
FIELDS = {
    "ConfigMap": {"data"},
    "Secret": {"type", "stringData"},
    "Service": {
        *("spec.type", "spec.selector", "spec.ports", "spec.clusterIP"),
        "spec.publishNotReadyAddresses",
    },
    "StatefulSet": {
        *("spec.replicas", "spec.serviceName", "spec.selector", "spec.template"),
        "spec.volumeClaimTemplates",
    },
    "PodDisruptionBudget": {"spec.minAvailable", "spec.selector"},
    "ServiceMonitor": {"spec.selector", "spec.endpoints"},
}
VERSIONS = {
    "ConfigMap": "v1",
    "Secret": "v1",
    "Service": "v1",
    "StatefulSet": "apps/v1",
    "PodDisruptionBudget": "policy/v1",
    "ServiceMonitor": "monitoring.coreos.com/v1",
}
POD_FIELDS = {
    *("imagePullSecrets", "automountServiceAccountToken", "terminationGracePeriodSeconds"),
    *("securityContext", "containers", "volumes", "nodeSelector", "tolerations", "affinity"),
    "priorityClassName",
}
CONTAINER_FIELDS = {
    *("name", "image", "imagePullPolicy", "securityContext", "env", "envFrom", "ports"),
    *("startupProbe", "livenessProbe", "readinessProbe", "resources", "volumeMounts"),
}


@pytest.fixture(scope="module")
def chart() -> Chart:
    return Chart(CHART, release="test", namespace="streams")


@pytest.fixture(scope="module")
def image() -> ImageSettings:
    file = Dockerfile.read(ROOT / "deploy" / "Dockerfile")
    return file.settings(file.default_target)


@pytest.fixture(params=CASES)
def rendered(request: pytest.FixtureRequest, chart: Chart) -> list[dict[str, Any]]:
    return chart.render(**CASES[request.param])


def one(documents: list[dict[str, Any]], kind: str, *, suffix: str = "") -> dict[str, Any]:
    found = [
        each
        for each in documents
        if each["kind"] == kind and each["metadata"]["name"].endswith(suffix)
    ]
    assert found, kind
    return found[0]


def pod(documents: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = one(documents, "StatefulSet")["spec"]["template"]["spec"]
    return spec


def container(documents: list[dict[str, Any]]) -> dict[str, Any]:
    (found,) = pod(documents)["containers"]
    assert isinstance(found, dict)
    return found


def environ(documents: list[dict[str, Any]]) -> dict[str, str]:
    return {each["name"]: each["value"] for each in container(documents)["env"]}


def paths(document: dict[str, Any]) -> Iterator[str]:
    for key, value in document.items():
        if key == "spec":
            yield from (f"spec.{each}" for each in value)
        elif key not in ("apiVersion", "kind", "metadata"):
            yield key


def test_every_object_has_known_fields_only(rendered: list[dict[str, Any]]) -> None:
    for document in rendered:
        kind = document["kind"]
        assert document["apiVersion"] == VERSIONS[kind]
        assert set(paths(document)) <= FIELDS[kind], kind
        assert set(document["metadata"]) <= {"name", "labels", "annotations"}
        assert len(document["metadata"]["name"]) <= 63
    assert set(pod(rendered)) <= POD_FIELDS
    assert set(container(rendered)) <= CONTAINER_FIELDS


def test_selectors_find_the_pod(rendered: list[dict[str, Any]]) -> None:
    labels = one(rendered, "StatefulSet")["spec"]["template"]["metadata"]["labels"]
    assert all(isinstance(value, str) for value in labels.values())
    for document in rendered:
        selector = document.get("spec", {}).get("selector")
        if selector is not None:
            wanted = selector.get("matchLabels", selector)
            assert wanted and wanted.items() <= labels.items(), document["kind"]
    stateful = one(rendered, "StatefulSet")["spec"]
    assert one(rendered, "Service", suffix="-pods")["metadata"]["name"] == stateful["serviceName"]
    assert stateful["replicas"] == 1


def test_ports_are_those_of_the_image(rendered: list[dict[str, Any]], image: ImageSettings) -> None:
    ports = {each["name"]: each["containerPort"] for each in container(rendered)["ports"]}
    assert set(ports.values()) | {5672} == set(image.ports)
    assert ("amqp" in ports) == ("PENSTOCK_AMQP_PORT" in environ(rendered))
    for service in (one(rendered, "Service"), one(rendered, "Service", suffix="-pods")):
        for port in service["spec"]["ports"]:
            assert ports[port["targetPort"]] == port["port"]
    assert all(len(name) <= 15 for name in ports)


def test_probes_ask_what_the_service_answers_to_everybody(rendered: list[dict[str, Any]]) -> None:
    found = container(rendered)
    probes = {name: found[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness")}
    for probe in (*probes.values(), found["readinessProbe"]["httpGet"]):
        assert (probe["port"], probe["scheme"]) == ("https-admin", "HTTPS")
        assert probe["path"] in UNCHECKED_PATHS
    assert {probe["path"] for probe in probes.values()} == {"/health"}
    assert found["readinessProbe"]["httpGet"]["path"] == "/ready"


def test_the_service_accepts_the_configuration(
    rendered: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Files are where the mounts put them; the loader reads what the pod would."""
    variables = environ(rendered)
    assert set(variables) <= {setting.variable for setting in SETTINGS}
    mounts = {each["name"]: each["mountPath"] for each in container(rendered)["volumeMounts"]}
    config = tmp_path / "penstock.toml"
    config.write_text(one(rendered, "ConfigMap")["data"]["penstock.toml"])
    key = tmp_path / "root-key"
    key.write_text("a-key\n")
    assert variables["PENSTOCK_CONFIG"] == f"{mounts['config']}/penstock.toml"
    local = {"PENSTOCK_HOST": "0.0.0.0", "PENSTOCK_CONFIG": str(config)}
    if "PENSTOCK_ROOT_KEY_FILE" in variables:
        assert variables["PENSTOCK_ROOT_KEY_FILE"] == f"{mounts['root-key']}/root-key"
        local["PENSTOCK_ROOT_KEY_FILE"] = str(key)
    settings = load_settings(flags={}, environ=variables | local)
    assert settings.data.is_relative_to(mounts["data"])
    assert settings.amqp_port == (5672 if "PENSTOCK_AMQP_PORT" in variables else None)
    assert settings.namespaces[0].hubs
    name = one(rendered, "StatefulSet")["metadata"]["name"]
    assert f"{name}-0.{name}-pods.streams.svc" in settings.public_hosts
    if settings.tls_certificate_file is not None:
        assert {settings.tls_certificate_file.parent} == {Path(mounts["tls"])}


def test_the_pod_cannot_do_more_than_it_needs(
    rendered: list[dict[str, Any]], image: ImageSettings
) -> None:
    spec, found = pod(rendered), container(rendered)
    user = f"{spec['securityContext']['runAsUser']}:{spec['securityContext']['runAsGroup']}"
    assert user == image.user
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert found["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    mounted = {each["name"] for each in found["volumeMounts"]}
    claims = one(rendered, "StatefulSet")["spec"]["volumeClaimTemplates"]
    volumes = {each["name"] for each in [*spec["volumes"], *(c["metadata"] for c in claims)]}
    assert mounted == volumes
    assert {"/data", "/tmp"} <= {each["mountPath"] for each in found["volumeMounts"]}


def test_a_stated_key_is_in_a_secret_and_nowhere_else(chart: Chart) -> None:
    documents = chart.render(**EVERYTHING)
    assert one(documents, "Secret")["stringData"] == {"root-key": "k=y"}
    others = [each for each in documents if each["kind"] != "Secret"]
    assert "k=y" not in yaml.safe_dump_all(others)
    existing = chart.render(**EXISTING)
    assert not [each for each in existing if each["kind"] == "Secret"]
    (volume,) = (each for each in pod(existing)["volumes"] if each["name"] == "root-key")
    assert volume["secret"]["secretName"] == "mine"


def test_the_monitor_scrapes_with_a_token_over_tls(chart: Chart) -> None:
    documents = chart.render(**EVERYTHING)
    (endpoint,) = one(documents, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["path"], endpoint["scheme"]) == ("/metrics", "https")
    assert endpoint["authorization"]["credentials"] == {"name": "reader", "key": "token"}
    hosts = environ(documents)["PENSTOCK_PUBLIC_HOSTS"].split(",")
    assert endpoint["tlsConfig"]["serverName"] in hosts
    ports = {each["name"] for each in one(documents, "Service")["spec"]["ports"]}
    assert endpoint["port"] in ports
    kinds = {each["kind"] for each in chart.render(**NOTHING)}
    assert not kinds & {"ServiceMonitor", "PodDisruptionBudget"}


def test_values_and_schema_name_the_same_keys(chart: Chart) -> None:
    """And the templates use nothing else."""

    def keys(values: dict[str, Any], schema: dict[str, Any], path: str) -> None:
        known = set(schema["properties"]) - {"global"}
        assert set(values) == known, path
        for key, value in values.items():
            if "properties" in schema["properties"][key]:
                keys(value, schema["properties"][key], f"{path}.{key}")

    keys(chart.values, chart.schema, "values")


def test_notes_name_what_there_is(chart: Chart) -> None:
    notes = chart.notes()
    assert "penstock policy connection-string" in notes and "ca.pem" in notes
    assert "ca.pem" not in chart.notes(**EVERYTHING)


def test_version_is_that_of_the_package(chart: Chart) -> None:
    assert chart.metadata["appVersion"] == chart.metadata["version"] == __version__


@pytest.fixture(scope="module")
def helm() -> str:
    found = shutil.which("helm")
    if found is None:
        pytest.skip("helm is not installed")
    return found


def run_helm(helm: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [helm, *words], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


def test_helm_finds_nothing_wrong(helm: str) -> None:
    done = run_helm(helm, "lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_helm_renders_the_same(helm: str, chart: Chart, case: str, tmp_path: Path) -> None:
    values = tmp_path / "values.json"
    values.write_text(json.dumps(merge({}, CASES[case])))
    options = ("--namespace", "streams", "--kube-version", "1.29", "--values", str(values))
    done = run_helm(helm, "template", "test", str(CHART), *options)
    assert done.returncode == 0, done.stderr
    theirs = [each for each in yaml.safe_load_all(done.stdout) if each]
    ours = chart.render(**CASES[case])

    def place(document: dict[str, Any]) -> tuple[str, str]:
        return document["kind"], document["metadata"]["name"]

    assert sorted(theirs, key=place) == sorted(ours, key=place)


@pytest.mark.parametrize(
    "wrong", ["image.tga=1", "serviceMonitor.enabled=true", "service.type=None", "rootKey.value=;"]
)
def test_helm_refuses_wrong_values(helm: str, wrong: str) -> None:
    options = ("--kube-version", "1.29", "--set", wrong)
    assert run_helm(helm, "template", "test", str(CHART), *options).returncode != 0
