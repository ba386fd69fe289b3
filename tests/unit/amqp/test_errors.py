"""How texts of the peer appear in error messages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.amqp.errors import quote_peer_text


@given(name=st.text(max_size=200))
def test_names_are_shown_short_and_plain(name: str) -> None:
    text = quote_peer_text(name)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= 64 * 10 + 5


def test_a_usual_name_is_shown_whole() -> None:
    assert quote_peer_text("hub/Partitions/0") == "'hub/Partitions/0'"
