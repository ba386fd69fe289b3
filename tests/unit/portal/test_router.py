"""The router, and the examples in docstrings."""

from __future__ import annotations

import doctest
from typing import Any

import pytest

from penstock.formats import body_view, positions, quantities
from penstock.model.errors import ArgumentError
from penstock.portal import charts, event_query, templating
from penstock.portal.application import PageRouter
from penstock.portal.page_request import PageRoute
from penstock.portal.pages.send import parse_properties


def test_properties_are_lines_or_an_object() -> None:
    assert parse_properties("a=1\n\n b = x=y \n") == {"a": "1", "b": "x=y"}
    assert parse_properties('{"n": 1, "t": "x", "b": true}') == {"n": 1, "t": "x", "b": True}
    for wrong in ("novalue", "=x", '{"a": [1]}', "{", '{"a": null}'):
        with pytest.raises(ArgumentError):
            parse_properties(wrong)


@pytest.mark.parametrize(
    "module", [quantities, positions, body_view, event_query, charts, templating]
)
def test_examples_are_true(module: Any) -> None:
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


async def _nothing(visit: Any) -> Any:
    raise AssertionError


def test_router_matches_whole_segments_and_methods() -> None:
    router = PageRouter(
        [PageRoute("GET", "/hubs/{hub}/events", _nothing), PageRoute("POST", "/hubs", _nothing)]
    )
    found = router.find("GET", "/hubs/a%2Fb/events")
    assert found is not None
    assert found[1] == {"hub": "a/b"}
    assert router.find("GET", "/hubs/a/b/events") is None
    assert router.find("GET", "/hubs") is None
    assert router.find("POST", "/hubs") is not None
