"""Tapetum: an embedded key-value store that computes beside its data, and image pipelines that feed training.

>>> import tapetum
>>> with tapetum.Store.open("data") as store:
...     store.put("greeting", b"hello")

``tapetum.connect("grpc://127.0.0.1:8815")`` is a store that a server serves: the package does that without its native module too.
``tapetum.torch`` has a loader for PyTorch, ``tapetum.tensorflow`` a data set for TensorFlow, ``tapetum.polars`` a lazy frame of a keyspace.
"""

from typing import TYPE_CHECKING, NoReturn

from tapetum.errors import HAS_NATIVE, ClosedError, DeadlineError, Error, PipelineError, QueryError
from tapetum.remote import connect

if TYPE_CHECKING or HAS_NATIVE:
    from tapetum.embedded import (
        Batch,
        Freeze,
        FrozenKeyspace,
        ImageSet,
        Items,
        Keyspace,
        Loader,
        Pipeline,
        Rows,
        Samples,
        Store,
        __version__,
        _reopen,
        apply,
        open,
        run,
    )

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
        "connect",
        "open",
        "run",
    ]
else:
    from tapetum.absent import __version__, open, refuse

    def __getattr__(name: str) -> NoReturn:
        refuse(name)

    __all__ = ["ClosedError", "DeadlineError", "Error", "PipelineError", "QueryError", "__version__", "connect", "open"]
