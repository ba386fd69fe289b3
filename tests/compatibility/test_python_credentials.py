"""Shared access signatures through azure-eventhub: every credential, scope, spelling and expiry."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import time
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote, quote_plus

import pytest
from azure.core.credentials import AccessToken, AzureNamedKeyCredential, AzureSasCredential
from azure.eventhub import EventData, EventHubProducerClient, EventHubSharedKeyCredential
from azure.eventhub.aio import EventHubConsumerClient as AioConsumerClient
from azure.eventhub.aio import EventHubProducerClient as AioProducerClient
from azure.eventhub.exceptions import AuthenticationError, ConnectionLostError

if TYPE_CHECKING:
    from tests.compatibility.conftest import Case, Outcomes, PythonSdk, Sdks, Spot

ROOT = "RootManageSharedAccessKey"
SECONDARY_KEY = "the-second-key-of-the-root-policy"
SHORT_S = 8
RENEWABLE_S = 10  # the SDK renews in the last tenth, counted in whole seconds


def sas(resource: str, *, policy: str, key: str, expires: int, escape: Any = quote_plus) -> str:
    """protocol.md 2.5, written out."""
    encoded = escape(resource)
    signed = hmac.new(key.encode(), f"{encoded}\n{expires}".encode(), hashlib.sha256).digest()
    signature = quote(base64.b64encode(signed), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expires}&skn={policy}"


def token(sdk: PythonSdk, resource: str, **changes: Any) -> str:
    good: dict[str, Any] = {
        "policy": ROOT,
        "key": sdk.server.key,
        "expires": int(time.time()) + 600,
    }
    return sas(resource, **(good | changes))


def signed_string(sdk: PythonSdk, signature: str) -> str:
    endpoint = sdk.connection_string().partition(";")[0]
    return f"{endpoint};SharedAccessSignature={signature};UseDevelopmentEmulator=true"


def aio_producer(sdk: PythonSdk, hub: str, credential: Any) -> AioProducerClient:
    """The client by constructor, over TLS (it knows no plain TCP)."""
    return AioProducerClient("localhost", hub, credential, **sdk.options)


async def sends(sdk: PythonSdk, spot: Spot, credential: Any) -> None:
    async with aio_producer(sdk, spot.hub, credential) as producer:
        await producer.send_batch([EventData("x")], partition_id=spot.partition)


async def shared_key_credential_signs_in(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    credential = EventHubSharedKeyCredential(ROOT, sdk.server.key)

    def send() -> None:
        with EventHubProducerClient("localhost", spot.hub, credential, **sdk.options) as producer:
            producer.send_batch([EventData("x")], partition_id=spot.partition)

    await asyncio.to_thread(send)
    assert len(await sdk.read(*spot, 1)) == 1


async def named_key_credential_signs_in(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sends(sdk, spot, AzureNamedKeyCredential(ROOT, sdk.server.key))
    assert len(await sdk.read(*spot, 1)) == 1


async def own_signature_signs_in(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sends(sdk, spot, AzureSasCredential(token(sdk, f"sb://localhost/{spot.hub}")))
    assert len(await sdk.read(*spot, 1)) == 1


async def signature_in_the_connection_string_signs_in(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    text = signed_string(sdk, token(sdk, f"sb://localhost/{spot.hub}"))
    async with sdk.producing(spot.hub, conn_str=text) as producer:
        await sdk.call(producer.send_batch, [EventData("x")], partition_id=spot.partition)
    assert len(await sdk.read(*spot, 1, client={"conn_str": text})) == 1


async def second_key_signs_in_like_the_first(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    text = sdk.connection_string(key=SECONDARY_KEY)
    async with sdk.producing(spot.hub, conn_str=text) as producer:
        await sdk.call(producer.send_batch, [EventData("x")], partition_id=spot.partition)
    assert len(await sdk.read(*spot, 1, client={"conn_str": text})) == 1


async def entity_path_names_the_hub(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    text = sdk.connection_string().rstrip(";") + f";EntityPath={spot.hub}"
    producer = AioProducerClient.from_connection_string(text, **sdk.options)
    async with producer:
        await producer.send_batch([EventData("x")], partition_id=spot.partition)
    assert len(await sdk.read(*spot, 1)) == 1


def _lower_case(resource: str) -> str:
    return quote(resource, safe="").lower()


def _bare(resource: str) -> str:
    return resource.replace("/", "%2F")


class Spelling(NamedTuple):
    """protocol.md 2.5: what a verifier must survive."""

    resource: str
    escape: Any = quote_plus


SPELLINGS = {
    "sb": Spelling("sb://localhost/{hub}"),
    "amqps": Spelling("amqps://localhost/{hub}"),
    "https": Spelling("https://localhost/{hub}/"),
    "port": Spelling("sb://localhost:5671/{hub}"),
    "no scheme": Spelling("localhost/{hub}", _bare),
    "lower case escapes": Spelling("amqps://localhost/{hub}", _lower_case),
    "upper case host": Spelling("sb://LOCALHOST/{hub}"),
    "namespace": Spelling("sb://localhost/"),
    "host alone": Spelling("localhost", _bare),
    "address": Spelling("sb://127.0.0.1/{hub}"),
}


async def signature_is_read_in_every_spelling(sdk: PythonSdk) -> None:
    spot = sdk.spot()

    async def send(name: str, spelling: Spelling) -> None:
        resource = spelling.resource.format(hub=spot.hub)
        text = token(sdk, resource, escape=spelling.escape)
        try:
            await sends(sdk, spot, AzureSasCredential(text))
        except Exception as error:
            raise AssertionError(f"{name}: {resource}") from error

    await asyncio.gather(*(send(name, spelling) for name, spelling in SPELLINGS.items()))
    assert len(await sdk.read(*spot, len(SPELLINGS))) == len(SPELLINGS)


async def bad_signatures_do_not_sign_in(sdk: PythonSdk) -> None:
    spot, other = sdk.spot(), sdk.hub()
    resource = f"sb://localhost/{spot.hub}"
    good = token(sdk, resource)
    bad = {
        "expired": token(sdk, resource, expires=int(time.time()) - 10),
        "of another hub": token(sdk, f"sb://localhost/{other}"),
        "of a longer name": token(sdk, resource + "1"),
        "of a shorter name": token(sdk, resource[:-1]),
        "by another key": token(sdk, resource, key="wrong"),
        "of an unknown policy": token(sdk, resource, policy="nobody"),
        "prolonged": good.replace("&se=", "&se=9"),
        "of a consumer group": token(sdk, resource + "/consumergroups/$Default"),
        "without signature": "&".join(p for p in good.split("&") if not p.startswith("sig=")),
    }

    async def refuse(name: str, text: str) -> None:
        try:
            await sends(sdk, spot, AzureSasCredential(text))
        except AuthenticationError:
            return
        raise AssertionError(f"a token {name} was accepted")

    await asyncio.gather(*(refuse(name, text) for name, text in bad.items()))


class ShortTokens:
    """A credential whose tokens live for some seconds; the SDK asks for a new one in time."""

    token_type = b"servicebus.windows.net:sastoken"

    def __init__(self, sdk: PythonSdk, hub: str) -> None:
        self._sdk = sdk
        self._hub = hub
        self.given = 0

    async def get_token(self, *scopes: str, **options: Any) -> AccessToken:
        self.given += 1
        expires = int(time.time()) + RENEWABLE_S
        text = token(self._sdk, f"sb://localhost/{self._hub}", expires=expires)
        return AccessToken(text, expires)


async def renewed_token_keeps_the_link(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    tokens = ShortTokens(sdk, spot.hub)
    got: asyncio.Queue[Any] = asyncio.Queue()

    async def on_event(context: Any, event: Any) -> None:
        got.put_nowait(event.body_as_str())

    async def on_error(context: Any, error: Exception) -> None:
        got.put_nowait(error)

    credential: Any = tokens  # the SDK's annotations know only bearer tokens; its code knows both
    consumer = AioConsumerClient("localhost", spot.hub, "$Default", credential, **sdk.options)
    where: dict[str, Any] = {"partition_id": spot.partition, "starting_position": "-1"}
    reading = asyncio.create_task(consumer.receive(on_event, on_error=on_error, **where))
    number = 0
    try:
        # The first token is for the hub's properties, the second for the link, the third renews it.
        first_is_over = time.monotonic() + RENEWABLE_S + 1
        while tokens.given < 3 or time.monotonic() < first_is_over:
            await sdk.send(spot.hub, str(number), partition_id=spot.partition)
            assert await asyncio.wait_for(got.get(), 20) == str(number)
            number += 1
    finally:
        reading.cancel()
        await asyncio.wait([reading])
        await consumer.close()
    assert number > 1


async def expired_token_ends_the_link(sdk: PythonSdk) -> None:
    spot = sdk.spot()
    await sdk.send(spot.hub, "one", partition_id=spot.partition)
    short = token(sdk, f"sb://localhost/{spot.hub}", expires=int(time.time()) + SHORT_S)
    text = signed_string(sdk, short)
    async with sdk.reading(*spot, client={"conn_str": text}) as reading:
        assert (await reading.next()).body_as_str() == "one"
        error = await reading.error(within_s=60)
    # Whichever comes first: the link's end, or the refusal of the SDK's attempt to renew with it.
    assert isinstance(error, ConnectionLostError | AuthenticationError)


PLAIN: list[Case] = [
    signature_in_the_connection_string_signs_in,
    second_key_signs_in_like_the_first,
    expired_token_ends_the_link,
]
OVER_TLS: list[Case] = [
    shared_key_credential_signs_in,
    named_key_credential_signs_in,
    own_signature_signs_in,
    entity_path_names_the_hub,
    signature_is_read_in_every_spelling,
    bad_signatures_do_not_sign_in,
    renewed_token_keeps_the_link,
]


@pytest.fixture(scope="module")
def outcomes(sdks: Sdks) -> Outcomes:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sdks.run((PLAIN, [("sync", "tcp")]), (OVER_TLS, [("aio", "tls")]))


@pytest.mark.parametrize("case", PLAIN, ids=lambda case: case.__name__)
def test_credential(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case, "sync", "tcp")


@pytest.mark.parametrize("case", OVER_TLS, ids=lambda case: case.__name__)
def test_credential_over_tls(outcomes: Outcomes, case: Case) -> None:
    outcomes.check(case, "aio", "tls")
