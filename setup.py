"""Build the compiled kernels. Everything else of the build is in pyproject.toml.

Every extension is optional: without a C compiler or Cython, the pure-Python implementations run.
"""

from __future__ import annotations

import os

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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
# Debugging information would contain the directory of the build.
FLAGS = os.environ.get("PENSTOCK_CFLAGS", "-O2 -g0").split()


class BuildKernels(build_ext):
    """Runs Cython only when something is built, then a compiler on every processor. The first
    failure ends the attempt: one missing compiler or header is one warning."""

    _failure = ""

    def run(self) -> None:
        super().run()
        if self._failure:
            self.warn(
                f"the compiled kernels were not built ({self._failure}): the pure-Python "
                "implementations run, slower. Install a C compiler and the headers of Python, then "
                "install Penstock again."
            )

    def build_extensions(self) -> None:
        try:
            from Cython.Build import cythonize

            options = {"build_dir": "build/cython", "include_path": ["src"], "quiet": True}
            for extension, compiled in zip(
                self.extensions, cythonize(self.extensions, **options), strict=True
            ):
                extension.sources = compiled.sources
        except Exception as error:  # noqa: BLE001 - no failure of a compiler ends an installation
            self._failure = _first_line(error)
            return
        self.parallel = os.cpu_count()
        super().build_extensions()

    def build_extension(self, extension: Extension) -> None:
        if self._failure:
            return
        try:
            super().build_extension(extension)
        except Exception as error:  # noqa: BLE001 - see above
            self._failure = _first_line(error)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0] or type(error).__name__


setup(
    cmdclass={"build_ext": BuildKernels},
    ext_modules=[
        Extension(
            module,
            [f"src/{module.replace('.', '/')}.pyx"],
            depends=SHARED,
            optional=True,
            extra_compile_args=FLAGS,
        )
        for module in MODULES
    ],
)
