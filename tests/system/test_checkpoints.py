"""The service keeps checkpoints: over restarts and kill -9, with rights, and lag to be seen."""

from __future__ import annotations

import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from penstock.checkpoints import ServiceCheckpointStore
from penstock.model.errors import ArgumentError, AuthFailed, NotFound

if TYPE_CHECKING:
    from tests.conftest import Server, ServerFactory

GROUP = {
    "fully_qualified_namespace": "localhost",
    "eventhub_name": "orders",
    "consumer_group": "$Default",
}
SAVED = {**GROUP, "partition_id": "1", "offset": "5", "sequence_number": 3}


def store_of(server: Server, text: str | None = None, **options: Any) -> ServiceCheckpointStore:
    given = {"https_url": server["https"], "ca_file": server["ca_file"]} | options
    return ServiceCheckpointStore(text or server["connection_string"], **given)


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_checkpoints_survive_a_restart(
    start_server: ServerFactory, tmp_path: Path, end: str
) -> None:
    data = tmp_path / "kept"
    first = start_server("--hub=orders", data=data)
    with store_of(first) as store:
        (won,) = store.claim_ownership([{**GROUP, "partition_id": "1", "owner_id": "me"}])
        store.update_checkpoint(SAVED)
        getattr(first, end)()
        port = f"--https-port={first.port('https')}"
        second = start_server("--hub=orders", port, data=data)
        # The same store goes on, over a new connection.
        assert store.list_ownership("localhost", "orders", "$Default") == [won]
        assert store.list_checkpoints("localhost", "orders", "$Default") == [SAVED]
        assert len(store.claim_ownership([won])) == 1
    assert second["https"] == first["https"]


def test_stores_are_refused_what_they_may_not(start_server: ServerFactory) -> None:
    server = start_server("--hub=orders")
    wrong = server.connection_string(key="c29tZXRoaW5n", tls=True)
    with store_of(server, wrong) as store, pytest.raises(AuthFailed, match="InvalidSignature"):
        store.update_checkpoint(SAVED)
    with store_of(server) as store:
        with pytest.raises(NotFound):
            store.list_ownership("localhost", "nowhere", "$Default")
        with pytest.raises(NotFound):
            store.list_ownership("localhost", "orders", "nobody")
        with pytest.raises(ArgumentError):
            store.update_checkpoint({**SAVED, "partition_id": "99"})
    with store_of(server, ca_file=None) as store, pytest.raises(ArgumentError, match="ca_file"):
        store.list_ownership("localhost", "orders", "$Default")


def test_the_running_service_is_found_by_its_data_directory(
    start_server: ServerFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server("--hub=orders")
    monkeypatch.setenv("PENSTOCK_DATA", str(server.data))
    for text in (server["connection_string"], server["emulator_connection_string"]):
        with ServiceCheckpointStore(text) as store:
            assert store.list_ownership("localhost", "orders", "$Default") == []


def test_metrics_show_the_lag_of_a_checkpoint(start_server: ServerFactory) -> None:
    server = start_server("--hub=orders")
    with store_of(server) as store:
        store.update_checkpoint(SAVED)
    with urllib.request.urlopen(server["admin"] + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    labels = f'{{group="$Default",hub="orders",namespace="{server["namespace"]}",partition="1"}}'
    assert f"penstock_consumer_lag_events{labels} 0\n" in text
    assert f"penstock_consumer_checkpoint_sequence_number{labels} 3\n" in text
    assert 'penstock_consumer_lag_events{group="$Default",hub="orders"' in text
    assert labels.replace('"1"', '"0"') not in text  # nobody reads it and nothing is kept of it
