"""The filter language of `penstock tail --filter` and of the portal's search.

    key == "d7" and size > 100      "error" in body      json.temperature >= 30
    properties.kind in ("a", "b")   matches(body, "^W")  not json.ok   partition != 0
    body contains error             key = d7             time >= 2026-01-01T00:00:00

A value that an event does not have is null. A comparison of values that cannot be compared is
false. Directly after an operator, text needs quotes only if it has spaces, brackets or signs, or is
a name of the language. A number and a text are compared as numbers by `<` and as text by `==`; the
event's time is compared as a time.

    expression = and_expression {"or" and_expression}
    and_expression = not_expression {"and" not_expression}
    not_expression = "not" not_expression | operand {operator operand}
    operand = literal | function "(" ... ")" | "(" expression {"," expression} ")"
            | "[" ... "]" | name {"." word | "[" expression "]"}
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from penstock.formats.amqp_values import display_value, to_readable
from penstock.formats.event_view import EventView
from penstock.formats.quantities import format_time, parse_time_ms
from penstock.model.errors import ArgumentError

_DEPTH_MAX = 50
_LENGTH_MAX = 2000

Evaluate = Callable[[EventView], Any]
Compare = Callable[[Any, Any], bool]


class _TimeText(str):
    """The text of an event's time. It is compared as a time."""

    __slots__ = ()


def _to_comparable(value: object) -> object:
    """The form of a property's value in which it is compared with numbers and text."""
    readable = to_readable(value)
    if isinstance(readable, Decimal):
        return float(readable)
    if type(readable) is bytes:
        return readable.decode("utf-8", "replace")
    is_simple = readable is None or isinstance(readable, bool | int | float | str | list | dict)
    return readable if is_simple else display_value(readable)


def _properties(event: EventView) -> dict[str, object]:
    return {name: _to_comparable(value) for name, value in event.properties.items()}


_NAMES: dict[str, Evaluate] = {
    "body": lambda event: event.text,
    "json": lambda event: event.json,
    "size": lambda event: len(event.body),
    "key": lambda event: event.partition_key,
    "seq": lambda event: event.sequence_number,
    "sequence": lambda event: event.sequence_number,
    "offset": lambda event: event.offset,
    "time": lambda event: _TimeText(format_time(event.enqueued_ms)),
    "partition": lambda event: event.partition,
    "properties": _properties,
    "system": lambda event: event.fields,
    "content_type": lambda event: event.fields.get("content-type"),
}
_CONSTANTS = {
    "true": True,
    "false": False,
    "null": None,
    "True": True,
    "False": False,
    "None": None,
}
_FUNCTIONS: dict[str, tuple[int, Callable[..., Any]]] = {  # the number of arguments first
    "matches": (2, lambda text, pattern: isinstance(text, str) and bool(re.search(pattern, text))),
    "lower": (1, lambda text: text.lower() if isinstance(text, str) else None),
    "len": (1, lambda value: len(value) if hasattr(value, "__len__") else None),
    "number": (1, lambda text: _to_number(text)),
}


def compile_filter(text: str, *, patterns: bool = True) -> Callable[[EventView], bool]:
    """A test for events.

    `patterns` allows `matches`: a pattern of another user may take unlimited time. Raises
    ArgumentError.
    """
    if len(text) > _LENGTH_MAX:
        raise _syntax_error(f"it has {len(text)} characters, {_LENGTH_MAX} are allowed")
    parser = _Parser(text, patterns=patterns)
    evaluate = parser.parse_expression(0)
    parser.expect_end()
    return lambda event: bool(evaluate(event))


def text_filter(text: str) -> Callable[[EventView], bool]:
    """A test for events with the text in body, key, or names or values of properties; any case."""
    needle = text.casefold()

    def has_text(event: EventView) -> bool:
        return (
            needle in event.text.casefold()
            or needle in (event.partition_key or "").casefold()
            or any(
                needle in name.casefold() or needle in format_value(value).casefold()
                for name, value in event.properties.items()
            )
        )

    return has_text


def format_value(value: object) -> str:
    """A value as text. Bytes that are not UTF-8 are replaced."""
    return value.decode("utf-8", "replace") if type(value) is bytes else display_value(value)


# --- operators ------------------------------------------------------------------------------------


def _is_equal(left: Any, right: Any) -> bool:
    if isinstance(left, _TimeText) or isinstance(right, _TimeText):
        left, right = _to_times(left, right)
    elif (_is_number(left) and isinstance(right, str)) or (
        _is_number(right) and isinstance(left, str)
    ):
        left, right = format_value(left), format_value(right)
    return bool(left == right)


def _ordering(compare: Compare) -> Compare:
    def compare_values(left: Any, right: Any) -> bool:
        if isinstance(left, _TimeText) or isinstance(right, _TimeText):
            left, right = _to_times(left, right)
        elif _is_number(left) and isinstance(right, str):
            right = float(right)
        elif _is_number(right) and isinstance(left, str):
            left = float(left)
        return compare(left, right)

    return compare_values


def _contains(left: Any, right: Any) -> bool:
    return left is not None and format_value(right).casefold() in format_value(left).casefold()


def _is_in(left: Any, right: Any) -> bool:
    if isinstance(right, list):
        return any(_is_equal(left, item) for item in right)
    return left in right


_OPERATORS: dict[str, Compare] = {
    "==": _is_equal,
    "=": _is_equal,
    "!=": lambda left, right: not _is_equal(left, right),
    "<": _ordering(operator.lt),
    "<=": _ordering(operator.le),
    ">": _ordering(operator.gt),
    ">=": _ordering(operator.ge),
    "in": _is_in,
    "not in": lambda left, right: not _is_in(left, right),
    "is": operator.is_,
    "is not": operator.is_not,
    "contains": _contains,
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _to_times(left: Any, right: Any) -> tuple[Any, Any]:
    """Both as milliseconds where both are times, else unchanged."""
    try:
        return parse_time_ms(str(left)), parse_time_ms(str(right))
    except (ValueError, OverflowError):
        return left, right


def _to_number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


# --- parser ---------------------------------------------------------------------------------------

_QUOTED = r"\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*'"
_BARE = r"[^\s()\[\]{},'\"<>=!]"
_STRING = re.compile(rf"\s*({_QUOTED})", re.DOTALL)
_NUMBER = re.compile(r"\s*(-?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.:-])")
_NAME = re.compile(r"\s*([A-Za-z_]\w*)")
_BARE_TEXT = re.compile(rf"\s*({_BARE}+)")
_BARE_CONTINUATION = re.compile(rf"(?!\.){_BARE}")  # a `.` continues a path
_STEP = re.compile(r"\.([\w$-]+)")
_OPERATOR = re.compile(r"\s*(==|!=|<=|>=|=|<|>|(?:not\s+in|in|is\s+not|is|contains)\b)")


class _Parser:
    """Compiles an expression while it reads it. Recursive descent, one method per rule."""

    def __init__(self, text: str, *, patterns: bool) -> None:
        self._text = text
        self._position = 0
        self._patterns = patterns

    def parse_expression(self, depth: int) -> Evaluate:
        return self._parse_joined("or", any, lambda: self._parse_and(depth + 1))

    def expect_end(self) -> None:
        if self._text[self._position :].strip():
            raise self._unexpected_error()

    def _parse_and(self, depth: int) -> Evaluate:
        return self._parse_joined("and", all, lambda: self._parse_not(depth))

    def _parse_joined(
        self, word: str, join: Callable[[Any], bool], parse: Callable[[], Evaluate]
    ) -> Evaluate:
        parts = [parse()]
        while self._take_word(word):
            parts.append(parse())
        if len(parts) == 1:
            return parts[0]
        return lambda event: join(part(event) for part in parts)

    def _parse_not(self, depth: int) -> Evaluate:
        if depth > _DEPTH_MAX:
            raise _syntax_error(f"it is nested deeper than {_DEPTH_MAX} levels")
        if self._take_word("not"):
            inner = self._parse_not(depth + 1)
            return lambda event: not inner(event)
        return self._parse_comparison(depth)

    def _parse_comparison(self, depth: int) -> Evaluate:
        first = self._parse_operand(depth)
        others: list[tuple[Compare, Evaluate]] = []
        while (sign := self._take(_OPERATOR)) is not None:
            compare = _OPERATORS[" ".join(sign.split())]
            others.append((compare, self._parse_operand(depth, is_right=True)))
        if not others:
            return first

        def evaluate(event: EventView) -> bool:
            left = first(event)
            for compare, operand in others:
                right = operand(event)
                try:
                    if not compare(left, right):
                        return False
                except (TypeError, ValueError):
                    return False
                left = right
            return True

        return evaluate

    def _parse_operand(self, depth: int, *, is_right: bool = False) -> Evaluate:
        """`is_right`: text without quotes is allowed."""
        literal = self._take(_STRING)
        if literal is not None:
            return _constant(_read_string(literal))
        number = self._take(_NUMBER)
        if number is not None:
            return _constant(float(number) if re.search("[.eE]", number) else int(number))
        if self._take_symbol("("):
            items, is_list = self._parse_items(")", depth)
            return _list_of(items) if is_list else items[0]
        if self._take_symbol("["):
            return _list_of(self._parse_items("]", depth)[0])
        start = self._position
        name = self._take(_NAME) or ""
        if name in _FUNCTIONS and self._take_symbol("("):
            return self._parse_call(name, depth)
        is_text = is_right and _BARE_CONTINUATION.match(self._text, self._position) is not None
        if name in _NAMES and not is_text:
            return self._parse_path(name, depth)
        self._position = start
        bare = self._take(_BARE_TEXT)
        if bare is not None and bare in _CONSTANTS:
            return _constant(_CONSTANTS[bare])
        if bare is not None and is_right:
            return _constant(bare)
        self._position = start
        if name:
            raise _syntax_error(f"there is no '{name}'; use one of {', '.join(_NAMES)}")
        raise self._unexpected_error()

    def _parse_items(self, end: str, depth: int) -> tuple[list[Evaluate], bool]:
        """Expressions up to the closing bracket, and whether there was a comma or no expression."""
        items: list[Evaluate] = []
        has_comma = False
        while not self._take_symbol(end):
            if items and not has_comma:
                raise self._unexpected_error()
            items.append(self.parse_expression(depth))
            has_comma = self._take_symbol(",")
        return items, has_comma or len(items) != 1

    def _parse_call(self, name: str, depth: int) -> Evaluate:
        count, function = _FUNCTIONS[name]
        if name == "matches" and not self._patterns:
            raise _syntax_error("matches() is not available here")
        start = self._position
        arguments, _ = self._parse_items(")", depth)
        if len(arguments) != count:
            raise _syntax_error(f"{name}() needs {count} argument{'s' if count > 1 else ''}")
        if name == "matches":
            _check_pattern(self._text[start : self._position])
        return lambda event: function(*(argument(event) for argument in arguments))

    def _parse_path(self, name: str, depth: int) -> Evaluate:
        """A name and the items within its value. `properties.a.b` is also the property `a.b`."""
        value = _NAMES[name]
        words: list[str] = []
        while True:
            step = _STEP.match(self._text, self._position)
            if step is not None:
                self._position = step.end()
                words.append(step[1])
                value = _item_of(value, _constant(step[1]))
            elif self._text[self._position : self._position + 1] == "[":
                self._position += 1
                indexes, is_list = self._parse_items("]", depth)
                if is_list:
                    raise self._unexpected_error()
                value = _item_of(value, indexes[0])
            else:
                break
        if name != "properties" or len(words) < 2:
            return value
        dotted = _item_of(_properties, _constant(".".join(words)))
        return lambda event: value(event) if dotted(event) is None else dotted(event)

    def _take(self, pattern: re.Pattern[str]) -> str | None:
        match = pattern.match(self._text, self._position)
        if match is None:
            return None
        self._position = match.end()
        return match[1]

    def _take_word(self, word: str) -> bool:
        start = self._position
        if (self._take(_NAME) or "").lower() == word:
            return True
        self._position = start
        return False

    def _take_symbol(self, symbol: str) -> bool:
        remaining = self._text[self._position :].lstrip()
        if not remaining.startswith(symbol):
            return False
        self._position = len(self._text) - len(remaining) + len(symbol)
        return True

    def _unexpected_error(self) -> ArgumentError:
        text = self._text[self._position :].strip()[:40]
        return _syntax_error(f"'{text}' is not possible here" if text else "its end is missing")


def _constant(value: object) -> Evaluate:
    return lambda event: value


def _list_of(items: list[Evaluate]) -> Evaluate:
    return lambda event: [item(event) for item in items]


def _item_of(value: Evaluate, index: Evaluate) -> Evaluate:
    """An item of a map or list; never an attribute of a Python object."""

    def evaluate(event: EventView) -> Any:
        container, key = value(event), index(event)
        if isinstance(container, list) and isinstance(key, str) and key.isdecimal():
            key = int(key)
        try:
            return container[key] if isinstance(container, dict | list) else None
        except (KeyError, IndexError, TypeError):
            return None

    return evaluate


def _read_string(literal: str) -> str:
    try:
        return str(ast.literal_eval(literal))
    except (SyntaxError, ValueError) as error:
        raise _syntax_error(f"{literal[:40]} is not a text: {error}") from None


def _check_pattern(arguments: str) -> None:
    """The pattern of `matches` must be a literal, so that it is checked before events are read."""
    literal = re.search(rf",\s*({_QUOTED})\s*,?\s*\)$", arguments, re.DOTALL)
    if literal is None:
        raise _syntax_error("the pattern of matches() must be a text in quotes")
    try:
        re.compile(_read_string(literal[1]))
    except re.error as error:
        raise _syntax_error(f"{literal[1]} is not a pattern: {error}") from None


def _syntax_error(reason: str) -> ArgumentError:
    return ArgumentError(f"The expression cannot be used: {reason}.")
