"""What the package has where its native module is: the embedded store, and pictures."""

import atexit
import weakref

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


def open(path, **options):
    """Opens a store: as ``Store.open``, but it is closed at the end of the interpreter if nobody has closed it before."""
    store = Store.open(path, **options)
    _opened.add(store)
    return store


def _reopen(path, memory, units, weights):
    return open(path, memory=memory, units=units, weights=weights, read_only=True)


# A store that is closed opens at once.
_opened = weakref.WeakSet()


@atexit.register
def _close_all():
    for store in list(_opened):
        try:
            store.close()
        except Error:
            # Of another process, or failed: it recovers when it is opened.
            pass
