"""Frames that the peer takes: only the text of an error is cut, never in the caller's object."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.fitting import encode_fitting_frame
from penstock.amqp.frames import encode_frame
from penstock.amqp.link import quote_peer_text
from penstock.amqp.performatives import (
    Accepted,
    Close,
    Detach,
    Disposition,
    End,
    Error,
    Open,
    Performative,
    Rejected,
    decode_performative,
    encode_performative,
)


def error(text: str | None) -> Error:
    return Error(condition="amqp:internal-error", description=text)


def carrying(text: str | None) -> list[Performative]:
    return [
        Detach(handle=2**32 - 1, closed=True, error=error(text)),
        End(error=error(text)),
        Close(error=error(text)),
        Disposition(
            role=True,
            first=2**32 - 1,
            last=2**32 - 1,
            settled=True,
            state=Rejected(error=error(text)),
        ),
    ]


@given(text=st.text(max_size=3000), limit=st.integers(512, 2000))
def test_a_frame_never_exceeds_the_limit(text: str, limit: int) -> None:
    for performative in carrying(text):
        frame = encode_fitting_frame(3, performative, frame_bytes_max=limit)
        assert len(frame) <= limit
        decode_performative(frame, 8, len(frame))
        whole = encode_frame(3, encode_performative(performative))
        assert (frame == whole) == (len(whole) <= limit)


@pytest.mark.parametrize("performative", carrying("ä" * 5000), ids=lambda each: type(each).__name__)
def test_as_much_of_the_text_is_kept_as_fits(performative: Performative) -> None:
    before = encode_performative(performative)
    frame = encode_fitting_frame(0, performative, frame_bytes_max=1000)
    assert 990 <= len(frame) <= 1000
    assert encode_performative(performative) == before


@pytest.mark.parametrize(
    "performative",
    [
        Open(container_id="c" * 600),
        Close(error=Error(condition="c" * 600)),
        Disposition(role=True, first=0, state=Accepted()),
        Disposition(role=True, first=0, state=Rejected()),
        Detach(handle=0),
    ],
)
def test_what_has_no_text_is_left_as_it_is(performative: Performative) -> None:
    whole = encode_frame(0, encode_performative(performative))
    assert encode_fitting_frame(0, performative, frame_bytes_max=512) == whole


@given(name=st.text(max_size=200))
def test_names_are_shown_short_and_plain(name: str) -> None:
    text = quote_peer_text(name)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 64 * 10 + 5


def test_a_usual_name_is_shown_whole() -> None:
    assert quote_peer_text("hub/Partitions/0") == "'hub/Partitions/0'"
