"""Answers of several nodes, joined: items, and rows of queries.

1. An error names its node, and the keys that were asked for.
2. A node's part has a thread while a query runs; at most a few batches wait for the reader, and a reader that goes away ends all parts.

Threads: any.
"""

import heapq
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

from tapetum.door import as_bytes
from tapetum.errors import Error, QueryError
from tapetum.merging import Joined, Unsupported, plan_of

# Batches that wait for the reader, for each node.
_BATCHES_AHEAD = 2
# How often a thread whose reader takes nothing checks whether the reader is gone.
_LOOK_S = 0.1
# What a server says to a client that took nothing for long. Of ordered items the slowest node may be read last.
_UNREAD = "read nothing"


class AtNode:
    """A context in which errors name their node, and what was asked of it."""

    def __init__(self, node, what):
        self._node, self._what = node, what

    def __enter__(self):
        return self

    def __exit__(self, _kind, error, _traceback):
        # All nodes find the same fault in a text.
        if isinstance(error, Error) and not isinstance(error, QueryError):
            what = f", {self._what}" if self._what else ""
            raise type(error)(f"node {self._node}{what}: {error}") from None


class NodesItems:
    """Items of all nodes, as pairs of key and value: in the order of their keys, if the keyspace is ordered; else those of one node after those
    of another. A key that two nodes have comes twice.

    ``cursor`` is where they are, as that of ``RemoteItems``.
    """

    def __init__(self, parts, asked, is_ordered, cursor=None):
        self._is_ordered, self._cursor = is_ordered, None if cursor is None else as_bytes(cursor)
        self._left = asked["limit"]
        self._streams = [_NodeItems(name, part, asked, self._cursor) for name, part in parts.items()]
        if is_ordered:
            self._items = heapq.merge(*self._streams, key=lambda item: item[0], reverse=asked["reverse"])
        else:
            # A node that a hashed scan comes to late is asked late, as its server waits for no reader.
            self._items = (item for stream in self._streams for item in stream)
        if is_ordered or not self._streams[1:]:
            at_once([stream.begin for stream in self._streams])
        else:
            self._streams[0].begin()

    @property
    def cursor(self):
        """The last key that was taken, as bytes; None before the first one."""
        if not self._is_ordered:
            raise Error("the keyspace has no order of keys, so its scans have no cursor: begin the scan again, or use an ordered keyspace")
        return self._cursor

    def close(self):
        """Ends the scan, so that the servers read no further."""
        self._items = iter(())
        for stream in self._streams:
            stream.close()

    def __iter__(self):
        return self

    def __next__(self):
        if self._left == 0:
            self.close()
            raise StopIteration
        item = next(self._items)
        if self._left is not None:
            self._left -= 1
        self._cursor = item[0]
        return item


class _NodeItems:
    """The items of one node."""

    def __init__(self, name, part, asked, cursor):
        self._name, self._part, self._asked, self._cursor = name, part, asked, cursor
        self._items = None

    def begin(self):
        if self._items is None:
            with self._named():
                asked = self._asked if self._cursor is None else self._asked | {"cursor": self._cursor}
                self._items = self._part.scan(**asked)

    def close(self):
        if self._items is not None:
            self._items.close()

    def __iter__(self):
        return self

    def __next__(self):
        self.begin()
        with self._named():
            try:
                item = next(self._items)
            except Error as error:
                if _UNREAD not in str(error) or not self._part.ordered:
                    raise
                # Its turn came late. It goes on behind the last item, of a later moment.
                self._items = None
                self.begin()
                item = next(self._items)
        if self._part.ordered:
            self._cursor = item[0]
        return item

    def _named(self):
        bounds = [f"{name} {as_bytes(self._asked[name])!r}" for name in ("prefix", "start", "end") if self._asked[name] is not None]
        bounds += [] if self._cursor is None else [f"after {self._cursor!r}"]
        return AtNode(self._name, f"keyspace {self._part.name!r}, {', '.join(bounds) or 'all keys'}")


class NodesRows:
    """Rows of a query over all nodes. pyarrow, pandas, Polars, DuckDB and others take it as a table, by ``__arrow_c_stream__``.

    Each reader runs the query anew, at the drive of each node.
    """

    def __init__(self, parts, words, asked):
        self._parts, self._asked = parts, asked
        first = next(iter(parts.items()))
        self._schema = self._rows(first, words)._schema
        try:
            self._plan = plan_of(words, self._schema, self._field_names(first, words))
        except Unsupported as error:
            raise Error(f"answers of several nodes to this query cannot be merged, because of {error}: ask each node, with tapetum.connect") from None

    def _field_names(self, part, words):
        if "group_by" not in words:
            return []
        return self._rows(part, {name: text for name, text in words.items() if name == "fields"} | {"select": "*"}).columns

    @property
    def columns(self):
        """The names of the columns."""
        return self._schema.names

    def stats(self):
        """None, as of ``RemoteRows``."""
        return None

    def __repr__(self):
        return f"<tapetum.NodesRows: {', '.join(self.columns)}>"

    def __arrow_c_schema__(self):
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema=None):
        import pyarrow

        batches = self._joined() if isinstance(self._plan, Joined) and not self._plan.is_ordered else self._merged()
        return pyarrow.RecordBatchReader.from_batches(self._schema, batches).__arrow_c_stream__(requested_schema)

    def _rows(self, part, words):
        name, keyspace = part
        with self._at(name):
            return keyspace.scan(**words, **{word: value for word, value in self._asked.items() if value is not None})

    def _at(self, name):
        bounds = [f"{word} {as_bytes(self._asked[word])!r}" for word in ("prefix", "start", "end") if self._asked[word] is not None]
        return AtNode(name, f"keyspace {self._parts[name].name!r}, {', '.join(bounds) or 'all keys'}")

    def _merged(self):
        """The rows of a query whose answers are needed whole."""
        tables = at_once([lambda part=part: self._table(part) for part in self._parts.items()])
        yield from self._plan.merged(tables).to_batches()

    def _table(self, part):
        import pyarrow

        rows = self._rows(part, self._plan.node_words)
        with self._at(part[0]):
            return pyarrow.Table.from_batches(rows.batches(), rows._schema)

    def _joined(self):
        """Batches as they come from any node."""
        left = self._plan.limit
        coming = _Coming([lambda part=part: self._batches(part) for part in self._parts.items()])
        try:
            for batch in coming:
                if left is not None:
                    batch = batch.slice(0, left)
                    left -= batch.num_rows
                yield batch
                if left == 0:
                    return
        finally:
            coming.close()

    def _batches(self, part):
        with self._at(part[0]):
            yield from self._rows(part, self._plan.node_words).batches()


class _Coming:
    """What several generators give, each run by a thread of its own; in the order in which it comes."""

    def __init__(self, sources):
        self._queue = queue.Queue(_BATCHES_AHEAD * len(sources))
        self._running, self._is_closed = len(sources), threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(source,), name="tapetum-node", daemon=True) for source in sources]
        for thread in self._threads:
            thread.start()

    def _run(self, source):
        generator = source()
        try:
            for element in generator:
                if not self._give(element):
                    return
            self._give(None)
        except BaseException as error:
            self._give(error)
        finally:
            generator.close()

    def _give(self, element):
        """Whether the reader is there still."""
        while not self._is_closed.is_set():
            try:
                self._queue.put(element, timeout=_LOOK_S)
                return True
            except queue.Full:
                pass
        return False

    def __iter__(self):
        while self._running:
            element = self._queue.get()
            if element is None:
                self._running -= 1
            elif isinstance(element, BaseException):
                raise element
            else:
                yield element

    def close(self):
        self._is_closed.set()
        for thread in self._threads:
            thread.join()


def at_once(calls):
    """What each call gives, all at the same time. The first error is raised when all have ended."""
    if len(calls) == 1:
        return [calls[0]()]
    with ThreadPoolExecutor(len(calls), thread_name_prefix="tapetum-node") as pool:
        running = [pool.submit(call) for call in calls]
    return [one.result() for one in running]
