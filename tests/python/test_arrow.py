"""Queries over fields, read as tables of Arrow."""

import pathlib
import signal
import struct
import subprocess
import sys

import pyarrow
import pytest

import tapetum

FIELDS = "key: id u32be; value: year u16le, score f64le, name string"
COUNT = 30_000


def record(number):
    return struct.pack(">I", number), struct.pack("<Hd", 2000 + number % 10, number / 2) + f"name {number}".encode()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("arrow") / "data"
    with tapetum.Store.open(path, capacity="128MiB", memory="64MiB", sync="no") as store:
        for name, ordered in [("hashed", False), ("ordered", True)]:
            records = store.keyspace(name, create=True, ordered=ordered, fields=FIELDS)
            for start in range(0, COUNT if name == "hashed" else 2000, 40):
                records.batch([record(number) for number in range(start, start + 40)])
        yield store


def test_a_condition_gives_a_table(store):
    rows = store.keyspace("hashed").scan(where="year = 2003 and score < 100", select="id, name, score * 2 as twice")
    assert rows.columns == ["id", "name", "twice"] and rows.stats() is None
    table = pyarrow.table(rows).sort_by("id")
    wanted = [number for number in range(200) if number % 10 == 3]
    assert table.column("id").to_pylist() == wanted
    assert table.column("twice").to_pylist() == wanted
    assert table.column("name").to_pylist()[0] == "name 3"
    # Each reader runs it anew.
    assert pyarrow.table(rows).num_rows == len(wanted)
    assert (rows.stats()["records"], rows.stats()["kept"]) == (COUNT, len(wanted))


def test_many_rows_come_in_batches(store):
    reader = pyarrow.RecordBatchReader.from_stream(store.keyspace("hashed").scan(select="*"))
    assert reader.schema.names == ["id", "year", "score", "name"]
    batches = list(reader)
    assert len(batches) >= 3
    assert sorted(number for batch in batches for number in batch.column("id").to_pylist()) == list(range(COUNT))


def test_groups_are_ordered(store):
    rows = store.keyspace("hashed").scan(
        select="year, count(*) as n, max(score) as best", group_by="year", order_by="year desc", limit=3
    )
    assert pyarrow.table(rows).to_pydict() == {"year": [2009, 2008, 2007], "n": [3000] * 3, "best": [14999.5, 14999.0, 14998.5]}


def test_a_range_of_an_ordered_keyspace(store):
    ordered = store.keyspace("ordered")
    assert ordered.fields == FIELDS
    rows = ordered.scan(start=record(10)[0], end=record(20)[0], where="year >= 2005", select="id")
    assert sorted(pyarrow.table(rows).column("id").to_pylist()) == [15, 16, 17, 18, 19]
    with pytest.raises(tapetum.Error, match="no order of keys"):
        store.keyspace("hashed").scan(start="a", select="id")


def test_errors_stand_at_the_word(store):
    records = store.keyspace("hashed")
    with pytest.raises(tapetum.QueryError, match="the format has no such field; year is one") as raised:
        records.scan(where="score > 1 and yaer = 2000")
    assert (raised.value.clause, raised.value.column, raised.value.word) == ("where", 15, "yaer")
    with pytest.raises(tapetum.QueryError) as raised:
        records.scan(select="id", fields="key: id u33")
    assert (raised.value.clause, raised.value.word) == ("fields", "u33")
    with pytest.raises(tapetum.Error, match="the format of the records is not known"):
        store.scan(where="id = 1")
    with pytest.raises(ValueError, match="raise or skip"):
        records.scan(select="id", on_error="ignore")


def test_records_that_do_not_fit(tmp_path):
    with tapetum.Store.open(tmp_path / "data", capacity="64MiB", memory="64MiB") as store:
        store.batch([record(1), ("odd", b"")])
        with pytest.raises(pyarrow.ArrowException, match="does not fit"):
            pyarrow.table(store.scan(select="id", fields=FIELDS))
        rows = store.scan(select="id", fields=FIELDS, on_error="skip")
        assert pyarrow.table(rows).column("id").to_pylist() == [1]
        assert rows.stats()["misfits"] == 1


def runs():
    """Threads that run queries."""
    return [task for task in pathlib.Path("/proc/self/task").iterdir() if (task / "comm").read_text() == "tapetum-query\n"]


def test_a_reader_that_stops_ends_the_run(store):
    reader = pyarrow.RecordBatchReader.from_stream(store.keyspace("hashed").scan(select="*"))
    assert next(iter(reader)).num_rows > 0
    capsule = store.keyspace("hashed").scan(select="*").__arrow_c_stream__()
    assert len(runs()) >= 1
    del reader, capsule
    assert runs() == []


def test_ctrl_c_ends_a_wait_for_rows(store, tmp_path):
    child = subprocess.Popen([sys.executable, "-c", WAITING, str(tmp_path / "data")], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begins\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=120) == ("interrupted\n", None) and child.returncode == 0


WAITING = """
import signal, sys, pyarrow, tapetum
# A background job of a shell begins with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
with tapetum.Store.open(sys.argv[1], capacity="64MiB", memory="64MiB", sync="no") as store:
    for number in range(1000):
        store.put(str(number), b"")
    try:
        print("begins", flush=True)
        while True:
            pyarrow.table(store.scan(fields="key: id string", select="count(*)"))
    except KeyboardInterrupt:
        print("interrupted")
    except pyarrow.ArrowException:
        # The signal came while the reader waited: it is raised behind the call.
        try:
            while True:
                pass
        except KeyboardInterrupt:
            print("interrupted")
"""


def test_a_closed_store_ends_its_tables(tmp_path):
    store = tapetum.Store.open(tmp_path / "data", capacity="64MiB", memory="64MiB")
    records = store.keyspace("records", create=True, fields=FIELDS)
    records.batch([record(number) for number in range(40)])
    rows = records.scan(select="id")
    reader = pyarrow.RecordBatchReader.from_stream(rows)
    store.close()
    with pytest.raises(tapetum.ClosedError, match="the store was closed: open it again"):
        pyarrow.table(rows)
    with pytest.raises((OSError, pyarrow.ArrowException), match="the store was closed: open it again"):
        reader.read_all()
    with tapetum.Store.open(tmp_path / "data", memory="64MiB") as again:
        assert len(again.keyspace("records")) == 40
