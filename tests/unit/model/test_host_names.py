"""Names that a server answers for, and those of web pages that point a name at it."""

from __future__ import annotations

import pytest

from penstock.model.host_names import HostNames

NAMES = HostNames(["Box", "events.example.com", "192.0.2.5", "[2001:db8::5]"])


@pytest.mark.parametrize(
    "header",
    [
        *("localhost", "localhost:5300", "LOCALHOST.", "127.0.0.1:5300", "127.1.2.3", "[::1]:5300"),
        *("box", "box:5300", "events.example.com:443", "192.0.2.5:5300", "[2001:db8::5]:5300"),
        "10.0.0.7:5300",  # the address that the request came in by
    ],
)
def test_own_names_are_allowed(header: str) -> None:
    assert NAMES.allows(header, server="10.0.0.7")


@pytest.mark.parametrize(
    "header",
    [
        *("", "evil.example", "evil.example:5300", "localhost.evil.example", "box.evil.example"),
        *("10.0.0.8:5300", "[2001:db8::6]", "127.0.0.1.evil.example", "localhost:5300:1", "[", "]"),
    ],
)
def test_other_names_are_not(header: str) -> None:
    assert not NAMES.allows(header, server="10.0.0.7")
    assert not NAMES.allows(header)
