"""`python -m penstock.portal`, as `penstock serve` starts it."""

from __future__ import annotations

import asyncio
import os
import sys

from penstock.model.errors import PenstockError
from penstock.portal.app import serve, set_up_logs
from penstock.portal.settings import from_environ


def main() -> int:
    set_up_logs()
    try:
        settings = from_environ(os.environ)
    except PenstockError as error:
        sys.stderr.write(f"ERROR {error}\n")
        return 2
    # Not for whatever this process might start.
    os.environ.pop("PENSTOCK_PORTAL_SECRET", None)
    asyncio.run(serve(settings))
    return 0


if __name__ == "__main__":
    sys.exit(main())
