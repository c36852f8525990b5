"""Pictures for PyTorch: a ``Loader`` of whole batches, and a map-style ``Dataset``.

Tensors share the memory of the arrays that the drive's programs filled: there is no copy, and no worker process.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch

from tapetum._tapetum import ImageSet, NativeLoader, Store
from tapetum._tapetum import Pipeline as _Pipeline
from tapetum.batches import Batch
from tapetum.batches import Loader as _Loader
from tapetum.batches import run as _run
from tapetum.typing import PipelineLike

if TYPE_CHECKING:

    class TensorBatch(Batch):
        """A ``tapetum.Batch`` whose arrays are tensors."""

        images: torch.Tensor  # type: ignore[assignment]
        labels: torch.Tensor  # type: ignore[assignment]
        items: torch.Tensor  # type: ignore[assignment]

        def __iter__(self) -> Iterator[torch.Tensor]: ...  # type: ignore[override]


class Loader(_Loader):
    """As ``tapetum.Loader``, with tensors. In place of a ``DataLoader`` and its workers: ``for images, labels in loader``. ``shuffle`` and
    ``drop_last`` are ``False`` unless they are given, as there.

    In a process group, rank and world size are those of the group unless they are given. ``pin_memory`` copies batches to pinned memory,
    for copies to a GPU that do not wait.
    """

    def __init__(
        self, images: ImageSet, pipeline: PipelineLike, batch_size: int | None = None, *, pin_memory: bool = False, **options: Any
    ) -> None:
        if "rank" not in options and "world_size" not in options:
            distributed = torch.distributed
            if distributed.is_available() and distributed.is_initialized():
                options.update(rank=distributed.get_rank(), world_size=distributed.get_world_size())
        super().__init__(images, pipeline, batch_size, **options)
        self.pin_memory = pin_memory and torch.cuda.is_available()

    if TYPE_CHECKING:

        def __iter__(self) -> Iterator[TensorBatch]: ...  # type: ignore[override]

    def _take(self, native: NativeLoader, shape: tuple[int, int, int], kind: str, name: str) -> Batch:
        batch = super()._take(native, shape, kind, name)
        for array in ("images", "labels", "items"):
            tensor = torch.from_numpy(getattr(batch, array))
            setattr(batch, array, tensor.pin_memory() if self.pin_memory else tensor)
        return batch


class Dataset(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """A map-style data set: one picture, a tensor, and its label, an int, a call. A ``Loader`` is faster; this is for code that wants a
    ``Dataset``. Errors are those of ``tapetum.run``.

    Workers of a ``DataLoader`` must be spawned, and the store be opened with ``read_only=True``: each opens it anew.
    """

    def __init__(self, store: Store, pipeline: PipelineLike, keyspace: str = "images", *, seed: int = 0) -> None:
        self.store, self.pipeline, self.name, self.seed = store, _Pipeline(pipeline).batch(1), keyspace, seed
        self.epoch = 0
        self._images = store.images(keyspace)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_images"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._images = self.store.images(self.name)

    def set_epoch(self, epoch: int) -> None:
        """The epoch that decides what is random from now on. Workers that were started before keep theirs."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
        images = self._images
        key, label = images.key(item), images.label(item)
        picture = _run(self.pipeline, images.keyspace, key, seed=self.seed, epoch=self.epoch, item=item)
        return torch.from_numpy(picture), label

    def __getitems__(self, items: Iterable[int]) -> list[tuple[torch.Tensor, int]]:
        return [self[item] for item in items]
