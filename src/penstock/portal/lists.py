"""A list as its page's address asks for it: searched, filtered by state, sorted, one page of it.

The address has `find` (words), `state` (a chip), `sort` (a key; `-` before it for falling) and
`page`. So every view can be shared, and a script that updates the page asks for exactly what is
shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from penstock.portal.page_request import PageRequest

PAGE_SIZE = 100
_FIND_MAX = 200  # characters
Row = TypeVar("Row")


class Chip(msgspec.Struct, frozen=True):
    """A filter by state. `key` is None for the one that is chosen by default."""

    key: str | None
    label: str
    count: int


class ListView(msgspec.Struct, Generic[Row], frozen=True, kw_only=True):
    """`rows` are the ones of the page, `matching` and `total` count those of all pages."""

    rows: list[Row]
    matching: int
    total: int
    find: str
    state: str | None
    sort: str
    page: int
    pages: int
    chips: list[Chip]


def list_view(
    visit: PageRequest,
    rows: Iterable[Row],
    *,
    text: Callable[[Row], str],
    sorts: Mapping[str, Callable[[Row], Any]],
    sort: str,
    states: Sequence[tuple[str, str, Callable[[Row], bool]]] = (),
    page_size: int = PAGE_SIZE,
) -> ListView[Row]:
    """`text` is what a search looks at, `sorts` the value of a row by sort key, `sort` the default.

    `states` are (key, label, test); the first is chosen by default. Rows whose value is None are
    last in every order.
    """
    everything = list(rows)
    find = visit.query.get("find", "")[:_FIND_MAX]
    words = find.casefold().split()
    found = [row for row in everything if _has_words(text(row), words)]
    default = states[0][0] if states else None
    chosen = visit.query.get("state", default)
    chips = [
        Chip(None if key == default else key, label, sum(map(test, found)))
        for key, label, test in states
    ]
    test = next((test for key, _, test in states if key == chosen), None)
    if test is not None:
        found = [row for row in found if test(row)]
    wanted = visit.query.get("sort", sort)
    if wanted.removeprefix("-") not in sorts:
        wanted = sort
    found = _sorted(found, sorts[wanted.removeprefix("-")], is_falling=wanted.startswith("-"))
    pages = max(1, -(-len(found) // page_size))
    page = min(_page_number(visit), pages)
    return ListView(
        rows=found[(page - 1) * page_size :][:page_size],
        matching=len(found),
        total=len(everything),
        find=find,
        state=None if chosen == default else chosen,
        sort=wanted,
        page=page,
        pages=pages,
        chips=chips,
    )


def _has_words(text: str, words: Sequence[str]) -> bool:
    text = text.casefold() if words else ""
    return all(word in text for word in words)


def _sorted(rows: list[Row], value: Callable[[Row], Any], *, is_falling: bool) -> list[Row]:
    known = [row for row in rows if value(row) is not None]
    unknown = [row for row in rows if value(row) is None]
    return sorted(known, key=value, reverse=is_falling) + unknown


def _page_number(visit: PageRequest) -> int:
    text = visit.query.get("page", "")
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) < 6 else 1
