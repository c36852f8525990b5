"""What the package has where its native module is: the embedded store, and pictures."""

from __future__ import annotations

import atexit
import weakref
from os import PathLike
from typing import Any

from tapetum._tapetum import (
    Error,
    Freeze,
    FrozenKeyspace,
    ImageSet,
    Items,
    Keyspace,
    Pipeline,
    Rows,
    Samples,
    Store,
    __version__,
)
from tapetum.batches import Batch, Loader, apply, run

__all__ = [
    "Batch",
    "Freeze",
    "FrozenKeyspace",
    "ImageSet",
    "Items",
    "Keyspace",
    "Loader",
    "Pipeline",
    "Rows",
    "Samples",
    "Store",
    "__version__",
    "apply",
    "open",
    "run",
]


def open(path: str | PathLike[str], **options: Any) -> Store:
    """Opens a store: as ``Store.open``, whose arguments it takes, but it is closed at the end of the interpreter if nobody has closed it
    before.

    Raises ``Error`` if there is no store and ``create=False``, if it is open elsewhere, or if its size does not fit; ``ValueError`` for an argument.
    """
    store = Store.open(path, **options)
    _opened.add(store)
    return store


def _reopen(path: str, memory: int | None, units: int, weights: dict[str, int]) -> Store:
    return open(path, memory=memory, units=units, weights=weights, read_only=True)


# A store that is closed opens at once.
_opened: weakref.WeakSet[Store] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for store in list(_opened):
        try:
            store.close()
        except Error:
            # Of another process, or failed: it recovers when it is opened.
            pass
