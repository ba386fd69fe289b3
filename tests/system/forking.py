"""Runs `penstock` again and again: reads a job per line from stdin, answers its exit code.

Python and its imports are most of what a command costs, and the tests run hundreds: so this process
has them all loaded and forks one for each, with files for its three streams and the job's
environment. tests/system/test_cli_shell.py starts `penstock` itself, with pipes and a terminal.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import sys
import traceback

from penstock.cli import main
from penstock.cli.app import COMMANDS, app
from penstock.cli.command_tree import load

LOADED = (
    "penstock.client.buffered_producer",
    "penstock.client.consumer",
    "penstock.management.client",
    "penstock.service.wiring",
    "typer._adapters",
    "uvloop",
)


def run(job: dict[str, object]) -> int:
    """In the child: become the command."""
    words, files, environ = job["words"], job["files"], job["env"]
    assert isinstance(words, list) and isinstance(files, list) and isinstance(environ, dict)
    os.chdir(str(job["cwd"]))
    os.environ.clear()
    os.environ.update(environ)
    for number, path in enumerate(files):
        os.dup2(os.open(path, os.O_RDONLY if number == 0 else os.O_WRONLY), number)
    sys.stdin, sys.stdout, sys.stderr = (open(n, mode) for n, mode in enumerate("rww"))  # noqa: PTH123, SIM115
    sys.argv = ["penstock", *words]
    try:
        main()
    except SystemExit as ended:
        return int(ended.code or 0)
    except BaseException:  # noqa: BLE001  # the test shows it
        traceback.print_exc()
        return 70
    return 0


def loop() -> None:
    for entry in COMMANDS:
        with contextlib.suppress(ImportError):  # tests/unit/cli looks at each
            load(entry)
    for module in LOADED:
        with contextlib.suppress(ImportError):
            importlib.import_module(module)
    with contextlib.redirect_stdout(io.StringIO()):
        app(["config", "schema"], standalone_mode=False)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            code = run(json.loads(line))
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    loop()
