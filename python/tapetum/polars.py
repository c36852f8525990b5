"""A keyspace as a lazy frame of Polars: filters, columns and limits go down to the drive."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars
from polars.io.plugins import register_io_source

from tapetum.conditions import condition_of, quoted
from tapetum.errors import QueryError


def scan(keyspace: Any, *, fields: str | None = None, on_error: str = "raise", **range: Any) -> polars.LazyFrame:
    """The records of a keyspace as a ``polars.LazyFrame``. The keyspace is an embedded or a served one, or one of a freeze.

    A filter is decided at the drive as far as the drive decides it as Polars does: comparisons of columns with each other and with
    constants, ``is_between``, ``is_in``, ``is_null``, ``starts_with``, ``ends_with``, ``contains``, and these with ``&``, ``|`` and ``~``.
    Polars filters what came by the rest. Only columns that are needed are read, and of ``head(n)`` alone so many rows.

    ``fields`` is the format of the records, if it is not kept with the keyspace; ``on_error="skip"`` leaves out those that do not fit; ``prefix``,
    ``start`` and ``end`` are bounds of an ordered keyspace. Each ``collect`` reads the keyspace anew, as it is then.
    """
    asked = {name: value for name, value in {"fields": fields, **range}.items() if value is not None} | {"on_error": on_error}
    schema = polars.Schema(keyspace.scan(select="*", **asked))

    def read(
        columns: list[str] | None, predicate: polars.Expr | None, rows_max: int | None, _batch_rows: int | None
    ) -> Iterator[polars.DataFrame]:
        select = "*" if columns is None else ", ".join(quoted(name) for name in columns)
        names = schema.names() if columns is None else columns
        # The limit comes before the filter, if there are both.
        where = None if predicate is None or rows_max is not None else condition_of(predicate)
        for frame in _frames(_rows(keyspace, asked, select, where, rows_max)):
            frame.columns = names
            yield frame if predicate is None else frame.filter(predicate)

    return register_io_source(read, schema=schema)


def _rows(keyspace: Any, asked: dict[str, Any], select: str, where: str | None, limit: int | None) -> Any:
    if where is not None:
        try:
            return keyspace.scan(select=select, where=where, limit=limit, **asked)
        except QueryError:
            # It is too long for the drive, or compares what it does not: Polars does all of it.
            pass
    return keyspace.scan(select=select, limit=limit, **asked)


def _frames(rows: Any) -> Iterator[polars.DataFrame]:
    """Parts of the rows, while they come."""
    try:
        import pyarrow
    except ImportError:
        yield polars.DataFrame(rows)
        return
    reader = pyarrow.RecordBatchReader.from_stream(rows)
    try:
        for batch in reader:
            yield polars.from_arrow(batch)
    finally:
        # Whoever has enough ends the query.
        reader.close()
