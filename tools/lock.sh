#!/bin/sh
# `make lock`: requirements.lock from pyproject.toml. One file for every platform and for
# Python 3.11 onwards, every version pinned, every file by its hash, and no address of any index.
# Versions already locked are kept where they fit; UPGRADE=1 takes the newest.
cd "$(dirname "$0")/.." || exit 1
lock=requirements.lock
uv=${UV:-.venv/bin/uv}
header="# The environment of Penstock's developers, made by 'make lock' from pyproject.toml."

touch "$lock" && cp "$lock" "$lock.new" || exit 1
if "$uv" pip compile pyproject.toml --all-extras --universal --python-version 3.11 \
    --generate-hashes --no-annotate --no-header --no-emit-index-url --no-emit-find-links \
    --quiet ${UPGRADE:+--upgrade} --output-file "$lock.new"; then
    { echo "$header" && cat "$lock.new"; } >"$lock"
    rm "$lock.new"
else
    rm "$lock.new"
    echo "requirements.lock is as it was: no set of versions fits, or the index is out of reach." >&2
    exit 1
fi
