#!/bin/sh
# `make asan`: the compiled kernels with AddressSanitizer, run over the kernels' whole test corpus.
# The sanitized build lies in .venv/asan and is used by this run alone. More cases:
#   make asan ARGS="--full faults"
cd "$(dirname "$0")/.." || exit 1
library=$(${CC:-gcc} -print-file-name=libasan.so 2>/dev/null)
if [ ! -e "$library" ]; then
    echo "make asan skipped: no C compiler with AddressSanitizer on this machine"
    exit 0
fi
place=.venv/asan
python=$PWD/.venv/bin/python
rm -rf "$place" && mkdir -p "$place" || exit 1
cp -r src setup.py pyproject.toml README.md LICENSE "$place" && find "$place" -name '*.so' -delete
(
    cd "$place" &&
        PENSTOCK_CFLAGS="-O1 -g -fsanitize=address -fno-omit-frame-pointer" \
            "$python" setup.py --quiet build_ext --inplace
) || exit 1
[ -n "$(find "$place" -name '_arrow_columns*.so')" ] || { echo "make asan: nothing was built" >&2; exit 1; }
# CPython keeps what it allocated until its end: leaks are not what is looked for.
LD_PRELOAD=$library ASAN_OPTIONS=detect_leaks=0:abort_on_error=1 \
    PYTHONMALLOC=malloc PYTHONPATH=$place/src PENSTOCK_EXPECT_KERNEL=compiled \
    "$python" -m pytest -q -p no:cacheprovider tests/unit/kernels tests/contract/test_kernels*.py \
    -k "not milliseconds" "$@"  # a sanitizer is slow
