"""What is checked of blocks that are not run: that they can be parsed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.documents.page import Block

yaml: Any = import_module("yaml")  # ships no types
PENSTOCK = Path(sys.executable).parent / "penstock"
DEADLINE_S = 30.0
# TOML files that are no configuration of the service: of other programs, and the portal's users.
FOREIGN_TABLES = {"build-system", "project", "tool", "users"}
_NAMED_FILE = re.compile(r'(\w+_file\s*=\s*)"[^"]*"')
_CERTIFICATE_FILE = re.compile(r"^ *(?:certificate|key|ca)_file\s*=.*$", re.MULTILINE)
_NAMED_VARIABLE = re.compile(r'\w+_env\s*=\s*"([^"]*)"')


def find_syntax_error(block: Block) -> str | None:
    """None if the block is in order. A configuration of Penstock must also be valid."""
    if block.is_output:
        return None
    try:
        match block.language:
            case "python":
                compile(block.text, block.place, "exec", dont_inherit=True)
            case "sh":
                return _run(["bash", "-n"], block.text)
            case "json" if "skip" not in block.directives:
                return _check_settings(block, json.loads(block.text), ".json", "UserConfig")
            case "toml" if "skip" not in block.directives:
                return _check_settings(block, tomllib.loads(block.text), ".toml")
            case "yaml" if "skip" not in block.directives:
                list(yaml.safe_load_all(block.text))
    except (SyntaxError, ValueError, yaml.YAMLError) as error:
        return str(error)
    return None


def _check_settings(block: Block, content: object, ending: str, key: str = "") -> str | None:
    """`key` marks Penstock's files of this kind, else all but those of other programs are."""
    if not isinstance(content, dict):
        return None
    if key not in content if key else FOREIGN_TABLES & content.keys():
        return None
    with tempfile.TemporaryDirectory() as folder:
        # The files and variables with secrets that it names are not here: others take their place,
        # except certificates, which would have to be real.
        secret, file = Path(folder) / "secret", Path(folder) / f"block{ending}"
        secret.write_text("a-secret")
        text = _CERTIFICATE_FILE.sub("", block.text)
        file.write_text(_NAMED_FILE.sub(rf'\1"{secret}"', text))
        environ = {name: value for name, value in os.environ.items() if "PENSTOCK" not in name}
        environ |= dict.fromkeys(_NAMED_VARIABLE.findall(block.text), "a-secret")
        return _run([str(PENSTOCK), "config", "validate", str(file)], environ=environ)


def _run(
    command: list[str], stdin: str = "", environ: Mapping[str, str] | None = None
) -> str | None:
    """Its output if it fails."""
    done = subprocess.run(
        command,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
        env=environ,
    )
    return None if done.returncode == 0 else done.stderr + done.stdout
