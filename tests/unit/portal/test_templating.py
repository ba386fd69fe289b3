"""Templates: text never becomes markup, addresses never run, and no template can change that."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from jinja2.exceptions import TemplateSyntaxError, UndefinedError

from penstock.formats.body_view import escape_invisible
from penstock.portal import templating
from penstock.portal.assets import asset, static_files
from penstock.portal.json_view import json_lines
from penstock.portal.urls import path

VENDOR = Path(templating.__file__).parent / "vendor"
PAYLOADS = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'-alert(1)-'",
    "</title><svg onload=alert(1)>",
    "javascript:alert(1)",
    "<!--<img src='--><img src=x onerror=alert(1)//'>",
    "&lt;script&gt;",
    "]]><script>",
    "{{ 7 * 7 }}",
    "\u202egnp.exe",
)


def shown(source: str, **values: object) -> str:
    return templating.environment().from_string(source).render(values)


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_stays_text_in_elements_and_attributes(payload: str) -> None:
    made = shown('<p title="{{ text }}">{{ text }}</p>', text=payload)
    assert made.count("<") == 2  # of its own tag alone
    assert made.removesuffix("</p>").count('"') == 2  # around the attribute's value
    assert "\u202e" not in made
    assert "49" not in made


@pytest.mark.parametrize("payload", PAYLOADS)
def test_text_stays_text_in_macros(payload: str) -> None:
    source = (
        '{% import "ui.html" as ui with context %}{{ ui.badge(text) }}{{ ui.code(text) }}'
        "{{ ui.text(text) }}{{ ui.stat(text, text, text, text) }}{{ ui.facts([(text, text)]) }}"
    )
    made, plain = shown(source, text=payload), shown(source, text="x")
    assert made.count("<") == plain.count("<")
    assert made.count('"') == plain.count('"')
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
    assert shown('<a href="{{ to|url }}">x</a>', to=address) == '<a href="#">x</a>'


@pytest.mark.parametrize("address", ["/hubs?a=1", "https://spark.example:4040/", "#main", ""])
def test_usual_address_is_kept(address: str) -> None:
    assert shown('<a href="{{ to|url }}"></a>', to=address) == f'<a href="{address}"></a>'


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('<a href="{{ to }}">', "filter `url`"),
        ('<a href="/x/{{ to|url }}">', "filter `url`"),
        ('<form action="{{ to|url ~ to }}">', "filter `url`"),
        ("<img src={{ to|url }}>", "filter `url`"),
        ('<p onclick="x()">', "scripts and styles"),
        ('<p style="color: red">', "scripts and styles"),
        ("<script>x()</script>", "scripts and styles"),
        ("<style>p {}</style>", "scripts and styles"),
        ("<p>{{ to|safe }}</p>", "not be escaped"),
        ("{% autoescape false %}{% endautoescape %}", "not be escaped"),
        ("<p title={{ to }}>", "not quoted"),
        ("<p title='{{ to }}'>", "wrong quotes"),
    ],
)
def test_template_that_breaks_a_rule_is_refused(source: str, reason: str) -> None:
    with pytest.raises(TemplateSyntaxError, match=reason):
        shown(source, to="x")


def test_every_template_obeys_the_rules() -> None:
    files = sorted(file.name for file in templating.TEMPLATES.iterdir())
    assert len(files) > 20
    for name in files:
        templating.environment().get_template(name)


@pytest.mark.parametrize("value", [object(), None, True, b"x", ["x"], {"x": 1}])
def test_what_is_no_text_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="cannot be shown"):
        shown("{{ value }}", value=value)


def test_name_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UndefinedError, match="nothing"):
        shown("{{ nothing }}")


def test_live_part_is_a_block_with_an_element() -> None:
    template = templating.environment().from_string("{% live x %}{{ 1 + 1 }}{% endlive %}")
    assert template.render() == '<div id="live-x" data-live>2</div>'
    assert list(template.blocks) == ["live_x"]


def test_ids_of_rows_are_equal_for_equal_words_alone() -> None:
    made = shown('{{ row_id("a b", "c") }} {{ row_id("a b", "c") }} {{ row_id("a", "b c") }}')
    first, second, third = made.split()
    assert first == second != third
    assert first.isalnum()


def test_paths_escape_every_segment_and_leave_out_what_is_none() -> None:
    assert path("hubs", "a/b c", "events", from_="earliest", at=None) == (
        "/hubs/a%2Fb%20c/events?from=earliest"
    )
    assert path("hubs", "..", "x?y#z") == "/hubs/../x%3Fy%23z"
    assert path("hubs", open=["a&b", "c"]) == "/hubs?open=a%26b&open=c"


def test_characters_that_hide_are_shown_by_number() -> None:
    assert escape_invisible("a\u202eb\x00\u200b") == "a\\u202eb\\u0000\\u200b"


def test_page_survives_text_that_is_no_unicode() -> None:
    assert "\\udc80" in shown("<p>{{ text }}</p>", text="\udc80")


def test_json_is_colored_and_folds() -> None:
    text = '{\n  "a": {\n    "b": {\n      "c": [\n        1,\n        "x"\n      ]\n    }\n  }\n}'
    lines = json_lines(text, "X")
    assert ("k", '"a"') in lines[1].tokens
    folded = next(line for line in lines if line.inner)
    assert ("k", '"c"') in folded.tokens
    assert [("n", "1") in line.tokens for line in folded.inner] == [True, False]
    assert ("s hl", "x") in folded.inner[1].tokens

    def flat(lines: list[object]) -> str:
        return "\n".join(
            "".join(part for _, part in line.tokens)  # type: ignore[attr-defined]
            + ("\n" + flat(line.inner) if line.inner else "")  # type: ignore[attr-defined]
            for line in lines
        )

    assert flat(list(lines)) == text


def test_vendored_files_are_the_published_ones() -> None:
    """By the hashes in vendor/README.md; each library has its license beside it."""
    rows = [
        [cell.strip(" `") for cell in line.split("|")[1:-1]]
        for line in (VENDOR / "README.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    listed = {row[0]: row[3] for row in rows}
    files = {f"{file.parent.name}/{file.name}": file for file in VENDOR.glob("*/*.js")}
    assert files.keys() == listed.keys()
    for name, file in files.items():
        assert hashlib.sha256(file.read_bytes()).hexdigest() == listed[name]
        assert (file.parent / "LICENSE").read_text()


def test_address_of_a_static_file_names_its_content() -> None:
    for name in static_files():
        assert asset(name).startswith(f"/static/{name}?v=")
    assert asset("icons.svg", "ok").endswith("#ok")


def test_every_icon_that_a_template_names_exists() -> None:
    icons = set(re.findall(r'<symbol id="([a-z-]+)"', static_files()["icons.svg"].decode()))
    named = set()
    for file in templating.TEMPLATES.iterdir():
        named |= set(re.findall(r'(?:icon|empty|state)\(\s*"([a-z]+)"', file.read_text())) - {"Off"}
    assert named <= icons
