"""Print a random sample of texts that people read: docstrings, help texts, log lines.

`python -m tools.sample_texts SEED`. A text that a newcomer does not understand without its code
is rewritten (CONTRIBUTING.md).
"""

from __future__ import annotations

import ast
import functools
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from penstock.cli.app import app
from penstock.cli.help import walk_commands

SOURCE = Path(__file__).resolve().parents[1] / "src" / "penstock"
DOCSTRINGS, HELP_TEXTS, LOG_LINES = 20, 10, 10
LOG_METHODS = {"debug", "info", "warning", "error", "exception", "critical"}

Text = tuple[str, str]  # where it is, and what it says


def docstrings() -> Iterator[Text]:
    for file, tree in _modules():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text:
                    yield f"{file}: {getattr(node, 'name', 'module')}", text


def log_lines() -> Iterator[Text]:
    for file, tree in _modules():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            logger = ast.unparse(node.func.value)
            if node.func.attr in LOG_METHODS and "log" in logger.lower() and node.args:
                first = node.args[0]
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield f"{file}:{node.lineno} {node.func.attr}", first.value


def help_texts() -> Iterator[Text]:
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="penstock")
    for path, command, below in walk_commands(root, context):
        if command.help:
            yield path, command.help
        for parameter in command.get_params(below):
            record = parameter.get_help_record(below)
            if record is not None and parameter.name != "help":
                yield f"{path} {record[0]}", record[1]


def _modules() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text())


@functools.cache
def all_texts() -> list[tuple[str, list[Text], int]]:
    """Title, texts and number of texts of each part of a sample."""
    parts = (
        ("Docstrings", docstrings(), DOCSTRINGS),
        ("Help texts", help_texts(), HELP_TEXTS),
        ("Log lines", log_lines(), LOG_LINES),
    )
    return [
        (title, sorted({text: where for where, text in texts}.items()), count)  # each text once
        for title, texts, count in parts
    ]


def sample(seed: int) -> str:
    chance = random.Random(seed)
    lines = []
    for title, texts, count in all_texts():
        lines.append(f"## {title}\n")
        for text, where in chance.sample(texts, count):
            indented = "\n    ".join(text.splitlines())
            lines.append(f"- {where}\n    {indented}\n")
    return "\n".join(lines)


if __name__ == "__main__":
    print(sample(int(sys.argv[1]) if len(sys.argv) > 1 else 1))
