"""Rows of a served store in pyarrow, pandas, Polars and DuckDB: those that `tapetum scan` prints."""

import pyarrow
import pytest

import tapetum

QUERY = {"select": "venue, count(*) as papers, avg(year) as year", "group_by": "venue", "having": "papers > 20"}


@pytest.fixture(scope="module")
def store(papers):
    with tapetum.connect(papers.address) as store:
        yield store


@pytest.fixture
def rows(store):
    return store.keyspace("papers").scan(**QUERY)


@pytest.fixture(scope="module")
def printed(papers):
    words = [word for name, text in QUERY.items() for word in (f"--{name.replace('_', '-')}", text)]
    return sorted((venue, int(count), float(year)) for venue, count, year in papers.printed("papers", *words))


def test_pyarrow(rows, printed):
    table = pyarrow.table(rows)
    assert table.column_names == rows.columns and sorted(tuple(row.values()) for row in table.to_pylist()) == printed
    reader = pyarrow.RecordBatchReader.from_stream(rows)
    assert sum(batch.num_rows for batch in reader) == len(printed)


def test_pandas(rows, printed):
    pandas = pytest.importorskip("pandas", minversion="3")
    assert sorted(pandas.DataFrame.from_arrow(rows).itertuples(index=False, name=None)) == printed
    assert len(pyarrow.table(rows).to_pandas()) == len(printed)


def test_polars(rows, printed):
    polars = pytest.importorskip("polars")
    assert sorted(polars.DataFrame(rows).rows()) == printed


def test_duckdb(store, rows, printed):
    duckdb = pytest.importorskip("duckdb")
    assert sorted(duckdb.sql("from rows").fetchall()) == printed
    assert sorted(duckdb.from_arrow(pyarrow.RecordBatchReader.from_stream(rows)).fetchall()) == printed
    # A join, which the store does not do.
    papers, venues = (store.keyspace(name).scan(select=select) for name, select in [("papers", "venue, year"), ("venues", "name")])
    joined = duckdb.sql("select count(*) from papers join venues on papers.venue = venues.name").fetchall()
    assert joined == [(len(store.keyspace("papers")),)]


def test_an_error_amid_the_rows_has_the_sentence_of_the_server(store):
    rows = store.keyspace("papers").scan(fields="key: id u32be; value: a u64, b u64, c u64, d u64, e u64, f u64, g u64, h u64")
    with pytest.raises(pyarrow.ArrowException, match='the record of the key ".*" does not fit the format'):
        pyarrow.table(rows)
    duckdb, polars = (pytest.importorskip(name) for name in ("duckdb", "polars"))
    with pytest.raises(duckdb.Error, match="does not fit the format"):
        duckdb.sql("from rows").fetchall()
    with pytest.raises(polars.exceptions.PolarsError, match="does not fit the format"):
        polars.DataFrame(rows)


def test_a_reader_that_stops_ends_the_run(store):
    rows = store.keyspace("authorships").scan(select="*")
    for _ in range(70):
        # Each would hold one of the server's 64 threads.
        reader = pyarrow.RecordBatchReader.from_stream(rows)
        assert next(reader).num_rows > 0
        del reader
    assert len(store.keyspace("venues")) > 0
