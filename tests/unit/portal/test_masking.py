"""Fields that administrators alone see."""

from __future__ import annotations

import gzip
import json

import pytest

from penstock.amqp.encoder import encode
from penstock.formats.event_record import to_json_lines
from penstock.formats.event_view import EventView
from penstock.kernels import Columns
from penstock.model.errors import ConfigurationError
from penstock.portal.field_mask import HIDDEN_BODY, SHOWN, FieldMask


def masked(
    text: str, body: bytes, *, key: str | None = None, kind: int = 0x75, **properties: object
) -> EventView:
    encoded = encode(properties) if properties else b""
    rows = ([1], ["10"], [0], [key], [body], [encoded], [b""], [b""])
    columns = Columns(*rows, bytes((kind,)))
    FieldMask(text).apply(columns)
    return EventView(columns, "0", 0)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"card": {"number": "1", "name": "a"}}, {"card": {"number": SHOWN, "name": "a"}}),
        ({"card": {"number": {"deep": [1]}}}, {"card": {"number": SHOWN}}),
        ([{"card": {"number": 1}}, {"card": 2}], [{"card": {"number": SHOWN}}, {"card": 2}]),
        ({"card": [{"number": 1}, {"x": 2}]}, {"card": [{"number": SHOWN}, {"x": 2}]}),
        ({"number": 1}, {"number": 1}),
    ],
)
def test_field_of_json_is_masked_wherever_it_is(body: object, expected: object) -> None:
    for packed in (json.dumps(body).encode(), gzip.compress(json.dumps(body).encode())):
        event = masked("json.card.number", packed)
        opened = gzip.decompress(event.body) if event.body[:2] == b"\x1f\x8b" else event.body
        assert json.loads(opened) == expected


@pytest.mark.parametrize(
    "body", [b'{"card": {"number": 1}', b"[" * 100_000, gzip.compress(b'{"card"', mtime=0), b" [1,"]
)
def test_json_that_cannot_be_looked_into_is_not_shown(body: bytes) -> None:
    assert masked("json.card.number", body).body == HIDDEN_BODY


def test_body_that_is_no_json_stays() -> None:
    assert masked("json.card", b"plain card").body == b"plain card"
    assert masked("key", b'{"card": 1}').body == b'{"card": 1}'


def test_properties_and_key_are_masked() -> None:
    event = masked(" properties.email , key ", b"x", key="customer", email="a@b", n=1)
    assert event.properties == {"email": SHOWN, "n": 1}
    assert event.partition_key == SHOWN
    assert masked("key", b"x").partition_key is None


@pytest.mark.parametrize("text", ["card", "json", "json.", "properties.a b", "key.x"])
def test_field_that_is_none_is_a_sentence(text: str) -> None:
    with pytest.raises(ConfigurationError, match="is not a field"):
        FieldMask(text)


def test_nothing_is_masked_without_fields() -> None:
    assert masked("", b'{"a": 1').body == b'{"a": 1'


def test_download_has_no_masked_value() -> None:
    event = masked("properties.email, json.a, key", b'{"a": "secret"}', key="me", email="secret")
    line = to_json_lines(event.columns, "0", [0])
    assert b"secret" not in line and b'"me"' not in line
    assert masked("json.a", b"secret", kind=0x77).body == HIDDEN_BODY
