"""Arguments and options of commands, and parsers of their values.

Typer calls a parser before the command, so before any connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import typer

from penstock.formats import positions, quantities
from penstock.formats.positions import StartPosition
from penstock.model.errors import ArgumentError

T = TypeVar("T")


def option(usage: str, text: str, **settings: Any) -> Any:
    """A typer.Option. `usage` is what the help shows to the left of `text`: flags and the name of
    the value, such as `--rate N/s`. Without a flag the option has the name of its parameter."""
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    metavar = next((word for word in words if not word.startswith("-")), None)
    return typer.Option(*flags, metavar=metavar, help=text, **settings)


def argument(metavar: str, text: str, **settings: Any) -> Any:
    """A typer.Argument with its name in the usage line and a help text."""
    return typer.Argument(metavar=metavar, help=text, **settings)


def parse_position(text: str | StartPosition) -> StartPosition:
    """A start position relative to now. Typer also passes defaults, which may be parsed already."""
    if isinstance(text, StartPosition):
        return text
    now_ms = int(time.time() * 1000)
    return parse_option(lambda value: positions.parse_position(value, now_ms=now_ms), text)


def parse_duration(text: str | float) -> float:
    """A duration in seconds."""
    return parse_option(quantities.parse_seconds, str(text))


def parse_seconds(text: str, *, option: str) -> float:
    """`30s`, `1h30m`, `7d`; a number without a unit is in seconds. Raises typer.BadParameter."""
    return parse_option(quantities.parse_seconds, text, option=option)


def parse_hours(text: str, *, option: str) -> int:
    """Whole hours; a number without a unit is in hours. Raises typer.BadParameter."""
    return parse_option(quantities.parse_hours, text, option=option)


def parse_option(parse: Callable[[str], T], text: str, *, option: str | None = None) -> T:
    """Raises typer.BadParameter. Typer adds the option's name unless `option` is given."""
    try:
        return parse(text)
    except ArgumentError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
