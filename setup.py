"""Build the compiled kernels. Everything else of the build is in pyproject.toml.

Every extension is optional: without a C compiler or Cython, the pure-Python implementations run.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup

MODULES = (
    "penstock.amqp._transfer_scanner",
    "penstock.kernels._arrow_columns",
    "penstock.kernels._avro_records",
    "penstock.kernels._columns",
    "penstock.kernels._messages",
    "penstock.kernels._producer_batch",
    "penstock.kernels._publications",
    "penstock.kernels._receive_buffer",
    "penstock.kernels._transfer_frames",
)
SHARED = ["src/penstock/kernels/_buffer.pxd", "src/penstock/kernels/_message.pxd"]


def extensions() -> list[Extension]:
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    flags = os.environ.get("PENSTOCK_CFLAGS", "-O2").split()
    modules: list[Extension] = cythonize(
        [
            Extension(
                module,
                [f"src/{module.replace('.', '/')}.pyx"],
                depends=SHARED,
                optional=True,
                extra_compile_args=flags,
            )
            for module in MODULES
        ],
        build_dir="build/cython",
        include_path=["src"],
        quiet=True,
    )
    return modules


setup(ext_modules=extensions())
