"""Pictures of served stores for training: their files in batches, of one node or several.

1. The order of an epoch depends on its seed and number, and on the names of the pictures: not on how many nodes have them, nor on ranks.
2. All ranks get as many batches. What a rank has not been given is shared anew when a training goes on with another number of ranks.
3. Nothing is decoded here: the Flight door has no pictures. ``decode`` of a loader may be ``tapetum.apply``, where the package has its
   native module, or a function of another library.

Threads: a pool reads batches ahead.
"""

from __future__ import annotations

import hashlib
import itertools
import operator
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tapetum.errors import Error
from tapetum.joining import AtNode, at_once

# How a set lies in its keyspace: crates/store/src/images/set.rs has the layout.
_HEAD_KEY = b"\0tapetum-images"
_VERSION = 2
_SEED_MAX = 2**64 - 1


@dataclass
class FileBatch:
    """Files of pictures, or what ``decode`` made of them; their labels, and their places in the set; ``files, labels = batch``."""

    #: Files as bytes, or what ``decode`` gave for each.
    files: list[Any]
    #: Places in ``PictureFiles.classes``.
    labels: list[int]
    #: Places in the set.
    items: list[int]

    def __len__(self) -> int:
        return len(self.labels)

    def __iter__(self) -> Iterator[list[Any]]:
        return iter((self.files, self.labels))


class PictureFiles:
    """The pictures that were imported into a keyspace, of all its nodes, in the order of their keys.

    Each node has a set of its own, as `tapetum import images` leaves it. Classes are those of all nodes, in the order of their names.
    """

    def __init__(self, store: Any, keyspace: str = "images") -> None:
        found = store.keyspace(keyspace)
        nodes = getattr(found, "nodes", None)
        self._parts = {found.address: found} if nodes is None else nodes
        sets = at_once([lambda name=name, part=part: _of_node(name, part) for name, part in self._parts.items()])
        #: The names of the classes; a label is a place among them.
        self.classes: list[str] = sorted({name for classes, _ in sets for name in classes})
        places = {name: place for place, name in enumerate(self.classes)}
        entries = [
            (key, places[classes[label]], name)
            for name, (classes, listed) in zip(self._parts, sets, strict=True)
            for key, label in listed
        ]
        entries.sort()
        for one, other in itertools.pairwise(entries):
            if one[0] == other[0]:
                raise Error(f"the picture {one[0].decode(errors='replace')!r} is at two nodes, {one[2]} and {other[2]}: give one another name")
        self._entries: list[tuple[bytes, int, str]] = entries

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, item: int) -> bytes:
        """The key of an item, which is its path below the folder."""
        return self._entries[item][0]

    def label(self, item: int) -> int:
        """The label of an item, its place in ``classes``."""
        return self._entries[item][1]

    def files(self, items: Iterable[int]) -> list[bytes]:
        """The files of these pictures, each from its node. An ``Error`` if one is not there any more."""
        items = list(items)
        by_node: dict[str, list[tuple[int, bytes]]] = {}
        for place, item in enumerate(items):
            key, _, name = self._entries[item]
            by_node.setdefault(name, []).append((place, key))
        files = [b""] * len(items)

        def read(name: str, wanted: list[tuple[int, bytes]]) -> None:
            part = self._parts[name]
            with AtNode(name, f"keyspace {part.name!r}, {len(wanted)} pictures from {wanted[0][1]!r} on"):
                for (place, key), file in zip(wanted, part.multi_get(key for _, key in wanted), strict=True):
                    if file is None:
                        raise Error(f"the picture {key!r} is in the set and not in the keyspace: import the folder again")
                    files[place] = file

        at_once([lambda given=given: read(*given) for given in by_node.items()])
        return files


def _of_node(name: str, part: Any) -> tuple[list[str], list[tuple[bytes, int]]]:
    """The classes of a node's set, and its keys with their labels."""
    with AtNode(name, f"keyspace {part.name!r}"):
        head = part.get(_HEAD_KEY)
        if head is None:
            raise Error(f"no pictures were imported into the keyspace {part.name}: `tapetum import images` on the server's machine does it")
        try:
            return _parsed(part, head)
        except (struct.error, UnicodeDecodeError, IndexError):
            raise Error("the list of the set's pictures is damaged: import the folder again") from None


def _parsed(part: Any, head: bytes) -> tuple[list[str], list[tuple[bytes, int]]]:
    version, class_count, count, a_list = struct.unpack_from("<IIQI", head)
    if not 1 <= version <= _VERSION:
        raise Error(f"the set of pictures is of version {version}: use a newer Tapetum")
    classes: list[str] = []
    at = struct.calcsize("<IIQI")
    for _ in range(class_count):
        name, at = _short_bytes(head, at)
        classes.append(name.decode())
    # Version 1 has no sizes of files.
    fixed = "<I" if version == 1 else "<II"
    entries: list[tuple[bytes, int]] = []
    for of_list in part.multi_get(_HEAD_KEY + b"-%08x" % number for number in range(-(-count // a_list))):
        if of_list is None:
            raise IndexError
        at = 0
        while at < len(of_list):
            label = struct.unpack_from(fixed, of_list, at)[0]
            key, at = _short_bytes(of_list, at + struct.calcsize(fixed))
            entries.append((key, label))
    if len(entries) != count or any(label >= class_count for _, label in entries):
        raise IndexError
    return classes, entries


def _short_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length = int(struct.unpack_from("<H", data, at)[0])
    end = at + 2 + length
    if end > len(data):
        raise IndexError
    return data[at + 2 : end], end


class FileLoader:
    """Batches of pictures' files: ``for files, labels in loader``. Arguments, passes and states are those of ``tapetum.Loader``.

    ``decode`` makes something of each file: ``decode(file, seed=…, epoch=…, item=…)``, which are the arguments of ``tapetum.apply``, so that
    ``functools.partial(tapetum.apply, "resnet50")`` gives each picture the crop that the epoch has for it.
    """

    def __init__(
        self,
        pictures: PictureFiles,
        batch_size: int,
        *,
        shuffle: bool = False,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
        drop_last: bool = False,
        prefetch: int = 2,
        decode: Callable[..., Any] | None = None,
    ) -> None:
        self.pictures, self.shuffle, self.drop_last, self.decode = pictures, shuffle, drop_last, decode
        self.batch_size, self.prefetch = _whole("batch_size", batch_size, 1), _whole("prefetch", prefetch, 1)
        self.seed = _whole("seed", seed, 0, _SEED_MAX)
        self.world_size = _whole("world_size", world_size, 1)
        self.rank = _whole("rank", rank, 0, self.world_size - 1)
        self.epoch = 0
        # Items of the epoch that all ranks together have been given.
        self._consumed = 0
        # Which pass is the newest.
        self._pass = 0
        if len(self) == 0:
            raise ValueError(
                f"no pass would have a batch: the set has {len(pictures)} pictures, and one batch of all ranks {self._step}: "
                "leave drop_last out, or give a smaller batch_size"
            )

    @property
    def _step(self) -> int:
        return self.batch_size * self.world_size

    def __len__(self) -> int:
        """Batches of a whole pass, of each rank."""
        whole, rest = divmod(len(self.pictures), self._step)
        return whole if self.drop_last or rest == 0 else whole + 1

    def set_epoch(self, epoch: int) -> None:
        """The next pass is of this epoch. Another one begins at its start, and so does one of which nothing is left; one that was left, or
        loaded, goes on where it was."""
        epoch = _whole("epoch", epoch, 0)
        if epoch != self.epoch:
            self._go_to(epoch, 0)
        elif not self._is_left():
            self._consumed = 0

    def state_dict(self) -> dict[str, int]:
        """Where the pass is, for ``load_state_dict``, also of another world size: epoch, consumed, seed and items."""
        epoch, consumed = self._place()
        return {"epoch": epoch, "consumed": consumed, "seed": self.seed, "items": len(self.pictures)}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Goes to where a pass was. An ``Error`` if the state is of a set with another number of pictures."""
        if state["items"] != len(self.pictures):
            raise Error(f"the state is of {state['items']} pictures, and the set has {len(self.pictures)}: load it with the same set")
        self.seed = state["seed"]
        self._go_to(state["epoch"], state["consumed"])

    def _go_to(self, epoch: int, consumed: int) -> None:
        self.epoch, self._consumed = epoch, consumed
        self._pass += 1

    def _is_left(self) -> bool:
        """Whether the epoch has another batch."""
        rest = len(self.pictures) - self._consumed
        return rest >= self._step or (rest > 0 and not self.drop_last)

    def _place(self) -> tuple[int, int]:
        """Epoch and consumed items of the next batch: where nothing is left, the start of the next epoch."""
        return (self.epoch, self._consumed) if self._is_left() else (self.epoch + 1, 0)

    def order(self) -> list[int]:
        """The items of the epoch in their order, for all ranks together."""
        count = len(self.pictures)
        if not self.shuffle:
            return list(range(count))
        key = struct.pack("<QQ", self.seed, self.epoch)

        def place(item: int) -> bytes:
            return hashlib.blake2b(self.pictures.key(item), digest_size=16, key=key).digest()

        return sorted(range(count), key=place)

    def _steps(self) -> Iterator[tuple[list[int], int]]:
        """This rank's items of each step that is left, and how many all ranks have been given after it."""
        order = self.order()
        for start in range(self._consumed, len(order), self._step):
            of_all = order[start : start + self._step]
            if len(of_all) == self._step:
                yield of_all[self.rank * self.batch_size :][: self.batch_size], start + self._step
            elif not self.drop_last:
                # What is left is shared evenly; the first items of the epoch come again to make it even.
                share = -(-len(of_all) // self.world_size)
                padded = list(itertools.islice(itertools.cycle(of_all + order), share * self.world_size))
                yield padded[self.rank * share :][:share], len(order)

    def __iter__(self) -> Iterator[FileBatch]:
        self._go_to(*self._place())
        return self._batches(self._pass)

    def _batches(self, number_of_pass: int) -> Iterator[FileBatch]:
        self._refuse_older(number_of_pass)
        epoch, steps = self.epoch, self._steps()
        pool = ThreadPoolExecutor(self.prefetch, thread_name_prefix="tapetum-loader")
        try:
            ahead: deque[tuple[Future[FileBatch], int]] = deque()
            while True:
                for items, consumed in itertools.islice(steps, self.prefetch + 1 - len(ahead)):
                    ahead.append((pool.submit(self._read, items, epoch), consumed))
                if not ahead:
                    break
                self._refuse_older(number_of_pass)
                reading, consumed = ahead.popleft()
                batch = reading.result()
                self._refuse_older(number_of_pass)
                # Counted when it is given: what was read ahead is read again after a resume.
                self._consumed = consumed
                yield batch
        finally:
            pool.shutdown(cancel_futures=True)
        if number_of_pass == self._pass:
            self.epoch, self._consumed = epoch + 1, 0

    def _read(self, items: list[int], epoch: int) -> FileBatch:
        files: list[Any] = self.pictures.files(items)
        if self.decode is not None:
            files = [self.decode(file, seed=self.seed, epoch=epoch, item=item) for file, item in zip(files, items, strict=True)]
        return FileBatch(files, [self.pictures.label(item) for item in items], items)

    def _refuse_older(self, number_of_pass: int) -> None:
        if number_of_pass != self._pass:
            raise RuntimeError(
                "another pass over this loader has begun: each iter(loader), set_epoch of another epoch and load_state_dict ends the one "
                "before. Finish or leave a pass first, or make a loader for each"
            )


def _whole(name: str, value: Any, least: int, most: int | None = None) -> int:
    """An argument as an int, or an error that names it."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is {value!r}: give a whole number") from None
    if number < least or (most is not None and number > most):
        raise ValueError(f"{name} is {number}: give {least} {'or more' if most is None else f'to {most}'}")
    return number
