"""The extras of the distribution, and the error for a package that one of them would install."""

from __future__ import annotations

from importlib.util import find_spec

from penstock.model.errors import ConfigurationError

_PACKAGES = {
    "spark": ("pyspark", "pyarrow"),
    "connect": ("pyspark", "pyarrow", "grpc", "grpc_status", "pandas", "zstandard"),
    "capture": ("pyspark", "pyarrow", "fsspec", "adlfs", "isal"),
    "s3": ("s3fs",),
}


class MissingPackage(ConfigurationError, ModuleNotFoundError):
    """A package of an extra is not installed; the message has the command that installs it."""


def require_extra(extra: str) -> None:
    """Raises MissingPackage unless the packages of the extra are installed."""
    if missing := [name for name in _PACKAGES[extra] if find_spec(name) is None]:
        raise MissingPackage(
            f"Not installed: {', '.join(missing)}. Run: pip install 'penstock-eventhubs[{extra}]'"
        )
