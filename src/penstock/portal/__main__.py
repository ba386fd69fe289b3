"""`python -m penstock.portal`, as `penstock serve` starts it."""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.model.errors import PenstockError
from penstock.portal.server import serve, set_up_logs
from penstock.portal.settings import VARIABLE, from_environ


def main() -> int:
    set_up_logs()
    try:
        settings = from_environ(os.environ)
    except PenstockError as error:
        sys.stderr.write(f"ERROR {error}\n")
        return 2
    os.environ.pop(VARIABLE)  # it has a secret, which no child process needs
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
