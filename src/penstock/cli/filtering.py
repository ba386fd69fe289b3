"""`--filter`: an expression in Python's syntax over one event, of which only harmless parts exist.

    key == "d7" and size > 100      "error" in body      json.temperature >= 30
    properties.kind in ("a", "b")   matches(body, "^W")  not json.ok   partition != "0"

What an event does not have is None; a comparison that makes no sense is false. A body that is an
AMQP value is its text, a decimal is a number, and .NET's DateTimeOffset, TimeSpan and Uri are text.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import typer

from penstock.cli.records import format_enqueued_time
from penstock.cli.sections import BODY_KINDS, field_values, map_values
from penstock.client.values import display_body, to_readable
from penstock.kernels import Columns

_DEPTH_MAX = 50
_LENGTH_MAX = 2000


class FilteredEvent:
    """One row; what an expression asks for is looked up, and parsed, when it does."""

    __slots__ = ("_body", "_columns", "_json", "_partition", "_row")

    def __init__(self, columns: Columns, partition: str, row: int) -> None:
        self._columns, self._partition, self._row = columns, partition, row
        self._body: str | None = None
        self._json: Any = _UNREAD

    def value(self, name: str) -> Any:
        return _NAMES[name](self)

    @property
    def body(self) -> str:
        if self._body is None:
            self._body = self._content.decode("utf-8", "replace")
        return self._body

    @property
    def properties(self) -> dict[str, Any]:
        values = map_values(self._columns.properties[self._row])
        return {name: _comparable(value) for name, value in values.items()}

    @property
    def _content(self) -> bytes:
        kind = BODY_KINDS[self._columns.body_kinds[self._row]]
        return display_body(self._columns.bodies[self._row], kind)

    @property
    def json(self) -> Any:
        if self._json is _UNREAD:
            try:
                self._json = json.loads(self._content)
            except (ValueError, RecursionError):
                self._json = None
        return self._json


_UNREAD = object()
Evaluate = Callable[[FilteredEvent], Any]


def _comparable(value: object) -> object:
    readable = to_readable(value)
    return float(readable) if isinstance(readable, Decimal) else readable


def _column(name: str) -> Evaluate:
    return lambda event: getattr(event._columns, name)[event._row]  # noqa: SLF001  # one module


_NAMES: dict[str, Evaluate] = {
    "body": lambda event: event.body,
    "json": lambda event: event.json,
    "size": lambda event: len(_column("bodies")(event)),
    "key": _column("partition_keys"),
    "seq": _column("sequence_numbers"),
    "offset": _column("offsets"),
    "time": lambda event: format_enqueued_time(_column("enqueued_ms")(event)),
    "partition": lambda event: event._partition,  # noqa: SLF001  # one module
    "properties": lambda event: event.properties,
    "system": lambda event: field_values(_column("message_properties")(event)),
    "content_type": lambda event: field_values(_column("message_properties")(event)).get(
        "content-type"
    ),
}
_CONSTANTS = {"true": True, "false": False, "null": None}  # as JSON has them
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matches": lambda text, pattern: isinstance(text, str) and re.search(pattern, text) is not None,
    "lower": lambda text: text.lower() if isinstance(text, str) else None,
    "len": lambda value: len(value) if hasattr(value, "__len__") else None,
    "number": lambda text: _to_number(text),
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
    ast.Is: lambda one, other: one is other,
    ast.IsNot: lambda one, other: one is not other,
}


def compile_filter(text: str) -> Callable[[FilteredEvent], bool]:
    """Raises typer.BadParameter."""
    if len(text) > _LENGTH_MAX:
        raise _syntax_error(f"it has {len(text)} characters, {_LENGTH_MAX} are allowed")
    try:
        tree = ast.parse(text.strip(), mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise _syntax_error(getattr(error, "msg", None) or str(error)) from None
    evaluate = _compile_node(tree.body, 0)
    return lambda event: bool(evaluate(event))


def _compile_node(node: ast.expr, depth: int) -> Evaluate:
    if depth > _DEPTH_MAX:
        raise _syntax_error(f"it is nested deeper than {_DEPTH_MAX}")
    make = _MAKERS.get(type(node))
    if make is None:
        raise _syntax_error(f"'{ast.unparse(node)}' is not possible here")
    return make(node, depth + 1)


def _constant(node: Any, depth: int) -> Evaluate:
    value = node.value
    return lambda event: value


def _compile_name(node: Any, depth: int) -> Evaluate:
    if node.id in _CONSTANTS:
        value = _CONSTANTS[node.id]
        return lambda event: value
    found = _NAMES.get(node.id)
    if found is None:
        raise _syntax_error(f"there is no '{node.id}'; there are {', '.join(_NAMES)}")
    return found


def _attribute(node: Any, depth: int) -> Evaluate:
    """`json.a.b` and `properties.a` are items, never attributes of a Python object."""
    inner, name = _compile_node(node.value, depth), node.attr
    return lambda event: _item(inner(event), name)


def _subscript(node: Any, depth: int) -> Evaluate:
    inner, index = _compile_node(node.value, depth), _compile_node(node.slice, depth)
    return lambda event: _item(inner(event), index(event))


def _collection(node: Any, depth: int) -> Evaluate:
    items = [_compile_node(each, depth) for each in node.elts]
    return lambda event: [each(event) for each in items]


def _compile_negation(node: Any, depth: int) -> Evaluate:
    inner = _compile_node(node.operand, depth)
    if isinstance(node.op, ast.Not):
        return lambda event: not inner(event)
    number = getattr(node.operand, "value", None)
    if isinstance(node.op, ast.USub) and isinstance(number, int | float):
        value = -number
        return lambda event: value
    raise _syntax_error(f"'{ast.unparse(node)}' is not possible here")


def _compile_boolean(node: Any, depth: int) -> Evaluate:
    parts = [_compile_node(each, depth) for each in node.values]
    if isinstance(node.op, ast.And):
        return lambda event: all(each(event) for each in parts)
    return lambda event: any(each(event) for each in parts)


def _compile_comparison(node: Any, depth: int) -> Evaluate:
    values = [_compile_node(each, depth) for each in (node.left, *node.comparators)]
    signs = [_COMPARISONS[type(each)] for each in node.ops]

    def evaluate(event: FilteredEvent) -> bool:
        left = values[0](event)
        for sign, other in zip(signs, values[1:], strict=True):
            right = other(event)
            try:
                if not sign(left, right):
                    return False
            except TypeError:
                return False
            left = right
        return True

    return evaluate


def _compile_call(node: Any, depth: int) -> Evaluate:
    function = _FUNCTIONS.get(getattr(node.func, "id", ""))
    if function is None or node.keywords:
        raise _syntax_error(f"'{ast.unparse(node)}': there are {', '.join(_FUNCTIONS)}")
    arguments = [_compile_node(each, depth) for each in node.args]
    wanted = function.__code__.co_argcount
    if len(arguments) != wanted:
        raise _syntax_error(f"'{ast.unparse(node)}' needs {wanted} arguments")
    _check_pattern(node)
    return lambda event: function(*(each(event) for each in arguments))


def _check_pattern(node: Any) -> None:
    if node.func.id == "matches":
        pattern = node.args[1]
        if not isinstance(pattern, ast.Constant) or not isinstance(pattern.value, str):
            raise _syntax_error("the pattern of matches() is a text")
        try:
            re.compile(pattern.value)
        except re.error as error:
            raise _syntax_error(f"{pattern.value!r} is no pattern: {error}") from None


def _item(value: Any, index: Any) -> Any:
    try:
        return value[index] if isinstance(value, dict | list) else None
    except (KeyError, IndexError, TypeError):
        return None


def _to_number(text: Any) -> float | None:
    try:
        return float(text)
    except (TypeError, ValueError):
        return None


_MAKERS: dict[type[ast.AST], Callable[[Any, int], Evaluate]] = {
    ast.Constant: _constant,
    ast.Name: _compile_name,
    ast.Attribute: _attribute,
    ast.Subscript: _subscript,
    ast.Tuple: _collection,
    ast.List: _collection,
    ast.Set: _collection,
    ast.UnaryOp: _compile_negation,
    ast.BoolOp: _compile_boolean,
    ast.Compare: _compile_comparison,
    ast.Call: _compile_call,
}


def _syntax_error(why: str) -> typer.BadParameter:
    return typer.BadParameter(f"The expression cannot be used: {why}.", param_hint="--filter")
