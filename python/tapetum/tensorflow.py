"""Pictures for TensorFlow: a ``tf.data.Dataset`` of whole batches, and a file system, ``tapetum://``.

Threads of the native half make the batches ahead, so nothing but a copy into TensorFlow's memory is left to do.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy
import tensorflow

from tapetum import _tapetum
from tapetum._tapetum import ImageSet, Store
from tapetum.batches import Loader as _Loader
from tapetum.typing import PipelineLike

# TensorFlow takes a scheme once.
_registered = False


def mount(store: Store, name: str) -> None:
    """Shows a store to TensorFlow's files: an item is ``tapetum://NAME/KEYSPACE/KEY``.

    What a pipeline makes of it is ``tapetum://NAME/KEYSPACE/KEY?pipeline=jpeg_decode | resize 224x224``, as samples without a shape; behind the
    pipeline may stand ``&seed=``, ``&epoch=`` and ``&item=``. Files that are written are items, of 16 MiB at most.
    """
    global _registered
    if "/" in name or "?" in name or not name:
        raise ValueError(f"{name!r} is no name to mount as: leave out / and ?")
    _tapetum.mount(store, name)
    if not _registered:
        tensorflow.experimental.register_filesystem_plugin(_tapetum.__file__)
        _registered = True


def unmount(name: str) -> bool:
    """Takes the name away; whether there was one."""
    return _tapetum.unmount(name)


def dataset(images: ImageSet, pipeline: PipelineLike, batch_size: int | None = None, **options: Any) -> Any:
    """Batches ``(images, labels)`` as ``tapetum.Loader`` gives them, of which it takes the options; see ``of_loader``."""
    return of_loader(_Loader(images, pipeline, batch_size, **options))


def of_loader(loader: _Loader) -> Any:
    """A loader as a data set. One pass over it is an epoch, and each pass goes on to the next, as with the loader itself. TensorFlow knows
    how many rows each batch has where the loader drops a shorter last one (``drop_last=True``), or the set has none."""
    # Batches that fail are left out, and those at the end may be shorter.
    is_whole = loader.on_error != "skip"
    is_even = loader.drop_last or len(loader.images) % (loader.batch_size * loader.world_size) == 0
    rows = loader.batch_size if is_whole and is_even else None
    shape, kind = loader.batch_shape
    signature = (
        tensorflow.TensorSpec((rows, *shape), tensorflow.as_dtype(numpy.dtype(kind))),
        tensorflow.TensorSpec((rows,), tensorflow.int64),
    )

    def one_pass() -> Iterator[tuple[Any, Any]]:
        for batch in loader:
            yield batch.images, batch.labels

    return tensorflow.data.Dataset.from_generator(one_pass, output_signature=signature)
