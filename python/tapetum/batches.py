"""Batches of pictures as numpy arrays.

A loader decides which pictures a batch has; threads of the native half have the drive make them, some batches ahead. What a picture
becomes depends on seed, epoch and its place in the set alone, so a training that resumes sees the same pixels.
"""

from __future__ import annotations

import numbers
import operator
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

import numpy
from numpy.typing import NDArray

from tapetum._tapetum import DeadlineError, Error, ImageSet, Keyspace, NativeLoader, Pipeline, PipelineError, Samples, byte_size, epoch_order
from tapetum.held import HeldBatches
from tapetum.typing import ByteSize, Key, OnError, PipelineLike

# How long one wait for a batch is: Ctrl-C is seen in between.
_WAIT_S = 0.2
_ON_ERROR = ("raise", "skip", "fill")
_SEED_MAX = 2**64 - 1
# It has a next one.
_EPOCH_MAX = _SEED_MAX - 1
_THREADS_MAX = 64
_BATCH_MAX = 65_536


def _whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An argument as an int, or an error that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: give a whole number") from None
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} is {number}: give {least} {'or more' if most is None else f'to {most}'}")
    return number


def _memory_bytes() -> int:
    """What this machine, or the control group of a container, has for this process."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        with open("/sys/fs/cgroup/memory.max") as limit:
            # "max" where there is none.
            return min(machine, int(limit.read()))
    except (OSError, ValueError):
        return machine


@dataclass
class Batch:
    """Pictures, their labels and their places in the set; ``images, labels = batch``.

    ``len(batch)`` is N, its rows: ``batch_size``, or fewer of the last one. Arrays own their memory, and may be written to. Those of
    ``tapetum.torch.Loader`` are tensors.
    """

    #: N × height × width × channels of uint8; N × channels × height × width behind `layout chw`; float32 behind `normalize`.
    images: NDArray[Any]
    #: N of int64: places in ``ImageSet.classes``.
    labels: NDArray[numpy.int64]
    #: N of int64: places in the set.
    items: NDArray[numpy.int64]
    #: Rows that failed, and why. They are left out (``skip``) or zero (``fill``).
    failures: list[tuple[int, str]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter((self.images, self.labels))


def _array(samples: Samples, kind: str) -> NDArray[Any]:
    # Their buffer is no type that numpy's annotations know.
    return numpy.frombuffer(cast("Any", samples), dtype=kind)


def run(pipeline: PipelineLike, keyspace: Keyspace, key: Key, *, seed: int = 0, epoch: int = 0, item: int = 0) -> NDArray[Any]:
    """One picture of a keyspace through a pipeline, at the drive, as an array: height × width × channels of uint8; channels × height × width
    behind `layout chw`; float32 behind `normalize`. It may not be written to where the pipeline's result is shared.

    ``seed``, ``epoch`` and ``item`` decide what is random. Raises ``PipelineError``, which names the stage, ``DeadlineError``, and ``Error``
    of the store.
    """
    samples, shape, kind = Pipeline(pipeline)._run(keyspace, key, (seed, epoch, item))
    return _array(samples, kind).reshape(shape)


def apply(pipeline: PipelineLike, file: Key, *, seed: int = 0, epoch: int = 0, item: int = 0) -> NDArray[Any]:
    """The bytes of one file through a pipeline, as an array: what ``run`` makes, of a picture that is in no store. Errors are those of ``run``."""
    samples, shape, kind = Pipeline(pipeline)._apply(file, (seed, epoch, item))
    return _array(samples, kind).reshape(shape)


class Loader:
    """Batches of a set of pictures, made by the drive's programs; ``for images, labels in loader``.

    ``pipeline`` is a ``Pipeline`` or its text. As with torch's ``DataLoader``, pictures come in the order of the set unless ``shuffle`` is
    given, and the last batch is shorter unless ``drop_last`` is given; a loader that would never give a batch is a ``ValueError``.

    One pass is an epoch; ``set_epoch`` chooses which, and each pass goes on to the next. There is one pass at a time: an iterator raises a
    ``RuntimeError`` when another one has begun, or ``set_epoch`` or ``load_state_dict`` chose another place. Of several processes each has its ``rank`` of
    ``world_size`` and gets as many batches as the others. Batches that were given and not freed take no more than ``hold``, with those on
    their way: the loader waits, and after ``timeout`` seconds an error names those that are held.

    ``application`` is one that the store was opened with: its weight says which part of the drive's units the loader gets beside others.
    ``deadline`` is how many seconds the decode of one picture may work; one that works longer fails as ``on_error`` says, and raises
    ``DeadlineError``. ``file_bytes`` is what a picture's file takes, of sets that were imported before that was kept.
    """

    def __init__(
        self,
        images: ImageSet,
        pipeline: PipelineLike,
        batch_size: int | None = None,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        threads: int = 1,
        prefetch: int = 2,
        on_error: OnError = "raise",
        timeout: float = 60.0,
        hold: ByteSize = "4GiB",
        application: str = "default",
        deadline: float | None = None,
        file_bytes: ByteSize | None = None,
    ) -> None:
        if not isinstance(images, ImageSet):
            raise TypeError(f"images is a {type(images).__name__}: give the set that store.images() or store.import_images(folder) gives")
        if on_error not in _ON_ERROR:
            raise ValueError(f"on_error is {on_error!r}: say {', '.join(_ON_ERROR)}")
        seed = _whole("seed", seed, 0, _SEED_MAX)
        world_size = _whole("world_size", world_size, 1)
        rank = _whole("rank", rank, 0)
        if rank >= world_size:
            raise ValueError(f"rank {rank} of {world_size}: ranks are counted from 0")
        threads, prefetch = _whole("threads", threads, 1, _THREADS_MAX), _whole("prefetch", prefetch, 1)
        if not isinstance(timeout, float | int | numbers.Real):
            raise TypeError(f"timeout is {timeout!r}: give seconds, such as 60")
        if not timeout >= 0:
            raise ValueError(f"timeout is {timeout!r}: give 0 or more seconds")
        pipeline = Pipeline(pipeline)
        if batch_size is not None:
            pipeline = pipeline.batch(_whole("batch_size", batch_size, 1, _BATCH_MAX))
        if deadline is not None:
            pipeline = pipeline.with_deadline(deadline)
        if (batch_shape := pipeline.batch_shape) is None:
            raise PipelineError("the pipeline ends in no batch: give a batch_size")
        self.images, self.pipeline = images, pipeline
        self.batch_size = batch_shape[0]
        #: Shape and type of one picture.
        self.batch_shape = batch_shape[1:]
        self.shuffle, self.seed = shuffle, seed
        self.rank, self.world_size, self.drop_last = rank, world_size, drop_last
        self.threads, self.prefetch, self.on_error, self.timeout = threads, prefetch, on_error, timeout
        self.application = application
        self._file_bytes = None if file_bytes is None else byte_size(file_bytes)
        samples = numpy.prod(batch_shape[1], dtype="int64") * numpy.dtype(batch_shape[2]).itemsize
        self._batch_bytes = int(samples) * self.batch_size
        self._held = HeldBatches(byte_size(hold))
        self.epoch = 0
        # Items of the epoch that all ranks together have been given.
        self._consumed = 0
        # Which pass is the newest.
        self._pass = 0
        self._native: NativeLoader | None = None
        self._refuse_nothing()
        self._refuse_too_much()

    def _refuse_too_much(self) -> None:
        """An error where one batch is more than all memory: the system would end the process while it is made."""
        rows = min(self.batch_size, -(-len(self.images) // self.world_size))
        needed, has = self._batch_bytes // self.batch_size * rows, _memory_bytes()
        if needed > has:
            raise MemoryError(
                f"a batch of {rows:,} pictures takes {needed:,} bytes, and this machine has {has:,} for this process: give a smaller batch_size, "
                f"or smaller pictures"
            )

    def _refuse_nothing(self) -> None:
        """An error where no pass would give a batch: a training without one ends as if all were well."""
        count, step = len(self.images), self.batch_size * self.world_size
        if count == 0:
            raise ValueError("the set has no pictures: import a folder that has some")
        if len(self) == 0:
            ranks = f" for each of {self.world_size} ranks" if self.world_size > 1 else ""
            raise ValueError(
                f"drop_last=True leaves nothing: the set has {count} pictures, and one batch{ranks} takes {step}: "
                f"leave drop_last out, or give a smaller batch_size"
            )

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch. Another one begins at its start, and so does one of which nothing is left; one that was left, or
        loaded, goes on where it was."""
        epoch = _whole("epoch", epoch, 0, _EPOCH_MAX)
        if epoch != self.epoch:
            self._go_to(epoch, 0)
        elif not self._is_left():
            self._consumed = 0

    def _go_to(self, epoch: int, consumed: int) -> None:
        self.epoch, self._consumed = epoch, consumed
        self._pass += 1

    def _is_left(self) -> bool:
        """Whether the epoch has another batch."""
        rest = len(self.images) - self._consumed
        return rest >= self.batch_size * self.world_size or (rest > 0 and not self.drop_last)

    def _place(self) -> tuple[int, int]:
        """Epoch and consumed items of the next batch: where nothing is left, the start of the next epoch."""
        return (self.epoch, self._consumed) if self._is_left() else (self.epoch + 1, 0)

    def __len__(self) -> int:
        """Batches of a whole pass, of each rank."""
        whole, rest = divmod(len(self.images), self.batch_size * self.world_size)
        return whole if self.drop_last or rest == 0 else whole + 1

    def state_dict(self) -> dict[str, int]:
        """Where the pass is, for ``load_state_dict``, also of another world size: epoch, consumed, seed and items."""
        epoch, consumed = self._place()
        return {"epoch": epoch, "consumed": consumed, "seed": self.seed, "items": len(self.images)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes to where a pass was. An ``Error`` if the state is of a set with another number of pictures."""
        if state["items"] != len(self.images):
            raise Error(f"the state is of {state['items']} pictures, and the set has {len(self.images)}: load it with the same set")
        self.seed = state["seed"]
        self._go_to(state["epoch"], state["consumed"])

    def stats(self) -> dict[str, Any]:
        """What the threads did, and the application that they did it for: its weight, and what units worked for it."""
        native = self._native.stats() if self._native is not None else {}
        return {**native, "epoch": self.epoch, "consumed": self._consumed}

    def _order(self) -> NDArray[Any]:
        count = len(self.images)
        if not self.shuffle:
            return numpy.arange(count, dtype="<u8")
        return _array(epoch_order(count, self.seed, self.epoch), "<u8")

    def _steps(self) -> Iterator[tuple[NDArray[Any], int]]:
        """This rank's items of each step that is left, and how many all ranks have been given after it."""
        order = self._order()
        step_items = self.batch_size * self.world_size
        for start in range(self._consumed, len(order), step_items):
            of_all = order[start : start + step_items]
            if len(of_all) == step_items:
                yield of_all[self.rank * self.batch_size :][: self.batch_size], start + step_items
            elif not self.drop_last:
                # What is left is shared evenly; the first items of the epoch come again to make it even.
                share = -(-len(of_all) // self.world_size)
                padded = numpy.resize(numpy.concatenate([of_all, order]), share * self.world_size)
                yield padded[self.rank * share :][:share], len(order)

    def __iter__(self) -> Iterator[Batch]:
        self._go_to(*self._place())
        return self._batches(self._pass)

    def _batches(self, number_of_pass: int) -> Iterator[Batch]:
        self._refuse_older(number_of_pass)
        # A pass that was left has batches on their way: its threads end with it.
        native = NativeLoader(self.images, self.pipeline, self.threads, application=self.application, file_bytes=self._file_bytes)
        self._native, (shape, kind) = native, native.shape
        seed, epoch = self.seed, self.epoch
        submitted: list[int] = []
        steps = self._steps()
        step = next(steps, None)
        while True:
            ahead = self.prefetch + self.threads
            while step is not None and len(submitted) < ahead and self._has_room(len(submitted)):
                native.submit(step[0].tolist(), seed, epoch)
                submitted.append(step[1])
                step = next(steps, None)
            if not submitted:
                if step is None:
                    break
                self._wait_for_room()
                continue
            self._refuse_older(number_of_pass)
            number = self._consumed // (self.batch_size * self.world_size)
            batch = self._take(native, shape, kind, f"{number} of epoch {epoch}")
            # Another thread may have begun one meanwhile.
            self._refuse_older(number_of_pass)
            # Counted when it is given: what was made ahead is made again after a resume.
            self._consumed = submitted.pop(0)
            # Of several ranks none may get fewer batches than others: they wait for each other at each.
            if len(batch) > 0 or self.world_size > 1:
                yield batch
            del batch
        if number_of_pass == self._pass:
            self.epoch, self._consumed = epoch + 1, 0

    def _refuse_older(self, number_of_pass: int) -> None:
        if number_of_pass != self._pass:
            raise RuntimeError(
                "another pass over this loader has begun: each iter(loader), set_epoch of another epoch and load_state_dict ends the one "
                "before. Finish or leave a pass first, or make a loader for each"
            )

    def _has_room(self, submitted: int) -> bool:
        held = self._held.bytes()
        # Another one comes always beside the one that a loop over the batches has still.
        is_next = submitted == 0 and held <= self._batch_bytes
        return is_next or held + (submitted + 1) * self._batch_bytes <= self._held.most

    def _wait_for_room(self) -> None:
        until = time.monotonic() + self.timeout
        while not self._has_room(0):
            if time.monotonic() >= until:
                raise Error(
                    f"no room for another batch of {self._batch_bytes:,} bytes within {self.timeout:g} s: the caller still holds batches "
                    f"{self._held.names()}, and hold is {self._held.most:,} bytes: free their arrays and tensors, or give a larger hold"
                )
            self._held.wait(_WAIT_S)

    def _take(self, native: NativeLoader, shape: tuple[int, int, int], kind: str, name: str) -> Batch:
        waited = 0.0
        while True:
            taken = native.next(_WAIT_S, self.on_error == "skip")
            if taken is not None:
                break
            waited += _WAIT_S
            if waited >= self.timeout:
                raise Error(f"no batch came within {self.timeout:g} s: is the drive busy? a longer timeout waits longer")
        samples, labels, items, failures = taken
        if failures and self.on_error == "raise":
            _, reason, is_late = failures[0]
            raise (DeadlineError if is_late else PipelineError)(reason)
        # Of no bytes numpy makes no array.
        flat = _array(samples, kind) if len(samples) > 0 else numpy.empty(0, dtype=kind)
        # All views of it, and tensors, keep this one.
        self._held.add(flat, name)
        images = flat.reshape((len(labels), *shape))
        told = [(row, reason) for row, reason, _ in failures]
        return Batch(images, numpy.array(labels, dtype="int64"), numpy.array(items, dtype="int64"), told)
