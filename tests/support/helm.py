"""Renders a Helm chart without Helm: the subset of its templates that deploy/helm uses.

Anything else raises, so that a template that this module cannot render is noticed. Where Helm is
installed, a test compares the two.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

_ACTION = re.compile(r"\{\{(-)?\s*(.*?)\s*(-)?\}\}", re.DOTALL)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|:=|[().|,]?[$\w]*(?:\.[\w]+)*|\S')


class Block(NamedTuple):
    """`if`, `with`, `range` or `define`, with what is inside and what follows its `else`."""

    word: str
    expression: str
    body: list[Any]
    otherwise: list[Any]


def merge(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """As Helm does: tables are merged, everything else is replaced."""
    merged = dict(values)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = merge(merged[key], value) if both else value
    return merged


class Chart:
    def __init__(self, folder: Path, *, release: str = "test", namespace: str = "default") -> None:
        self.folder = folder
        self.metadata: dict[str, Any] = yaml.safe_load((folder / "Chart.yaml").read_text())
        self.values: dict[str, Any] = yaml.safe_load((folder / "values.yaml").read_text())
        self.schema: dict[str, Any] = json.loads((folder / "values.schema.json").read_text())
        self._release = {"Name": release, "Namespace": namespace, "Service": "Helm"}
        self._defined: dict[str, list[Any]] = {}
        self._render_file("_helpers.tpl", {})

    def render(self, **changes: Any) -> list[dict[str, Any]]:
        """The manifests, with these values changed."""
        documents: list[dict[str, Any]] = []
        for file in sorted((self.folder / "templates").glob("*.yaml")):
            text = self._render_file(file.name, changes)
            documents += [each for each in yaml.safe_load_all(text) if each]
        return documents

    def notes(self, **changes: Any) -> str:
        return self._render_file("NOTES.txt", changes)

    def _render_file(self, name: str, changes: Mapping[str, Any]) -> str:
        chart = {key[0].upper() + key[1:]: value for key, value in self.metadata.items()}
        values = merge(self.values, changes)
        root = {"Values": values, "Chart": chart, "Release": self._release}
        nodes = _parse((self.folder / "templates" / name).read_text())
        return _Renderer(self._defined).render(nodes, root, {"$": root})


def _parse(text: str) -> list[Any]:
    """Texts, expressions in a tuple, and blocks."""
    position, top = 0, Block("", "", [], [])
    stack, current = [top], top.body
    trims = False
    for found in _ACTION.finditer(text):
        before = text[position : found.start()]
        before = before.lstrip() if trims else before
        current.append(before.rstrip() if found[1] else before)
        position, trims = found.end(), bool(found[3])
        word, _, rest = found[2].partition(" ")
        if word.startswith("/*"):
            continue
        if word in ("if", "with", "range", "define"):
            block = Block(word, rest, [], [])
            current.append(block)
            stack.append(block)
            current = block.body
        elif word == "else":
            assert not rest, "else if is not rendered here"
            current = stack[-1].otherwise
        elif word == "end":
            stack.pop()
            current = stack[-1].otherwise if stack[-1].otherwise else stack[-1].body
        else:
            current.append((found[2],))
    assert len(stack) == 1, "a block without its end"
    rest = text[position:]
    current.append(rest.lstrip() if trims else rest)
    return top.body


class _Renderer:
    def __init__(self, defined: dict[str, list[Any]]) -> None:
        self._defined = defined

    def render(self, nodes: Sequence[Any], dot: Any, variables: dict[str, Any]) -> str:
        return "".join(self._node(node, dot, variables) for node in nodes)

    def _node(self, node: Any, dot: Any, variables: dict[str, Any]) -> str:
        if isinstance(node, str):
            return node
        if isinstance(node, Block):
            return self._block(node, dot, variables)
        name, assigned, expression = node[0].partition(":=")
        if assigned:
            variables[name.strip()] = self._value(expression, dot, variables)
            return ""
        return _text(self._value(node[0], dot, variables))

    def _block(self, block: Block, dot: Any, variables: dict[str, Any]) -> str:
        if block.word == "define":
            self._defined[json.loads(block.expression)] = block.body
            return ""
        names, assigned, expression = block.expression.rpartition(":=")
        value = self._value(expression, dot, variables)
        if not value:
            return self.render(block.otherwise, dot, dict(variables))
        if block.word == "if":
            return self.render(block.body, dot, dict(variables))
        if block.word == "with":
            return self.render(block.body, value, dict(variables))
        items = sorted(value.items()) if isinstance(value, Mapping) else list(enumerate(value))
        bound = [name.strip() for name in names.split(",")] if assigned else []
        return "".join(
            self.render(block.body, item, variables | dict(zip(bound, (key, item), strict=False)))
            for key, item in items
        )

    def _value(self, expression: str, dot: Any, variables: dict[str, Any]) -> Any:
        tokens = [token for token in _TOKEN.findall(expression) if token.strip()]
        value, rest = self._pipeline(_split_signs(tokens), dot, variables)
        assert not rest, f"cannot render: {expression}"
        return value

    def _pipeline(
        self, tokens: list[str], dot: Any, variables: dict[str, Any]
    ) -> tuple[Any, list[str]]:
        value, tokens = self._command(tokens, dot, variables, ())
        while tokens and tokens[0] == "|":
            value, tokens = self._command(tokens[1:], dot, variables, (value,))
        return value, tokens

    def _command(
        self, tokens: list[str], dot: Any, variables: dict[str, Any], piped: tuple[Any, ...]
    ) -> tuple[Any, list[str]]:
        function = tokens[0] if re.fullmatch(r"[A-Za-z]\w*", tokens[0]) else None
        tokens = tokens[1:] if function else tokens
        values: list[Any] = []
        while tokens and tokens[0] not in ("|", ")"):
            value, tokens = self._operand(tokens, dot, variables)
            values.append(value)
        if function is None:
            assert len(values) == 1 and not piped
            return values[0], tokens
        if function == "include":
            name, scope = values
            return self.render(self._defined[name], scope, {"$": scope}), tokens
        return _FUNCTIONS[function](*values, *piped), tokens

    def _operand(
        self, tokens: list[str], dot: Any, variables: dict[str, Any]
    ) -> tuple[Any, list[str]]:
        token, *rest = tokens
        if token == "(":
            value, rest = self._pipeline(rest, dot, variables)
            assert rest[0] == ")"
            return value, rest[1:]
        if token.startswith('"') or token.isdigit():
            return json.loads(token), rest
        first, *path = token.split(".")
        value = variables[first] if first else dot
        for key in path:
            value = value.get(key) if key else value
        return value, rest


def _split_signs(tokens: list[str]) -> list[str]:
    """`(include` is two tokens."""
    found: list[str] = []
    for token in tokens:
        if len(token) > 1 and token[0] in "()|,":
            found += [token[0], token[1:]]
        else:
            found.append(token)
    return found


def _text(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _indent(count: int, text: str) -> str:
    return "\n".join(" " * count + line for line in text.splitlines())


def _printf(form: str, *values: Any) -> str:
    return form.replace("%d", "%s") % values


def _to_yaml(value: Any) -> str:
    text: str = yaml.safe_dump(value, default_flow_style=False)
    return text.removesuffix("...\n").rstrip("\n")


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "and": lambda *values: next((each for each in values if not each), values[-1]),
    "default": lambda fallback, value=None: value or fallback,
    "nindent": lambda count, text: "\n" + _indent(count, text),
    "not": lambda value: not value,
    "or": lambda *values: next((each for each in values if each), values[-1]),
    "printf": _printf,
    "quote": lambda value: json.dumps(_text(value)),
    "sha256sum": lambda text: hashlib.sha256(text.encode()).hexdigest(),
    "toYaml": _to_yaml,
    "trimSuffix": lambda suffix, text: text.removesuffix(suffix),
    "trunc": lambda count, text: text[:count],
}
