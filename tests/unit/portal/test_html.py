"""Markup by construction: text never becomes markup, addresses never run."""

from __future__ import annotations

import pytest

from penstock.formats.body_view import escape_invisible
from penstock.portal.html import document, el, path

PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "</title><svg onload=alert(1)>",
    "javascript:alert(1)",
    "<!--<img src='--><img src=x onerror=alert(1)//'>",
    "&lt;script&gt;",
    "]]><script>",
    "\u202egnp.exe",
)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_stays_text_in_elements_and_attributes(payload: str) -> None:
    made = el("p", payload, title=payload).text
    inside = made.removeprefix("<p").removesuffix("</p>")
    assert made.count("<") == 2  # of its own tag alone
    assert inside.count('"') == 2  # around the attribute's value
    assert "\u202e" not in made


@pytest.mark.parametrize(
    "address",
    [
        "javascript:alert(1)",
        "JaVaScRiPt:alert(1)",
        " javascript:alert(1)",
        "data:text/html,<script>",
        "//evil.example/x",
        "vbscript:x",
        "\x01javascript:alert(1)",
    ],
)
def test_address_that_could_run_or_leave_leads_nowhere(address: str) -> None:
    assert el("a", "x", href=address).text == '<a href="#">x</a>'


@pytest.mark.parametrize("address", ["/hubs?a=1", "https://spark.example:4040/", "#main", ""])
def test_usual_address_is_kept(address: str) -> None:
    assert el("a", href=address).text == f'<a href="{address}"></a>'


@pytest.mark.parametrize("attribute", ["onclick", "onload_", "style"])
def test_handlers_and_styles_have_no_place(attribute: str) -> None:
    with pytest.raises(AssertionError):
        el("p", **{attribute: "x"})


def test_nothing_is_shown_of_nothing_and_lists_are_joined() -> None:
    assert el("p", None, False, [1, ("a", el("b", 2))], 0).text == "<p>1a<b>2</b>0</p>"
    assert el("p", 1234567).text == "<p>1,234,567</p>"
    assert el("input", disabled=True, checked=False, value=None).text == "<input disabled>"


def test_what_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="object"):
        el("p", object())


def test_paths_escape_every_segment_and_leave_out_what_is_none() -> None:
    assert path("hubs", "a/b c", "events", from_="earliest", at=None) == (
        "/hubs/a%2Fb%20c/events?from=earliest"
    )
    assert path("hubs", "..", "x?y#z") == "/hubs/../x%3Fy%23z"


def test_characters_that_hide_are_shown_by_number() -> None:
    assert escape_invisible("a\u202eb\x00\u200b") == "a\\u202eb\\u0000\\u200b"


def test_document_survives_text_that_is_no_unicode() -> None:
    assert b"\\udc80" in document(el("p", "\udc80"))
