"""Bodies and other text of events for display."""

from __future__ import annotations

import gzip
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from penstock.formats import body_view
from penstock.formats.body_view import escape_line_bytes


@given(st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_inert_text_has_nothing_that_acts(data: bytes) -> None:
    shown = escape_line_bytes(data)
    assert all(
        unicodedata.category(each) not in ("Cc", "Zl", "Zp") and each not in "\u200e\u202e\u2066"
        for each in shown
    )


def test_bodies_are_shown_as_what_they_are() -> None:
    assert body_view.best_view(b'{"a": 1}') == "json"
    assert body_view.format_body(b'{"b":[1]}', "json") == '{\n  "b": [\n    1\n  ]\n}'
    assert body_view.best_view("grüße".encode()) == "text"
    assert body_view.best_view(bytes(range(256))) == "hex"
    assert body_view.format_body(b"AB", "hex").startswith("00000000  41 42")
    assert body_view.format_body(b"not json", "json") == "not json"
    assert body_view.best_view(b"") == "text"
    assert "bytes more" in body_view.format_body(b"x" * 300_000, "text")
    assert body_view.preview(b"a\n  b") == "a b"
    assert body_view.preview(b"x" * 500).endswith("…")


def test_gzip_is_opened_and_a_bomb_only_a_little() -> None:
    assert body_view.unpack_gzip(gzip.compress(b"hello"))[0] == b"hello"
    content, note = body_view.unpack_gzip(gzip.compress(bytes(50 * 1024 * 1024)))
    assert len(content) <= 4 * 1024 * 1024
    assert "beginning" in note
    assert "damaged" in body_view.unpack_gzip(b"\x1f\x8bnonsense")[1]
    assert body_view.unpack_gzip(b"plain") == (b"plain", "")


def test_deeply_nested_json_is_text() -> None:
    assert body_view.best_view(b"[" * 100_000) == "text"
