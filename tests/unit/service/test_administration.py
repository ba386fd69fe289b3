"""How connections are shown: what peers say of themselves is text, bounded, or nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from penstock.service.management_context import _user_agent


@pytest.mark.parametrize(
    ("properties", "shown"),
    [
        ({}, ""),
        ({"user-agent": "an-sdk/1.0"}, "an-sdk/1.0"),
        ({"User-Agent": "an-sdk/1.0", "product": "p"}, "an-sdk/1.0"),
        ({"product": "MSJSClient", "version": "5"}, "MSJSClient/5"),
        ({"product": "p"}, "p"),
        ({"user-agent": 7, "product": ["x"], "version": None}, ""),
        ({"user-agent": ""}, ""),
    ],
)
def test_user_agent_is_what_the_sdk_calls_itself(
    properties: Mapping[str, object], shown: str
) -> None:
    assert _user_agent(properties) == shown


def test_hostile_user_agent_is_bounded_and_escaped() -> None:
    shown = _user_agent({"user-agent": "a\x1b[31m\n" + "b" * 100_000})
    assert len(shown) < 2_000
    assert shown.isprintable()
