"""Answers of a served store: items one by one, and rows as a table of Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tapetum.errors import Error

if TYPE_CHECKING:
    import pyarrow

    from tapetum.door import Door


class RemoteItems:
    """Items of a scan, as pairs of key and value. They show one moment, that of the scan's beginning.

    Of an ordered keyspace ``cursor`` is where they are: ``scan(…, cursor=items.cursor)`` goes on behind the last item that was taken, also
    after an error or in another process; of a moment of its own. Keys of a hashed keyspace have no order, and their scans no cursor.
    """

    def __init__(self, door: Door, command: dict[str, Any], *, has_cursor: bool, cursor: bytes | None = None) -> None:
        self._door = door
        self._has_cursor, self._cursor = has_cursor, cursor
        self._pairs: Iterator[tuple[bytes, bytes]] = iter(())
        self._reader: Any = door.stream(command)

    @property
    def cursor(self) -> bytes | None:
        """The last key that was taken, as bytes; None before the first one."""
        if not self._has_cursor:
            raise Error("the keyspace has no order of keys, so its scans have no cursor: begin the scan again, or use an ordered keyspace")
        return self._cursor

    def close(self) -> None:
        """Ends the scan, so that the server reads no further."""
        reader, self._reader = self._reader, None
        self._pairs = iter(())
        if reader is not None and self._door.is_usable:
            reader.cancel()

    def __iter__(self) -> RemoteItems:
        return self

    def __next__(self) -> tuple[bytes, bytes]:
        pair = next(self._pairs, None)
        while pair is None:
            self._read()
            pair = next(self._pairs, None)
        self._cursor = pair[0]
        return pair

    def _read(self) -> None:
        if self._reader is None:
            raise StopIteration
        self._door.client()
        try:
            with self._door.errors():
                batch = self._reader.read_chunk().data
        except BaseException:
            self._reader = None
            raise
        self._pairs = zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True)

    def __del__(self) -> None:
        reader = getattr(self, "_reader", None)
        if reader is not None and self._door.is_usable:
            reader.cancel()


class RemoteRows:
    """Rows of a query. pyarrow, pandas, Polars, DuckDB and others take it as a table, by ``__arrow_c_stream__``.

    Each reader runs the query anew, at the server's drive, and takes its batches while it runs.
    """

    def __init__(self, door: Door, command: dict[str, Any]) -> None:
        self._door, self._command = door, command
        self._schema = door.schema(command)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        names: list[str] = self._schema.names
        return names

    def stats(self) -> None:
        """None: what a query looked at stays with the server, and ``tapetum scan --explain`` shows it."""
        return None

    def __repr__(self) -> str:
        return f"<tapetum.RemoteRows: {', '.join(self.columns)}>"

    def __arrow_c_schema__(self) -> object:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(self._schema, self.batches()).__arrow_c_stream__(requested_schema)

    def batches(self) -> Iterator[pyarrow.RecordBatch]:
        """The rows as batches of pyarrow, of the moment at which this is called."""
        return self._batches(self._door.stream(self._command))

    def _batches(self, reader: Any) -> Iterator[pyarrow.RecordBatch]:
        try:
            while True:
                self._door.client()
                with self._door.errors():
                    try:
                        batch = reader.read_chunk().data
                    except StopIteration:
                        reader = None
                        return
                yield batch
        finally:
            # A reader that stops before the end ends the run.
            if reader is not None and self._door.is_usable:
                reader.cancel()
