"""What the package says where it has no native module."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from typing import Any, NoReturn

from tapetum.errors import Error

_TOLD = (
    "this package has no native module: it connects to served stores, with tapetum.connect(address). "
    "To open a store in this process, install the package from its repository, with Rust: pip install ./python"
)

_NATIVE = frozenset(
    ("Batch", "Freeze", "FrozenKeyspace", "ImageSet", "Items", "Keyspace", "Loader", "Pipeline", "Rows", "Samples", "Store", "apply", "run")
)

try:
    __version__ = version("tapetum")
except PackageNotFoundError:
    # From a clone, without an installation.
    __version__ = "unknown"


def open(path: object, **options: Any) -> NoReturn:
    """Raises an ``Error``: stores are opened by the native module."""
    raise Error(_TOLD)


def refuse(name: str) -> NoReturn:
    """Raises an ``AttributeError`` for a name that the package lacks."""
    if name in _NATIVE:
        raise AttributeError(f"tapetum.{name}: {_TOLD}")
    raise AttributeError(f"module 'tapetum' has no attribute {name!r}")
