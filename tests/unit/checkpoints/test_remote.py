"""The service's store from the client's side: tokens, ended connections, answers that are none."""

from __future__ import annotations

import http.client
import ssl
from collections.abc import Callable
from typing import Any

import pytest

from penstock.auth import parse_token
from penstock.checkpoints import CheckpointStoreUnavailable
from penstock.checkpoints.locating import ServiceEndpoint
from penstock.checkpoints.records import GroupNames
from penstock.checkpoints.service_client import ServiceBackend
from penstock.model import errors
from penstock.model.checkpoints import Checkpoint, Claim
from penstock.model.entities import Secret

NAMES = GroupNames("localhost:5671", "plant/line", "$Default")
EMPTY = (200, b'{"ownerships":[],"checkpoints":[]}')
CLAIM = Claim(partition_id="0", owner_id="me")
SAVED = Checkpoint(partition_id="0", offset="1", sequence_number=1)

Step = tuple[int, bytes] | Exception


class Answer:
    def __init__(self, status: int, body: bytes, *, will_close: bool) -> None:
        self.status = status
        self.will_close = will_close
        self._body = body

    def read(self, most: int) -> bytes:
        return self._body[:most]


class Script:
    """What the service does, request by request; the last step is for all further ones."""

    def __init__(self, *steps: Step) -> None:
        self.steps = list(steps)
        self.requests: list[tuple[str, str, bytes, dict[str, str]]] = []
        self.opened = 0
        self.closed = 0
        self.waits: list[float] = []
        self.will_close = False
        self.now_s = 1_000_000.0

    def backend(self, **service: Any) -> ServiceBackend:
        given: dict[str, Any] = {"key_name": "root", "key": Secret("c2VjcmV0")} | service
        backend = ServiceBackend(
            ServiceEndpoint(host="localhost", port=8443, namespace_host="localhost", **given),
            now_s=lambda: self.now_s,
            wait=self.waits.append,
        )
        backend._new_connection = self.connection  # type: ignore[method-assign]  # no socket
        return backend

    def connection(self) -> Any:
        self.opened += 1
        return Connection(self)

    def next(self) -> Step:
        return self.steps.pop(0) if len(self.steps) > 1 else self.steps[0]


class Connection:
    def __init__(self, script: Script) -> None:
        self._script = script

    def request(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> None:
        self._script.requests.append((method, path, body, headers))

    def getresponse(self) -> Answer:
        step = self._script.next()
        if isinstance(step, Exception):
            raise step
        return Answer(*step, will_close=self._script.will_close)

    def close(self) -> None:
        self._script.closed += 1


def test_requests_name_the_hub_escaped_and_carry_its_token() -> None:
    script = Script(EMPTY)
    script.backend().claim(NAMES, [CLAIM])
    ((method, path, body, headers),) = script.requests
    assert (method, path) == ("POST", "/$penstock/checkpoints/plant%2Fline/%24Default/ownership")
    assert body == b'{"claims":[{"partition_id":"0","owner_id":"me","etag":null}]}'
    token = parse_token(headers["Authorization"])
    assert (token.resource, token.key_name) == ("sb://localhost/plant/line", "root")
    assert token.expiry_s == script.now_s + 3600


def test_a_token_is_used_for_half_its_time() -> None:
    script = Script(EMPTY)
    backend = script.backend()
    for passed_s in (0, 1700, 200):
        script.now_s += passed_s
        backend.ownerships(NAMES)
    first, second, third = [headers["Authorization"] for _, _, _, headers in script.requests]
    assert first == second
    assert second != third


def test_tokens_that_are_remembered_are_bounded() -> None:
    backend = Script(EMPTY).backend()
    for index in range(600):
        backend.ownerships(GroupNames("localhost", f"hub-{index}", "g"))
    assert len(backend._tokens) <= 256


def test_a_signature_that_was_given_is_used_as_it_is() -> None:
    script = Script(EMPTY)
    script.backend(key=None, signature=Secret("SharedAccessSignature x")).ownerships(NAMES)
    assert script.requests[0][3]["Authorization"] == "SharedAccessSignature x"


def test_one_connection_serves_one_request_after_the_other() -> None:
    script = Script(EMPTY)
    backend = script.backend()
    for _ in range(5):
        backend.checkpoints(NAMES)
    assert script.opened == 1
    backend.close()
    assert script.closed == 1
    backend.checkpoints(NAMES)
    assert script.opened == 2


def test_a_connection_that_the_service_ends_is_not_used_again() -> None:
    script = Script(EMPTY)
    script.will_close = True
    backend = script.backend()
    backend.checkpoints(NAMES)
    backend.checkpoints(NAMES)
    assert (script.opened, script.closed) == (2, 2)


@pytest.mark.parametrize(
    "ended",
    [
        ConnectionResetError(),
        BrokenPipeError(),
        http.client.RemoteDisconnected(""),
        ssl.SSLEOFError(),
    ],
)
def test_an_idle_connection_that_was_ended_is_replaced_at_once(ended: Exception) -> None:
    script = Script(EMPTY, ended, EMPTY)
    backend = script.backend()
    backend.claim(NAMES, [CLAIM])
    assert backend.claim(NAMES, [CLAIM]) == []
    assert script.opened == 2
    assert script.waits == []


def test_reads_and_checkpoints_are_tried_again_for_a_while() -> None:
    refused = ConnectionRefusedError("refused")
    acts: tuple[Callable[[ServiceBackend], object], ...] = (
        lambda backend: backend.ownerships(NAMES),
        lambda backend: backend.checkpoints(NAMES),
        lambda backend: backend.save(NAMES, SAVED),
    )
    for act in acts:
        script = Script(refused, (503, b""), TimeoutError("late"), EMPTY)
        act(script.backend())
        assert len(script.waits) == 3
        gone = Script(refused)
        with pytest.raises(CheckpointStoreUnavailable, match="https://localhost:8443"):
            act(gone.backend())
        assert sum(gone.waits) == pytest.approx(3.5)


def test_a_claim_is_tried_once() -> None:
    script = Script(ConnectionRefusedError("refused"))
    with pytest.raises(CheckpointStoreUnavailable):
        script.backend().claim(NAMES, [CLAIM])
    assert len(script.requests) == 1
    assert script.waits == []


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, errors.ArgumentError),
        (401, errors.AuthFailed),
        (403, errors.QuotaExceeded),
        (404, errors.NotFound),
        (408, CheckpointStoreUnavailable),
        (413, errors.MessageTooLarge),
        (418, errors.PenstockError),
        (302, errors.PenstockError),
        (500, CheckpointStoreUnavailable),
        (503, CheckpointStoreUnavailable),
    ],
)
def test_refusals_keep_their_kind_and_their_words(status: int, kind: type[Exception]) -> None:
    body = b"<Error><Code>1</Code><Detail>no &lt;hub&gt; here TrackingId:1, x</Detail></Error>"
    with pytest.raises(kind, match=f"^The service answered {status}: no <hub> here$"):
        Script((status, body)).backend().claim(NAMES, [CLAIM])


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"ownerships":[{}]}'])
def test_answers_that_are_none_are_said(body: bytes) -> None:
    with pytest.raises(errors.PenstockError, match="cannot be read"):
        Script((200, body)).backend().ownerships(NAMES)


def test_an_answer_without_end_is_not_read_to_its_end() -> None:
    script = Script((200, b"x" * (5 * 1024 * 1024)))
    with pytest.raises(CheckpointStoreUnavailable, match="more than"):
        script.backend().claim(NAMES, [CLAIM])
    assert script.closed == 1


def test_a_certificate_that_cannot_be_verified_is_not_tried_again() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_message = "self-signed certificate"
    script = Script(error)
    with pytest.raises(errors.ArgumentError, match="ca_file"):
        script.backend().ownerships(NAMES)
    assert script.waits == []


def test_a_ca_file_that_is_not_there_is_said() -> None:
    with pytest.raises(errors.ArgumentError, match="nowhere"):
        ServiceBackend(
            ServiceEndpoint(host="h", port=1, namespace_host="h", ca_file="/nowhere/ca.pem"),
        )


def test_a_child_process_does_not_use_its_parents_connections() -> None:
    script = Script(EMPTY)
    backend = script.backend()
    backend.ownerships(NAMES)
    backend._process = -1  # as after a fork
    backend.ownerships(NAMES)
    assert (script.opened, script.closed) == (2, 0)


def test_nothing_secret_is_shown() -> None:
    make: Callable[[], ServiceBackend] = Script(ConnectionRefusedError("no")).backend
    with pytest.raises(CheckpointStoreUnavailable) as refused:
        make().claim(NAMES, [CLAIM])
    assert "c2VjcmV0" not in f"{refused.value!r}{make()._service!r}"
