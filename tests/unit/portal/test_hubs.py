"""The pages of event hubs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.portal.pages import PageTest, hub

from penstock.management.permissions import AdminRole


def test_partition_that_retention_emptied_has_no_first_number(tmp_path: Path) -> None:
    emptied = {"begin_sequence": -1, "last_sequence": 4, "last_offset": "435"}
    unused = {"begin_sequence": -1, "last_sequence": -1, "last_offset": "-1"}
    common: dict[str, Any] = {"last_enqueued_ms": -1, "size_bytes": 0, "failed": None}
    partitions = [{"id": "0"} | emptied | common, {"id": "1"} | unused | common]
    made = PageTest(tmp_path, {"hubs": [hub("h")], "partitions": partitions}).get("/hubs/h")
    table = made.partition('id="live-partitions"')[2].partition("</table>")[0]
    rows = [re.findall(r"<td[^>]*>([^<]*)", row) for row in table.split("<tbody")[1:]]
    assert [row[:3] for row in rows] == [["–", "4", "435"], ["–", "–", "–"]]


def test_list_is_searched_and_sorted_by_its_address(tmp_path: Path) -> None:
    page = PageTest(tmp_path, {"hubs": [hub(name) for name in ("b-1", "a-1", "b-2")]})
    assert re.findall(r'class="name" href="/hubs/([^"]*)"', page.get("/hubs")) == [
        *("a-1", "b-1", "b-2")
    ]
    found = page.get("/hubs?find=B&sort=-name")
    assert re.findall(r'class="name" href="/hubs/([^"]*)"', found) == ["b-2", "b-1"]
    assert "2 of 3 event hubs" in found
    assert 'aria-sort="descending"' in found
    assert "No event hub matches." in page.get("/hubs?find=zzz")


@pytest.mark.parametrize(
    ("role", "hubs", "shown"),
    [
        (AdminRole.VIEWER, (), False),
        (AdminRole.OPERATOR, (), True),
        (AdminRole.OPERATOR, ("h*",), True),
    ],
)
def test_actions_are_shown_to_those_who_may(
    tmp_path: Path, role: AdminRole, hubs: tuple[str, ...], shown: bool
) -> None:
    page = PageTest(tmp_path, {"hubs": [hub("h"), hub("other")]}, role=role, hubs=hubs)
    made = page.get("/hubs")
    assert ("/new-hub" in made) is shown
    assert ("/hubs/h/delete" in made) is shown
    assert ('href="/hubs/other"' in made) is not bool(hubs)


def test_live_answer_has_live_parts_alone_and_is_304_if_nothing_changed(tmp_path: Path) -> None:
    page = PageTest(tmp_path, {"hubs": [hub("h")]})
    answer = page.respond("/hubs", x_live="1")
    text = bytes(answer.body).decode()
    assert 'id="live-hubs"' in text
    assert 'id="live-nav"' in text
    assert "<main" not in text
    tag = answer.headers["etag"]
    assert page.respond("/hubs", x_live="1", if_none_match=tag).status_code == 304
    other = page.respond("/hubs?find=x", x_live="1", if_none_match=tag)
    assert other.status_code == 200
    assert other.headers["etag"] != tag


def test_page_of_a_form_is_a_dialog_for_the_script(tmp_path: Path) -> None:
    page = PageTest(tmp_path, {"hubs": [hub("h")]})
    assert "<main" in page.get("/hubs/h/delete")
    dialog = page.get("/hubs/h/delete", x_live="dialog")
    assert "<main" not in dialog
    assert 'id="dialog-title">Delete the event hub h?</h2>' in dialog
    assert 'data-confirm="h"' in dialog
