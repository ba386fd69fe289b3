"""The client of the service's store: address, tokens, closed connections, invalid responses."""

from __future__ import annotations

import fcntl
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from penstock.auth.sas import parse_token
from penstock.checkpoints import CheckpointStoreUnavailable
from penstock.checkpoints.records import GroupNames
from penstock.checkpoints.service_client import ServiceBackend, ServiceEndpoint, locate_service
from penstock.model import errors
from penstock.model.checkpoints import Checkpoint, Claim
from penstock.model.connection_string import Endpoint
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
        self.headers: dict[str, str] = {}
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
            ServiceEndpoint(
                url="https://localhost:8443",
                amqp=Endpoint(host="localhost", port=5671, tls=True, **given),
            ),
            now_s=lambda: self.now_s,
            wait=self.waits.append,
        )
        backend._http._connect = self.connection  # type: ignore[method-assign]  # no socket
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
            ServiceEndpoint(
                url="https://h:1",
                amqp=Endpoint(host="h", port=5671, tls=True),
                ca_file="/nowhere/ca.pem",
            ),
        )


def test_a_child_process_does_not_use_its_parents_connections() -> None:
    script = Script(EMPTY)
    backend = script.backend()
    backend.ownerships(NAMES)
    backend._http._process = -1  # as after a fork
    backend.ownerships(NAMES)
    assert (script.opened, script.closed) == (2, 0)


def test_nothing_secret_is_shown() -> None:
    make: Callable[[], ServiceBackend] = Script(ConnectionRefusedError("no")).backend
    with pytest.raises(CheckpointStoreUnavailable) as refused:
        make().claim(NAMES, [CLAIM])
    assert "c2VjcmV0" not in f"{refused.value!r}{make()._service!r}"


# --- the address of the service ------------------------------------------------------------------

KEY = "SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0"
REMOTE = f"Endpoint=sb://contoso.example.net/;{KEY}"
LOCAL = f"Endpoint=sb://localhost:7777;{KEY};UseDevelopmentEmulator=true;"


@pytest.fixture(autouse=True)
def _no_service(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("PENSTOCK_HTTPS_URL", raising=False)
    monkeypatch.setenv("PENSTOCK_DATA", str(tmp_path))


@pytest.fixture
def runtime(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """A service that runs: its file is locked."""
    facts = {
        "amqps": "localhost:5671",
        "amqp": "localhost:7777",
        "https": "https://localhost:4444",
        "ca_file": "/data/tls/ca.pem",
    }
    file = tmp_path / "runtime.json"
    file.write_text(json.dumps(facts))
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield facts


def test_without_anything_else_it_is_port_8443_of_the_host() -> None:
    service = locate_service(REMOTE)
    assert service.url == "https://contoso.example.net:8443"
    assert service.amqp.host == "contoso.example.net"
    assert service.ca_file is None
    assert service.amqp.key is not None
    assert service.amqp.key.reveal() == "c2VjcmV0"


def test_an_address_of_version_6_is_understood() -> None:
    service = locate_service(f"Endpoint=sb://[::1]:5671/;{KEY}")
    assert (service.url, service.amqp.host) == ("https://[::1]:8443", "::1")


@pytest.mark.usefixtures("runtime")
def test_a_service_on_this_machine_is_found_with_its_certificate() -> None:
    service = locate_service(LOCAL.replace("localhost", "127.0.0.1"))
    assert (service.url, service.ca_file) == ("https://localhost:4444", "/data/tls/ca.pem")


@pytest.mark.usefixtures("runtime")
@pytest.mark.parametrize("text", [REMOTE, LOCAL.replace("7777", "7778")])
def test_a_service_on_this_machine_is_not_taken_for_another(text: str) -> None:
    service = locate_service(text)
    assert service.url.endswith(":8443")
    assert service.ca_file is None


def test_what_a_crash_left_behind_is_passed_over(tmp_path: Path) -> None:
    facts = {"amqp": "localhost:7777", "https": "https://localhost:4444", "ca_file": "x"}
    (tmp_path / "runtime.json").write_text(json.dumps(facts))
    assert locate_service(LOCAL).url == "https://localhost:8443"


@pytest.mark.parametrize("content", ["", "[]", "{", "{}", '{"amqp": 5}'])
def test_a_runtime_file_that_says_nothing_is_passed_over(tmp_path: Path, content: str) -> None:
    file = tmp_path / "runtime.json"
    file.write_text(content)
    with file.open("rb") as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        assert locate_service(LOCAL).url == "https://localhost:8443"


@pytest.mark.usefixtures("runtime")
def test_the_argument_wins_over_the_environment_and_that_over_the_file(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PENSTOCK_HTTPS_URL", "https://environment:1")
    assert locate_service(LOCAL).url == "https://environment:1"
    assert locate_service(LOCAL).ca_file is None  # another service's certificate
    service = locate_service(LOCAL, https_url="https://argument/", ca_file=Path("/ca.pem"))
    assert (service.url, service.ca_file) == ("https://argument/", "/ca.pem")
    assert locate_service(LOCAL, https_url="https://127.0.0.1:4444").ca_file == "/data/tls/ca.pem"


def test_a_signature_stands_for_a_key() -> None:
    signature = "SharedAccessSignature sr=x&sig=y&se=1&skn=z"
    service = locate_service(f"Endpoint=sb://host/;SharedAccessSignature={signature}")
    assert service.amqp.signature is not None
    assert service.amqp.signature.reveal() == signature
    assert service.amqp.key is None


NO_STRINGS = [
    "",
    "nonsense",
    KEY,
    "Endpoint=sb://host/",
    "Endpoint=sb://host/;SharedAccessKey=c2VjcmV0",
    f"Endpoint=sb://host:99999/;{KEY}",
    f"Endpoint=sb:///;{KEY}",
]


@pytest.mark.parametrize("text", NO_STRINGS)
def test_what_is_no_connection_string_is_refused_without_its_key(text: str) -> None:
    with pytest.raises(errors.ArgumentError) as refused:
        locate_service(text)
    assert "c2VjcmV0" not in str(refused.value)


@pytest.mark.parametrize("url", ["http://host:1", "host:1", "https://", "https://host:99999"])
def test_what_is_no_https_url_is_refused(url: str) -> None:
    with pytest.raises(errors.ArgumentError):
        locate_service(REMOTE, https_url=url)


def test_no_key_is_shown() -> None:
    assert "c2VjcmV0" not in repr(locate_service(REMOTE))
