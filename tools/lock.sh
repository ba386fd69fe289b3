#!/bin/sh
# `make lock`: requirements.lock from pyproject.toml. One file for every platform and for
# Python 3.11 onwards, every version pinned, every file by its hash, and no address of any index.
# Versions already locked are kept where they fit; UPGRADE=1 takes the newest.
cd "$(dirname "$0")/.." || exit 1
lock=requirements.lock
uv=${UV:-.venv/bin/uv}
header="# The environment of Penstock's developers, made by 'make lock' from pyproject.toml."

# compile FLAGS...: resolves pyproject.toml for every platform.
compile() {
    "$uv" pip compile pyproject.toml --universal --python-version 3.11 --no-annotate --no-header \
        --no-emit-index-url --no-emit-find-links --quiet "$@"
}

trap 'rm -f "$lock.new"' EXIT
touch "$lock" && cp "$lock" "$lock.new" || exit 1
if compile --all-extras --generate-hashes ${UPGRADE:+--upgrade} --output-file "$lock.new" &&
    serve=$(compile --extra spark --extra capture --constraint "$lock.new"); then
    # The names alone, for tools/setup.py: versions and hashes are those of the entries.
    names=$(echo "$serve" | sed 's/[=; ].*//' | sort -u | tr '\n' ' ')
    { echo "$header" && echo "# 'make serve' installs: ${names% }" && cat "$lock.new"; } >"$lock"
else
    echo "requirements.lock is as it was: no set of versions fits, or the index is out of reach." >&2
    exit 1
fi
