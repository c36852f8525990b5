"""Answers of a served store: items one by one, and rows as a table of Arrow."""

from tapetum.errors import Error


class RemoteItems:
    """Items of a scan, as pairs of key and value. They show one moment, that of the scan's beginning.

    Of an ordered keyspace ``cursor`` is where they are: ``scan(…, cursor=items.cursor)`` goes on behind the last item that was taken, also
    after an error or in another process; of a moment of its own. Keys of a hashed keyspace have no order, and their scans no cursor.
    """

    def __init__(self, door, command, *, has_cursor, cursor=None):
        self._door = door
        self._has_cursor, self._cursor = has_cursor, cursor
        self._pairs = iter(())
        self._reader = door.stream(command)

    @property
    def cursor(self):
        """The last key that was taken, as bytes; None before the first one."""
        if not self._has_cursor:
            raise Error("the keyspace has no order of keys, so its scans have no cursor: begin the scan again, or use an ordered keyspace")
        return self._cursor

    def close(self):
        """Ends the scan, so that the server reads no further."""
        reader, self._reader = self._reader, None
        self._pairs = iter(())
        if reader is not None and self._door.is_usable:
            reader.cancel()

    def __iter__(self):
        return self

    def __next__(self):
        pair = next(self._pairs, None)
        while pair is None:
            self._read()
            pair = next(self._pairs, None)
        self._cursor = pair[0]
        return pair

    def _read(self):
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

    def __del__(self):
        reader = getattr(self, "_reader", None)
        if reader is not None and self._door.is_usable:
            reader.cancel()


class RemoteRows:
    """Rows of a query. pyarrow, pandas, Polars, DuckDB and others take it as a table, by ``__arrow_c_stream__``.

    Each reader runs the query anew, at the server's drive, and takes its batches while it runs.
    """

    def __init__(self, door, command):
        self._door, self._command = door, command
        self._schema = door.schema(command)

    @property
    def columns(self):
        """The names of the columns."""
        return self._schema.names

    def stats(self):
        """None: what a query looked at stays with the server, and ``tapetum scan --explain`` shows it."""
        return None

    def __repr__(self):
        return f"<tapetum.RemoteRows: {', '.join(self.columns)}>"

    def __arrow_c_schema__(self):
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema=None):
        import pyarrow

        return pyarrow.RecordBatchReader.from_batches(self._schema, self.batches()).__arrow_c_stream__(requested_schema)

    def batches(self):
        """The rows as batches of pyarrow, of the moment at which this is called."""
        return self._batches(self._door.stream(self._command))

    def _batches(self, reader):
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
