"""The management API against its own OpenAPI document: requests that follow it, and requests that
just do not. No server error, no status or shape that the document does not name."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import CHECKS, load_all_checks
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.result import Err, Ok
from schemathesis.schemas import APIOperation

from penstock.management.client import ManagementClient
from penstock.model.errors import ServerBusy

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

load_all_checks()
HELD_AGAINST: list[Any] = [
    check
    for check in CHECKS.get_all()
    if check.__name__
    in (
        "not_a_server_error",
        "status_code_conformance",
        "content_type_conformance",
        "response_schema_conformance",
    )
]
EXAMPLES = int(os.environ.get("PENSTOCK_SCHEMA_EXAMPLES", "6"))  # of each operation
NAMESPACE = "schemathesis"
# Names that exist, so that requests get behind the first 404.
EXISTING = {
    "subscription": "s",
    "resource_group": "g",
    "namespace": NAMESPACE,
    "hub": "orders",
    "group": "readers",
    "rule": "sender",
    "publisher": "device",
    "kind": "throughput-units",
    "job": "capture",
}
TIMEOUT_S = 30.0
TRIES = 20  # requests a second are limited


@pytest.fixture(scope="module")
def server(start_session_server: ServerFactory) -> Server:
    return start_session_server()


@pytest.fixture(scope="module")
def client(server: Server) -> Iterator[ManagementClient]:
    with ManagementClient(server["admin"], server["admin_token"]) as made:
        yield made


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as made:
        yield made


@pytest.fixture(scope="module")
def operations(server: Server) -> list[APIOperation[Any, Any, Any, Any]]:
    document = requests.get(
        f"{server['admin']}/openapi.json",
        headers={"Authorization": f"Bearer {server['admin_token']}"},
        timeout=TIMEOUT_S,
    ).json()
    assert document["components"].pop("securitySchemes")
    # Requests without a token are slowed down, and have tests of their own.
    for path in document["paths"].values():
        for operation in path.values():
            operation.pop("security", None)
    schema = schemathesis.openapi.from_dict(document)
    found = list(schema.get_all_operations())
    assert [each for each in found if isinstance(each, Err)] == []
    return [each.ok() for each in found if isinstance(each, Ok)]


def furnish(client: ManagementClient) -> None:
    """Everything that EXISTING names, whatever an operation has deleted."""
    for _ in range(TRIES):
        try:
            return furnish_once(client)
        except ServerBusy:
            threading.Event().wait(1)  # as Retry-After asks
    raise AssertionError("the service is busy for ever")


def furnish_once(client: ManagementClient) -> None:
    client.put_namespace(NAMESPACE, units=2, resource_group="g", subscription="s")
    client.put_hub(NAMESPACE, "orders", partition_count=2, status="Active")
    client.put_group(NAMESPACE, "orders", "readers")
    client.put_rule(NAMESPACE, None, "sender", ["Send"])
    client.put_rule(NAMESPACE, "orders", "sender", ["Send"])
    client.revoke_publisher(NAMESPACE, "orders", "device")
    client.grant(NAMESPACE, "throughput-units", 40)
    client.put_job("capture")


def cases(operation: APIOperation[Any, Any, Any, Any]) -> st.SearchStrategy[Case[Any]]:
    """As the document has it, and otherwise."""
    return st.one_of([operation.as_strategy(generation_mode=mode) for mode in GenerationMode])


def answered(server: Server, session: requests.Session, case: Case[Any]) -> None:
    headers = {"Authorization": f"Bearer {server['admin_token']}"}
    for _ in range(TRIES):
        response = case.call(
            base_url=server["admin"], session=session, headers=headers, timeout=TIMEOUT_S
        )
        assert response.status_code != 401
        if response.status_code != 429:
            break
        threading.Event().wait(1)  # as Retry-After asks
    case.validate_response(response, checks=HELD_AGAINST)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_answer_is_one_that_the_document_names(
    server: Server,
    client: ManagementClient,
    session: requests.Session,
    operations: list[APIOperation[Any, Any, Any, Any]],
) -> None:
    assert len(operations) > 50
    failures: list[str] = []
    furnish(client)
    for operation in operations:

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,  # the same requests every time
            database=None,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=cases(operation), known=st.booleans())
        def hold(case: Case[Any], known: bool) -> None:
            if known:
                given_names = case.path_parameters or {}
                case.path_parameters = {
                    name: EXISTING.get(name, value) for name, value in given_names.items()
                }
            answered(server, session, case)

        try:
            hold()
        except (Failure, FailureGroup) as error:  # all of them are told, not the first alone
            failures.append(f"{operation.label}: {error!s:.2000}")
        if operation.method != "get":
            furnish(client)
    assert failures == []
    assert requests.get(f"{server['admin']}/ready", timeout=TIMEOUT_S).status_code == 200
