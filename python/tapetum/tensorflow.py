"""Pictures for TensorFlow: a ``tf.data.Dataset`` of whole batches.

Threads of the native half make the batches ahead, so nothing but a copy into TensorFlow's memory is left to do.
"""

import numpy
import tensorflow

from tapetum.batches import Loader as _Loader


def dataset(images, pipeline, batch_size=None, **options):
    """Batches ``(images, labels)`` as ``tapetum.Loader`` gives them, of which it takes the options; see ``of_loader``."""
    return of_loader(_Loader(images, pipeline, batch_size, **options))


def of_loader(loader):
    """A loader as a data set. One pass over it is an epoch, and each pass goes on to the next, as with the loader itself."""
    # Batches that fail are left out, and those at the end may be shorter.
    is_whole = loader.on_error != "skip"
    is_even = loader.drop_last or len(loader.images) % (loader.batch_size * loader.world_size) == 0
    rows = loader.batch_size if is_whole and is_even else None
    shape, kind = loader.pipeline.batch_shape[1:]
    signature = (
        tensorflow.TensorSpec((rows, *shape), tensorflow.as_dtype(numpy.dtype(kind))),
        tensorflow.TensorSpec((rows,), tensorflow.int64),
    )

    def one_pass():
        for batch in loader:
            yield batch.images, batch.labels

    return tensorflow.data.Dataset.from_generator(one_pass, output_signature=signature)
