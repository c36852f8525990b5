"""A store that a server serves, from Python."""

import multiprocessing
import pathlib
import pickle
import subprocess
import sys
import threading
import time
import zipfile

import pyarrow
import pytest
from served import Served

import tapetum
from tapetum import door
from tapetum.door import told

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def store(papers):
    with tapetum.connect(papers.address) as store:
        yield store


@pytest.fixture(params=["items", "ordered"])
def keyspace(request, store):
    keyspace = store.keyspace(request.param)
    yield keyspace
    keyspace.batch([(key, None) for key, _ in keyspace.scan()])


def texts(table):
    """Rows as `tapetum scan` prints them."""
    return [tuple("" if value is None else str(value) for value in row.values()) for row in table.to_pylist()]


def test_values_come_back(keyspace):
    keyspace.put("text", b"value")
    keyspace.put(b"\x00\xff", bytearray(b"binary"))
    assert keyspace.get("text") == b"value" and keyspace[b"\x00\xff"] == b"binary"
    assert keyspace.get("none") is None
    assert "text" in keyspace and "none" not in keyspace
    assert keyspace.multi_get(["none", "text"]) == [None, b"value"]
    assert keyspace.delete("text") and not keyspace.delete("text")
    with pytest.raises(KeyError):
        keyspace["text"]
    with pytest.raises(KeyError):
        del keyspace["text"]
    with pytest.raises(TypeError, match="bytes, str, or a buffer"):
        keyspace.put("text", 7)
    keyspace["again"] = memoryview(b"1")
    del keyspace["again"]
    keyspace["empty"] = b""
    assert dict(keyspace.scan()) == {b"\x00\xff": b"binary", b"empty": b""} and len(keyspace) == 2
    for key in ("key", b"key"):
        with pytest.raises(TypeError, match="give a list of them"):
            keyspace.multi_get(key)


def test_a_value_is_stored_if_nobody_was_faster(keyspace):
    assert keyspace.gets("key") == (None, None)
    assert keyspace.cas("key", b"1", None) and not keyspace.cas("key", b"2", None)
    value, token = keyspace.gets("key")
    assert value == b"1" and keyspace.cas("key", bytes(range(256)), token)
    assert not keyspace.cas("key", b"3", token) and keyspace["key"] == bytes(range(256))
    _, token = keyspace.gets("key")
    del keyspace["key"]
    assert not keyspace.cas("key", b"3", token) and "key" not in keyspace
    assert keyspace.cas("later", b"1", None, expiry=time.time() + 600) and keyspace["later"] == b"1"
    with pytest.raises(ValueError, match="is past"):
        keyspace.cas("key", b"1", None, expiry=60)
    with pytest.raises(ValueError, match="token is -1"):
        keyspace.cas("key", b"1", -1)
    with pytest.raises(tapetum.Error, match="the key is empty"):
        keyspace.cas("", b"1", None)


def test_numbers_are_counted(keyspace):
    with pytest.raises(KeyError):
        keyspace.increment("visits")
    assert keyspace.increment("visits", initial=5) == 5 and keyspace.increment("visits", 11) == 16
    assert keyspace.decrement("visits", 6) == 10 and keyspace.increment("visits", -11) == 0
    keyspace["full"] = str(2**64 - 1)
    assert keyspace.increment("full", 2) == 1 and keyspace.increment("full", 2**64 - 1) == 0
    for by in (2**64, -(2**64)):
        with pytest.raises(ValueError, match=f"by is {by}: give "):
            keyspace.increment("full", by)
    keyspace["text"] = b"many"
    with pytest.raises(ValueError, match="'text' is no decimal number"):
        keyspace.increment("text")


def test_clients_that_race_lose_nothing(papers, keyspace):
    def count():
        with tapetum.connect(papers.address) as own:
            mine = own.keyspace(keyspace.name)
            for _ in range(20):
                mine.increment("numbers", initial=1)
                while True:
                    value, token = mine.gets("words")
                    if mine.cas("words", (value or b"") + b"w", token):
                        break

    threads = [threading.Thread(target=count) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert keyspace["numbers"] == b"80" and keyspace["words"] == b"w" * 80


def test_a_batch_puts_and_deletes(keyspace):
    keyspace.put("a", b"0")
    keyspace.batch({"a": None, "b": b"2", "c": b"3"}.items())
    assert keyspace.multi_get("abc"[place] for place in range(3)) == [None, b"2", b"3"]
    # The last write of a key counts.
    keyspace.batch([("a", b"1"), ("a", None), ("b", None), ("b", b"4")])
    assert keyspace.multi_get(["a", "b"]) == [None, b"4"]
    keyspace.batch([])
    many = {f"{number:05}".encode(): bytes(9000) for number in range(1200)}
    keyspace.batch(many.items())
    assert keyspace.multi_get(many) == list(many.values())
    with pytest.raises(tapetum.Error, match="row 1 was not stored, .* the key is empty: give at least one byte$"):
        keyspace.batch([("d", b"4"), ("", b"5")])


def test_expiry_is_a_unix_time(keyspace):
    keyspace.put("soon", b"1", expiry=time.time() + 1.5)
    keyspace.put("later", b"1", expiry=time.time() + 600)
    assert keyspace["soon"] == b"1"
    for past in (60, -1, float("nan")):
        with pytest.raises(ValueError, match=r"is past: .* so give time.time\(\) \+ seconds"):
            keyspace.put("key", b"1", expiry=past)
    with pytest.raises(ValueError, match="after the year 10889"):
        keyspace.put("key", b"1", expiry=2**48 / 1000)
    with pytest.raises(TypeError, match="expiry is a unix time"):
        keyspace.put("key", b"1", expiry="soon")
    time.sleep(1.8)
    assert "soon" not in keyspace and "later" in keyspace


def test_scans_of_an_ordered_keyspace(store):
    ordered = store.keyspace("ordered", ordered=True)
    items = [(f"k{number:05}".encode(), f"{number}".encode()) for number in range(1500)]
    ordered.batch([*items, ("a", b""), (b"k\xff\xff", b""), ("z", b"")])
    assert [key for key, _ in ordered.scan()] == [b"a", *(key for key, _ in items), b"k\xff\xff", b"z"]
    assert list(ordered.scan("k0")) == items and list(ordered.scan("k", limit=3)) == items[:3]
    assert list(ordered.scan(start="k00010", end="k00012")) == items[10:12]
    assert list(ordered.scan("k0", reverse=True)) == items[::-1]
    assert [key for key, _ in ordered.scan(b"k\xff")] == [b"k\xff\xff"]
    assert list(ordered.scan(start="z", end="a")) == []
    ordered.batch([(key, None) for key, _ in ordered.scan()])


def test_a_scan_goes_on_at_its_cursor(store):
    ordered = store.keyspace("ordered")
    items = [(f"k{number}".encode(), b"") for number in range(10, 60)]
    ordered.batch(items)
    for reverse, wanted in ((False, items), (True, items[::-1])):
        first = ordered.scan("k", reverse=reverse)
        assert first.cursor is None
        taken = [next(first) for _ in range(20)]
        cursor = first.cursor
        first.close()
        assert list(first) == [] and cursor == taken[-1][0]
        # In another process, or later.
        rest = ordered.scan("k", reverse=reverse, cursor=cursor)
        assert rest.cursor == cursor and taken + list(rest) == wanted
        assert list(ordered.scan("k", start="k20", end="k25", reverse=reverse, cursor="k22")) == [
            item for item in wanted if b"k20" <= item[0] < b"k25" and (item[0] < b"k22" if reverse else item[0] > b"k22")
        ]
    # A cursor before the range begins it.
    assert next(ordered.scan(start="k20", cursor="k15"))[0] == b"k20" and next(ordered.scan(end="k20", reverse=True, cursor="k30"))[0] == b"k19"
    ordered.batch([(key, None) for key, _ in items])
    hashed = store.keyspace("items").scan()
    with pytest.raises(tapetum.Error, match="have no cursor"):
        hashed.cursor


def test_an_answer_in_parts_is_read_whole(papers, store, monkeypatch):
    papers.command("keyspace", "create", "parts", "--index", "ordered")
    ordered = store.keyspace("parts")
    items = [(f"k{number:05}".encode(), bytes(900)) for number in range(6000)]
    ordered.batch(items)
    parts, renewed = [], []
    of_door, renew = store._door.stream, door._Endpoints._renew
    monkeypatch.setattr(store._door, "stream", lambda command: parts.append(of_door(command)) or parts[-1])
    monkeypatch.setattr(door._Endpoints, "_renew", lambda reader: renewed.append(reader) or renew(reader))
    monkeypatch.setattr(door, "_RENEW_S", 0)
    assert list(ordered.scan()) == items and list(ordered.scan(reverse=True)) == items[::-1]
    rows = ordered.scan(select="id", fields="key: id string; value: v bytes")
    assert sorted(pyarrow.table(rows)["id"].to_pylist()) == [key.decode() for key, _ in items]
    begun = ordered.scan()
    assert next(begun) == items[0] and parts[-1]._left
    begun.close()
    # Each answer came in several, and was renewed before each of its messages.
    assert len(set(map(id, renewed))) == 4
    papers.command("keyspace", "drop", "parts", "--yes")


def test_a_hashed_keyspace_has_prefixes_alone(store):
    hashed = store.keyspace("items", ordered=False)
    hashed.batch([(f"{letter}{number}", b"") for letter in "ab" for number in range(9)])
    assert {key for key, _ in hashed.scan("b")} == {f"b{number}".encode() for number in range(9)}
    assert len(list(hashed.scan(limit=4))) == 4
    for asked in ({"start": "a"}, {"end": "a"}, {"reverse": True}, {"cursor": b"a"}):
        with pytest.raises(tapetum.Error, match="has no order of keys"):
            hashed.scan(**asked)
    hashed.batch([(key, None) for key, _ in hashed.scan()])


def test_queries_have_the_rows_of_the_command_line(papers, store):
    keyspace = store.keyspace("papers")
    rows = keyspace.scan(where="venue = 'VLDB' and year >= 2000", select="id, year, title")
    assert rows.columns == ["id", "year", "title"] and rows.stats() is None
    wanted = papers.printed("papers", "--where", "venue = 'VLDB' and year >= 2000", "--select", "id, year, title")
    assert sorted(texts(pyarrow.table(rows))) == sorted(wanted) and wanted
    # Each reader runs it anew.
    assert pyarrow.table(rows).num_rows == len(wanted)
    words = {"select": "year, count(*) as papers", "group_by": "year", "having": "papers > 20", "order_by": "year desc", "limit": 7}
    grouped = pyarrow.table(keyspace.scan(**words))
    options = [word for name, text in words.items() for word in (f"--{name.replace('_', '-')}", str(text))]
    assert texts(grouped) == papers.printed("papers", *options)
    whole = pyarrow.table(keyspace.scan(select="*"))
    assert whole.num_rows == len(keyspace) == len(list(keyspace.scan()))
    assert pyarrow.schema(rows).names == rows.columns


def test_queries_of_a_range(store):
    ordered = store.keyspace("ordered")
    ordered.batch([(f"{number:03}", b"\x01\x00") for number in range(100)])
    fields = "key: id string; value: n u16"
    rows = ordered.scan(start="010", end="020", select="id, n", fields=fields)
    assert sorted(pyarrow.table(rows).column("id").to_pylist()) == [f"{number:03}" for number in range(10, 20)]
    assert pyarrow.table(ordered.scan("09", select="count(*)", fields=fields)).to_pylist() == [{"count(*)": 10}]
    ordered["odd"] = b""
    with pytest.raises((pyarrow.ArrowException, tapetum.Error), match='the record of the key "odd" does not fit the format'):
        pyarrow.table(ordered.scan(select="n", fields=fields))
    assert pyarrow.table(ordered.scan(select="n", fields=fields, on_error="skip")).num_rows == 100
    for asked in ({"reverse": True}, {"cursor": b"a"}):
        with pytest.raises(tapetum.Error, match="its rows have order_by"):
            ordered.scan(select="n", fields=fields, **asked)
    ordered.batch([(key, None) for key, _ in ordered.scan()])


def test_errors_stand_at_the_word(store):
    records = store.keyspace("papers")
    with pytest.raises(tapetum.QueryError) as raised:
        records.scan(where="year > 1 and yaer = 2000")
    assert str(raised.value) == "where, column 14, yaer: the format has no such field; year is one"
    assert (raised.value.clause, raised.value.column, raised.value.word) == ("where", 14, "yaer")
    with pytest.raises(tapetum.QueryError) as raised:
        records.scan(select="year", group_by="yaer")
    assert raised.value.clause == "group_by"
    with pytest.raises(tapetum.QueryError) as raised:
        records.scan(select="id", fields="key: id u33")
    assert (raised.value.clause, raised.value.word) == ("fields", "u33") and str(raised.value).startswith("fields, column 9, ")
    with pytest.raises(tapetum.Error, match="the format of the records is not known"):
        store.scan(where="id = 1")
    with pytest.raises(ValueError, match="raise or skip"):
        records.scan(select="id", on_error="ignore")
    with pytest.raises(tapetum.Error, match="the key is longer than 65535 bytes: use a shorter one$"):
        store.put(bytes(70_000), b"")
    with pytest.raises(tapetum.Error, match="take at most 16 MiB through this door$"):
        store.put("key", bytes(17 << 20))


def test_a_freeze_stays_as_it_is(store):
    ordered = store.keyspace("ordered")
    ordered.batch([("a", b"1"), ("b", b"2")])
    with store.freeze(seconds=60, owner="test", flash="16MiB") as freeze:
        ordered.batch([("a", b"3"), ("b", None)])
        frozen = freeze.keyspace("ordered")
        assert list(frozen.scan()) == [(b"a", b"1"), (b"b", b"2")] and list(frozen.scan("b", reverse=True)) == [(b"b", b"2")]
        assert pyarrow.table(freeze.keyspace("papers").scan(select="count(*) as n")).to_pylist() == [{"n": len(store.keyspace("papers"))}]
        assert freeze.keyspace("papers").fields == store.keyspace("papers").fields and freeze.keyspace("papers").name == "papers"
        assert "ordered" in freeze.keyspaces() and freeze.keyspace().name == "default"
        freeze.renew(120)
        stats = freeze.stats()
        assert stats["owner"] == "test" and 60 < stats["left_seconds"] <= 120
        with pytest.raises(tapetum.Error, match="there was no keyspace 'none'"):
            freeze.keyspace("none")
    with pytest.raises(tapetum.Error, match="was released"):
        frozen.scan()
    assert list(ordered.scan()) == [(b"a", b"3")]
    del ordered["a"]
    with pytest.raises(ValueError, match="is not a size"):
        store.freeze(flash="much")


def test_a_freeze_whose_time_is_over_says_so(store):
    with store.freeze(seconds=3) as freeze:
        frozen = freeze.keyspace("papers")
        time.sleep(3.2)
        for use in (lambda: next(frozen.scan()), lambda: freeze.renew(3), freeze.stats, freeze.keyspaces):
            with pytest.raises(tapetum.Error, match=f"freeze {freeze.id} has ended"):
                use()
    freeze.release()


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("Flight returned invalid argument error, with message: give a key. It is empty", "give a key. It is empty"),
        (
            "Flight cancelled call, with message: snapshot too old: ask again. gRPC client debug context: UNKNOWN:Error {grpc_status:1}. "
            "Client context: IOError: Server never sent a data message. Detail: Internal",
            "snapshot too old: ask again",
        ),
        ("gRPC returned data loss error, with message: block 7 is damaged. Client context: OK", "block 7 is damaged"),
        ("something else", "something else"),
    ],
)
def test_the_sentence_of_the_server_is_left(text, sentence):
    assert str(told(pyarrow.ArrowException(text), "grpc://host:1")) == sentence


def test_the_store_is_its_default_keyspace(papers, store):
    store["key"] = b"value"
    assert store.keyspace("default")["key"] == b"value" and store.name == "default" and store
    del store["key"]
    assert set(store.keyspaces()) >= {"default", "papers", "items", "ordered"}
    assert store.path == papers.address and not store.closed and not store.read_only
    stats = store.stats()
    assert isinstance(stats["curr_items"], int) and stats["keyspace_items:papers"] > 0
    assert store.keyspace("papers", fields="key:  id u32be; value: year u16le, venue string8, title string").ordered is False


def test_the_door_says_who_does_what_it_cannot(store):
    refusals = [
        (lambda: store.limits(), "names the limit"),
        (lambda: setattr(store, "fields", "key: id u32"), "`tapetum keyspace format default 'key: id u32'`"),
        (lambda: setattr(store, "fields", None), "`tapetum keyspace format default --remove`"),
        (lambda: store.keyspace("none"), "there is no keyspace 'none' at .* `tapetum keyspace create none`"),
        (lambda: store.keyspace("none", create=True, ordered=True), "`tapetum keyspace create none --index ordered`"),
        (lambda: store.keyspace("papers", ordered=True), "is hashed, not ordered"),
        (lambda: store.keyspace("papers", fields="key: id u64"), "leave fields out"),
        (lambda: store.keyspace("items", fields="key: id u64"), "has no format"),
        (lambda: store.drop_keyspace("papers"), "`tapetum keyspace drop papers`"),
        (lambda: store.import_images("pictures"), "`tapetum import images pictures --keyspace images`"),
        (lambda: store.images(), "tapetum.open"),
        (lambda: store.stages(), "tapetum stats"),
        (lambda: store.applications(), "application_unit_us"),
    ]
    for refused, told in refusals:
        with pytest.raises(tapetum.Error, match=told):
            refused()


def test_addresses(tmp_path):
    for address, told in [
        ("grpc://127.0.0.1:1", "no server answers at grpc://127.0.0.1:1 .Connection refused.: start it with `tapetum serve --flight`"),
        (tmp_path / "none", "there is no socket .*: No such file or directory"),
        (tmp_path, "is a folder: tapetum.open"),
        (__file__, "is no socket"),
        ("localhost", "is no address: give grpc://HOST:PORT"),
    ]:
        with pytest.raises(tapetum.Error, match=told):
            tapetum.connect(address)
    served = Served(tmp_path / "served", f"unix:{tmp_path / 'socket'}")
    for address in (tmp_path / "socket", f"unix:{tmp_path / 'socket'}", f"grpc+unix://{tmp_path / 'socket'}"):
        with tapetum.connect(address) as store:
            store["key"] = b"value"
            assert store["key"] == b"value"
    served.stop()
    with pytest.raises(tapetum.Error, match="there is no socket .*: No such file or directory; start a server"):
        tapetum.connect(tmp_path / "socket")


def test_a_server_that_goes_away_is_an_error_and_one_that_comes_back_is_not(tmp_path):
    served = Served(tmp_path)
    store = tapetum.connect(served.address)
    store.batch([(f"{number}", bytes(100_000)) for number in range(200)])
    items = store.scan()
    next(items)
    served.kill()
    with pytest.raises(tapetum.Error, match=f"no server answers at {served.address}"):
        list(items)
    with pytest.raises(tapetum.Error, match=f"no server answers at {served.address}"):
        store.get("1")
    assert list(items) == []
    served.start()
    for _ in range(50):
        try:
            assert store["1"] == bytes(100_000)
            break
        except tapetum.Error:
            # gRPC waits before it connects again.
            time.sleep(0.2)
    assert store["1"] == bytes(100_000)
    served.stop()


def child(store, results):
    try:
        store.get("key")
    except tapetum.ClosedError as error:
        results.put(str(error))
    results.put(pickle.loads(pickle.dumps(store)).get("key"))


def test_connections_are_of_one_process_and_copies_connect_anew(papers, store):
    store["key"] = b"value"
    assert pickle.loads(pickle.dumps(store))["key"] == b"value"
    assert pickle.loads(pickle.dumps(store.keyspace("papers"))).fields == store.keyspace("papers").fields
    spawn = multiprocessing.get_context("spawn")
    results = spawn.Queue()
    process = spawn.Process(target=child, args=(store, results))
    process.start()
    assert results.get(timeout=60) == b"value"
    process.join()
    with tapetum.connect(papers.address) as closed:
        rows, items = closed.keyspace("papers").scan(select="id"), closed.scan()
    closed.close()
    for use in (closed.keyspaces, lambda: closed.get("key"), lambda: pyarrow.table(rows), lambda: next(items)):
        with pytest.raises(tapetum.ClosedError, match="connect again"):
            use()
    del store["key"]


def run(*words, **options):
    done = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


PURE = """
import sys
import tapetum
assert "pyarrow" not in sys.modules and "numpy" not in sys.modules
assert tapetum.__file__.startswith(sys.prefix) and tapetum.__version__ != "unknown"
for use in (lambda: tapetum.open("data"), lambda: tapetum.Store):
    try:
        use()
    except (tapetum.Error, AttributeError) as error:
        assert "this package has no native module" in str(error), error
    else:
        raise AssertionError("it has a native module")
if sys.argv[2] == "without pyarrow":
    try:
        tapetum.connect(sys.argv[1])
    except tapetum.Error as error:
        assert "pip install 'tapetum[flight]'" in str(error), error
else:
    import pyarrow
    with tapetum.connect(sys.argv[1]) as store:
        print(pyarrow.table(store.keyspace("papers").scan(select="count(*) as n"))["n"][0], len(list(store.keyspace("papers").scan())))
"""


def test_the_package_without_its_native_module(papers, store, tmp_path):
    """In a new environment, from the wheel for any system. pyarrow is that of this environment: nothing is downloaded."""
    for folder in ("first", "second"):
        run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-index", "--wheel-dir", tmp_path / folder, ROOT / "python/pure")
    (wheel,) = (tmp_path / "first").iterdir()
    assert wheel.name.endswith("-py3-none-any.whl") and wheel.read_bytes() == (tmp_path / "second" / wheel.name).read_bytes()
    names = zipfile.ZipFile(wheel).namelist()
    assert all(f"tapetum/{module.name}" in names for module in (ROOT / "python/tapetum").glob("*.py")) and not [
        name for name in names if name.endswith(".so")
    ]
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env/bin/python"
    run(python, "-m", "pip", "install", "--no-index", "--disable-pip-version-check", wheel)
    environment = {"PATH": "/usr/bin:/bin"}
    run(python, "-c", PURE, papers.address, "without pyarrow", env=environment, cwd=tmp_path)
    site = pathlib.Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (site / "pyarrow.pth").write_text(str(pathlib.Path(pyarrow.__file__).parents[1]))
    count = len(store.keyspace("papers"))
    assert run(python, "-c", PURE, papers.address, "with pyarrow", env=environment, cwd=tmp_path).split() == [str(count)] * 2
