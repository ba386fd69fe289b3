"""Compiled twins of the kernels (ARCHITECTURE.md). The rest of the build is in pyproject.toml.

Every extension is optional: without a C compiler, or without Cython, the pure twins serve.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

MODULES = {
    "penstock.amqp._transfer_scanner": "src/penstock/amqp/_transfer_scanner.pyx",
    "penstock.kernels._avro_records": "src/penstock/kernels/_avro_records.pyx",
    "penstock.kernels._publications": "src/penstock/kernels/_publications.pyx",
    "penstock.kernels._arrow_columns": "src/penstock/kernels/_arrow_columns.pyx",
    "penstock.kernels._messages": "src/penstock/kernels/_messages.pyx",
    "penstock.kernels._receive_buffer": "src/penstock/kernels/_receive_buffer.pyx",
}
SHARED = ["src/penstock/kernels/_message.pxd"]


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
