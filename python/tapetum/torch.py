"""Pictures for PyTorch: a ``Loader`` of whole batches, and a map-style ``Dataset``.

Tensors share the memory of the arrays that the drive's programs filled: there is no copy, and no worker process.
"""

import torch

from tapetum._tapetum import Pipeline as _Pipeline
from tapetum.batches import Loader as _Loader
from tapetum.batches import run as _run


class Loader(_Loader):
    """As ``tapetum.Loader``, with tensors. In place of a ``DataLoader`` and its workers: ``for images, labels in loader``. ``shuffle`` and
    ``drop_last`` are ``False`` unless they are given, as there.

    In a process group, rank and world size are those of the group unless they are given. ``pin_memory`` copies batches to pinned memory,
    for copies to a GPU that do not wait.
    """

    def __init__(self, images, pipeline, batch_size=None, *, pin_memory=False, **options):
        if "rank" not in options and "world_size" not in options:
            distributed = torch.distributed
            if distributed.is_available() and distributed.is_initialized():
                options.update(rank=distributed.get_rank(), world_size=distributed.get_world_size())
        super().__init__(images, pipeline, batch_size, **options)
        self.pin_memory = pin_memory and torch.cuda.is_available()

    def _take(self, native, shape, kind, name):
        batch = super()._take(native, shape, kind, name)
        for name in ("images", "labels", "items"):
            tensor = torch.from_numpy(getattr(batch, name))
            setattr(batch, name, tensor.pin_memory() if self.pin_memory else tensor)
        return batch


class Dataset(torch.utils.data.Dataset):
    """A map-style data set: one picture and its label a call. A ``Loader`` is faster; this is for code that wants a ``Dataset``.

    Workers of a ``DataLoader`` must be spawned, and the store be opened with ``read_only=True``: each opens it anew.
    """

    def __init__(self, store, pipeline, keyspace="images", *, seed=0):
        self.store, self.pipeline, self.name, self.seed = store, _Pipeline(pipeline).batch(1), keyspace, seed
        self.epoch = 0
        self._images = store.images(keyspace)

    def __getstate__(self):
        return {name: value for name, value in self.__dict__.items() if name != "_images"}

    def __setstate__(self, state):
        self.__dict__.update(state)
        self._images = self.store.images(self.name)

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return len(self._images)

    def __getitem__(self, item):
        images = self._images
        key, label = images.key(item), images.label(item)
        picture = _run(self.pipeline, images.keyspace, key, seed=self.seed, epoch=self.epoch, item=item)
        return torch.from_numpy(picture), label

    def __getitems__(self, items):
        return [self[item] for item in items]
