"""How much memory the caller may hold in batches that it was given.

A batch is held until its last array or tensor is freed, which any thread may do at any time.
"""

from __future__ import annotations

import queue
import weakref
from typing import Any

from numpy.typing import NDArray

# Batches that an error names.
_NAMED = 8


class HeldBatches:
    """Batches that were given and are not freed."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._batches: dict[int, tuple[str, int, weakref.ref[NDArray[Any]]]] = {}
        self._count = 0
        # A callback may run amidst any other call, and this is the queue that may be put to there.
        self._freed: queue.SimpleQueue[int] = queue.SimpleQueue()

    def add(self, array: NDArray[Any], name: str) -> None:
        """Counts a batch until its array is freed."""
        number, freed = self._count, self._freed
        self._count += 1
        self._batches[number] = (name, array.nbytes, weakref.ref(array, lambda _: freed.put(number)))

    def bytes(self) -> int:
        """Bytes of all that are held."""
        while not self._freed.empty():
            self._batches.pop(self._freed.get(), None)
        return sum(size for _, size, _ in self._batches.values())

    def wait(self, timeout: float) -> None:
        """Waits until another one is freed, or a moment."""
        try:
            self._batches.pop(self._freed.get(timeout=timeout), None)
        except queue.Empty:
            pass

    def names(self) -> str:
        """The names of those that are held, for an error."""
        names = [name for name, _, _ in self._batches.values()]
        return ", ".join(names[:_NAMED]) + (", ..." if len(names) > _NAMED else "")
