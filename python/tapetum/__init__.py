"""Tapetum: an embedded key-value store that computes beside its data, and image pipelines that feed training.

>>> import tapetum
>>> with tapetum.Store.open("data") as store:
...     store.put("greeting", b"hello")

``tapetum.torch`` has a loader for PyTorch, ``tapetum.tensorflow`` a data set for TensorFlow.
"""

import atexit
import weakref

from tapetum._tapetum import (
    ClosedError,
    DeadlineError,
    Error,
    Freeze,
    FrozenKeyspace,
    ImageSet,
    Items,
    Keyspace,
    Pipeline,
    PipelineError,
    QueryError,
    Rows,
    Samples,
    __version__,
)
from tapetum._tapetum import Store as _NativeStore
from tapetum.batches import Batch, Loader, apply, run

__all__ = [
    "Batch",
    "ClosedError",
    "DeadlineError",
    "Error",
    "Freeze",
    "FrozenKeyspace",
    "ImageSet",
    "Items",
    "Keyspace",
    "Loader",
    "Pipeline",
    "PipelineError",
    "QueryError",
    "Rows",
    "Samples",
    "Store",
    "__version__",
    "apply",
    "open",
    "run",
]

Store = _NativeStore


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
