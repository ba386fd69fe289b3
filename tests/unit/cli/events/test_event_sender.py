"""Rates, speeds and properties that users write."""

from __future__ import annotations

import pytest
import typer

from penstock.cli.events.event_sender import PublishRate, parse_rate
from penstock.cli.events.replay import parse_speed
from penstock.cli.events.send import parse_property


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1000/s", 1000.0), ("60/min", 1.0), ("5", 5.0), ("0.5/s", 0.5), ("36/h", 0.01)],
)
def test_rate_is_understood(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "fast", "0/s", "-5", "5/day"])
def test_rate_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_rate(text)


def test_paced_batches_are_small_enough_to_look_even() -> None:
    assert PublishRate(None).batch_events(5000) == 5000
    assert PublishRate(1000.0).batch_events(5000) == 50
    assert PublishRate(1.0).batch_events(5000) == 1


@pytest.mark.parametrize(("text", "factor"), [("2x", 2.0), ("0.5X", 0.5), ("3", 3.0)])
def test_speed_is_understood(text: str, factor: float) -> None:
    assert parse_speed(text) == factor


@pytest.mark.parametrize("text", ["0x", "x", "fast", "-1x"])
def test_speed_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_speed(text)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a=b", ("a", "b")),
        ("a=", ("a", "")),
        ("a=b=c", ("a", "b=c")),
        ("n:=5", ("n", 5)),
        ("t:=true", ("t", True)),
        ("x:=null", ("x", None)),
    ],
)
def test_property_is_understood(text: str, found: tuple[str, object]) -> None:
    assert parse_property(text) == found


@pytest.mark.parametrize("text", ["a", "=b", ":=5", "a:={}", "a:=nonsense"])
def test_property_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter):
        parse_property(text)
