"""Compiled twins of the kernels (design.md 5). Everything else of the build is in pyproject.toml.

Every extension is optional: without a C compiler, or without Cython, the pure twins serve.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

MODULES = {
    "penstock.amqp._scan": "src/penstock/amqp/_scan.pyx",
    "penstock.kernels._compiled": "src/penstock/kernels/_compiled.pyx",
}


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = os.environ.get("PENSTOCK_CFLAGS", "-O2").split()
    made: list[Extension] = cythonize(
        [
            Extension(name, [source], optional=True, extra_compile_args=flags)
            for name, source in MODULES.items()
        ],
        build_dir="build/cython",
        quiet=True,
    )
    return made


setup(ext_modules=extensions())
