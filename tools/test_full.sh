#!/bin/sh
# `make test-full ARGS="PART [--long]"`: the long tests of one part, one test at a time.
cd "$(dirname "$0")/.." || exit 1

case ${1:-} in
    clients | spark | kafka | cluster | faults | documents) ;;
    *)
        echo "usage: make test-full ARGS=\"clients|spark|kafka|cluster|faults|documents [--long]\"" >&2
        exit 2
        ;;
esac
part=$1
shift
exec .venv/bin/python -m pytest -q --full "$part" "$@"
