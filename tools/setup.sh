#!/bin/sh
# `tools/setup.sh [LEVEL]`: find a Python that is new enough and hand over to setup.py.
# The environment's own Python comes first: when nothing changed, it answers fastest.
cd "$(dirname "$0")/.." || exit 1

for python in .venv/bin/python python3.13 python3.12 python3.11 python3 python3.14; do
    # A name on the PATH may be a stub that runs nothing, so each candidate is asked to run.
    if "$python" -I -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        exec "$python" -I tools/setup.py "$@"
    fi
done
echo "Penstock needs Python 3.11 or newer, and no python3 on the PATH is: install one, then run the same command again." >&2
exit 1
