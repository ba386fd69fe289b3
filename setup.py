"""Compiled twins of the kernels (design.md 5). Everything else of the build is in pyproject.toml.

Every extension is optional: without a C compiler, or without Cython, the pure twins serve.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

MODULES = {
    "penstock.amqp._scan": "src/penstock/amqp/_scan.pyx",
    "penstock.kernels._avro": "src/penstock/kernels/_avro.pyx",
    "penstock.kernels._compiled": "src/penstock/kernels/_compiled.pyx",
    "penstock.kernels._gather": "src/penstock/kernels/_gather.pyx",
    "penstock.kernels._messages": "src/penstock/kernels/_messages.pyx",
    "penstock.kernels._intake": "src/penstock/kernels/_intake.pyx",
}
SHARED = ["src/penstock/kernels/_event.pxd"]


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = os.environ.get("PENSTOCK_CFLAGS", "-O2").split()
    made: list[Extension] = cythonize(
        [
            Extension(name, [source], depends=SHARED, optional=True, extra_compile_args=flags)
            for name, source in MODULES.items()
        ],
        build_dir="build/cython",
        include_path=["src"],
        quiet=True,
    )
    return made


setup(ext_modules=extensions())
