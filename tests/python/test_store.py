"""The embedded store, from Python."""

import multiprocessing
import os
import pickle
import re
import threading
import time

import pytest

import tapetum

SMALL = {"capacity": "64MiB", "memory": 64 << 20}


@pytest.fixture
def store(tmp_path):
    with tapetum.Store.open(tmp_path / "data", **SMALL) as store:
        yield store


def test_values_come_back(store):
    store.put("text", b"value")
    store.put(b"\x00\xff", bytearray(b"binary"))
    assert store.get("text") == b"value"
    assert store[b"\x00\xff"] == b"binary"
    assert store.get("none") is None
    assert "text" in store and "none" not in store
    assert store.multi_get(["none", "text"]) == [None, b"value"]
    assert store.delete("text") and not store.delete("text")
    with pytest.raises(KeyError):
        store["text"]
    with pytest.raises(TypeError):
        store.put("text", 7)
    store["again"] = memoryview(b"1")
    del store["again"]
    assert dict(store.scan()) == {b"\x00\xff": b"binary"}


def test_batches_are_whole(store):
    store.put("a", b"0")
    store.batch([("a", None), ("b", b"2"), ("c", b"3")])
    assert store.multi_get(["a", "b", "c"]) == [None, b"2", b"3"]
    with pytest.raises(tapetum.Error, match="key is empty"):
        store.batch([("d", b"4"), ("", b"5")])
    assert store.get("d") is None
    # Any iterable, but for one key that would be taken for several.
    store.batch({"d": b"4", "b": None}.items())
    store.batch((f"{number}", b"") for number in range(3))
    assert store.multi_get(key for key in "bd12") == [None, b"4", b"", b""] and store.multi_get({"d": 1}) == [b"4"]
    for key in ("key", b"key"):
        with pytest.raises(TypeError, match="give a list of them"):
            store.multi_get(key)


def test_a_batch_that_is_too_large_says_how_many_writes_it_may_have(store):
    limits = store.limits()
    most = limits["batch_writes"]
    store.batch([(f"{number}", b"") for number in range(most)])
    together = limits["batch_bytes"]
    told = f"larger than this store writes at once: {most} writes of {together} bytes .* Split it .* capacity= and memory="
    for writes in ([(f"{number}", b"") for number in range(most + 1)], [("a", bytes(limits["batch_bytes"]))]):
        with pytest.raises(tapetum.Error, match=told):
            store.batch(writes)
    assert len(store) == most


def test_limits_are_what_is_taken(store):
    ordered = store.keyspace("ordered", create=True, ordered=True)
    assert ordered.limits()["key_bytes"] == 1024
    for keyspace in (store, ordered):
        limits = keyspace.limits()
        key, value = bytes([1]) * limits["key_bytes"], bytes(limits["value_bytes"])
        keyspace[key], keyspace["key"] = b"value", value
        assert keyspace[key] == b"value" and keyspace["key"] == value
        with pytest.raises(tapetum.Error, match=f"longer than {limits['key_bytes']} bytes"):
            keyspace[key + b"1"] = b"value"
        with pytest.raises(tapetum.Error, match=r"the value is larger than \d+ bytes: .*memory=, capacity="):
            keyspace["key"] = value + b"1"


@pytest.fixture(params=[False, True], ids=["hashed", "ordered"])
def keyspace(request, store):
    return store.keyspace("of a kind", create=True, ordered=request.param)


def test_a_value_is_stored_if_nobody_was_faster(keyspace):
    assert keyspace.gets("key") == (None, None)
    assert keyspace.cas("key", b"1", None) and not keyspace.cas("key", b"2", None)
    value, token = keyspace.gets("key")
    assert value == b"1" and keyspace.cas("key", b"2", token)
    assert not keyspace.cas("key", b"3", token) and keyspace["key"] == b"2"
    _, token = keyspace.gets("key")
    keyspace["key"] = b"2"
    assert not keyspace.cas("key", b"3", token), "the same value, but written again"
    _, token = keyspace.gets("key")
    del keyspace["key"]
    assert not keyspace.cas("key", b"3", token) and "key" not in keyspace


def test_expiry_is_a_unix_time(keyspace):
    keyspace.put("soon", b"1", expiry=time.time() + 2)
    at = int(time.time()) + 2.25
    keyspace.put("fraction", b"1", expiry=at)
    assert keyspace.cas("later", b"1", None, expiry=int(time.time()) + 600) and keyspace["soon"] == b"1"
    keyspace.put("never", b"1", expiry=0)
    uses = [lambda expiry: keyspace.put("key", b"1", expiry=expiry), lambda expiry: keyspace.cas("key", b"1", None, expiry=expiry)]
    for use in uses:
        for past in (60, -1, time.time() - 2, float("nan")):
            with pytest.raises(ValueError, match=r"expiry=.* is past: .* so give time.time\(\) \+ seconds"):
                use(past)
        with pytest.raises(ValueError, match="after the year 10889"):
            use(2**48 / 1000)
        with pytest.raises(TypeError, match="expiry is a unix time"):
            use("soon")
    assert "key" not in keyspace
    time.sleep(max(0, at - 0.1 - time.time()))
    assert "fraction" in keyspace
    time.sleep(0.3)
    assert "fraction" not in keyspace
    time.sleep(0.9)
    assert "soon" not in keyspace and "later" in keyspace and "never" in keyspace


def test_threads_that_compare_and_set_lose_nothing(store):
    def add():
        for _ in range(50):
            while True:
                value, token = store.gets("sum")
                if store.cas("sum", str(int(value or 0) + 1), token):
                    break

    threads = [threading.Thread(target=add) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert store["sum"] == b"200"


def test_numbers_are_counted(keyspace):
    with pytest.raises(KeyError):
        keyspace.increment("visits")
    assert keyspace.increment("visits", initial=5) == 5
    assert keyspace.increment("visits") == 6 and keyspace.increment("visits", 10, initial=0) == 16
    assert keyspace["visits"] == b"16"
    assert keyspace.increment("visits", -6) == 10 and keyspace.increment("visits", -11) == 0
    keyspace["full"] = str(2**64 - 1)
    assert keyspace.increment("full", 2) == 1
    assert keyspace.increment("full", 2**63) == 2**63 + 1 and keyspace.increment("full", 2**64 - 1) == 2**63
    assert keyspace.increment("full", 1 - 2**64) == 0
    for by in (2**64, -(2**64)):
        with pytest.raises(ValueError, match=f"by is {by}: give "):
            keyspace.increment("full", by)
    keyspace["text"] = b"many"
    with pytest.raises(ValueError, match="'?\"text\"'? is no decimal number"):
        keyspace.increment("text")
    assert keyspace.decrement("down", initial=9) == 9 and keyspace.decrement("down", 4) == 5
    assert keyspace.decrement("down", -1) == 6 and keyspace.decrement("down", 7) == 0
    with pytest.raises(KeyError):
        keyspace.decrement("none")
    with pytest.raises(ValueError, match="by is .*: give "):
        keyspace.decrement("down", 2**64)


def test_threads_that_count_lose_nothing(keyspace):
    def count():
        for _ in range(100):
            keyspace.increment("up", 2, initial=2)
            keyspace.decrement("down", initial=1000)

    threads = [threading.Thread(target=count) for _ in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    # The first of each stored what it begins with.
    assert keyspace["up"] == b"800" and int(keyspace["down"]) == 1000 - 399


def test_a_store_has_figures_and_the_package_a_version(store):
    store.keyspace("words", create=True)["a"] = b"1"
    before = store.stats()
    store["key"] = bytes(1000)
    stats = store.stats()
    assert all(type(value) is int for value in stats.values())
    assert stats["user_write_bytes"] >= before["user_write_bytes"] + 1000
    assert (stats["curr_items"], stats["keyspace_items:words"]) == (2, 1)
    assert stats["memory_limit_bytes"] == 64 << 20
    assert tapetum.__version__.count(".") == 2


def test_errors_have_the_words_of_python(tmp_path):
    path = tmp_path / "data"
    opened = tapetum.Store.open
    with opened(path, **SMALL) as store:
        said = {
            "create=False": lambda: opened(tmp_path / "none", create=False),
            "read_only=True": lambda: opened(tmp_path / "none", read_only=True),
            "use the store that is open": lambda: opened(path),
            "memory=": lambda: opened(tmp_path / "none", memory="64KiB"),
            "capacity=|free space": lambda: opened(tmp_path / "none", capacity="4096TiB"),
            "capacity=": lambda: opened(tmp_path / "none", capacity="1KiB"),
            "weights=": lambda: opened(tmp_path / "none", units=1, weights={"train": 0}),
            r"store.keyspace\(.none., create=True\)": lambda: store.keyspace("none"),
            r"store.import_images\(folder": store.images,
        }
        told = []
        for match, use in said.items():
            with pytest.raises(tapetum.Error, match=match) as raised:
                use()
            told.append(str(raised.value))
    with opened(path, memory="64MiB", read_only=True) as reading:
        with pytest.raises(tapetum.Error, match="without read_only=True") as raised:
            reading["key"] = b"value"
        told.append(str(raised.value))
    for text in told:
        assert not re.search(r"::|--\w|`tapetum", text), text


def test_errors_are_pickled_and_have_their_names(store):
    for kind in (tapetum.Error, tapetum.PipelineError, tapetum.DeadlineError, tapetum.ClosedError, tapetum.QueryError):
        assert (kind.__module__, getattr(tapetum, kind.__qualname__)) == ("tapetum", kind)
        assert repr(pickle.loads(pickle.dumps(kind("text")))) == f"{kind.__name__}('text')"
    with pytest.raises(tapetum.QueryError) as raised:
        store.scan(fields="key: id u33")
    assert pickle.loads(pickle.dumps(raised.value)).word == raised.value.word


def test_a_full_store_names_what_to_give_it(tmp_path):
    with tapetum.Store.open(tmp_path / "data", capacity="4MiB", memory="64MiB", sync="no") as store:
        with pytest.raises(tapetum.Error, match="full: .*(capacity=|memory=)"):
            for number in range(100_000):
                store.put(f"{number}", os.urandom(1000))


def test_ordered_keyspaces_are_scanned_in_order(store):
    ordered = store.keyspace("words", create=True, ordered=True)
    for word in ["pear", "apple", "plum", "fig"]:
        ordered[word] = word.upper()
    assert [key for key, _ in ordered.scan()] == [b"apple", b"fig", b"pear", b"plum"]
    assert [key for key, _ in ordered.scan("p")] == [b"pear", b"plum"]
    assert list(ordered.scan(start="b", end="pear")) == [(b"fig", b"FIG")]
    assert next(ordered.scan(reverse=True)) == (b"plum", b"PLUM")
    assert sorted(store.keyspaces()) == ["default", "words"]
    with pytest.raises(tapetum.Error, match="ordered=True"):
        store.keyspace("default").scan(reverse=True)
    store.drop_keyspace("words")
    with pytest.raises(tapetum.Error):
        ordered.get("fig")
    with pytest.raises(tapetum.Error, match="words"):
        store.keyspace("words")


def test_a_keyspace_of_another_kind_is_refused(store):
    store.keyspace("words", create=True)
    store.keyspace("sorted", create=True, ordered=True)
    for name, ordered, kind in [("words", True, "hashed"), ("sorted", False, "ordered")]:
        for create in (True, False):
            with pytest.raises(tapetum.Error, match=f'keyspace "{name}" is there, and is {kind}'):
                store.keyspace(name, create=create, ordered=ordered)
        store.keyspace(name, create=True, ordered=not ordered)
        store.keyspace(name, create=True)


def test_fields_that_are_kept_are_changed_on_purpose_alone(store):
    fields, others = "key: id u32be; value: name string", "key: id u64be; value: name string"
    records = store.keyspace("records", create=True)
    assert records.fields is None
    for _ in range(2):
        assert store.keyspace("records", fields=fields).fields == fields
    with pytest.raises(tapetum.Error, match=f'records of the keyspace "records" are {fields}: leave fields out; .*fields = '):
        store.keyspace("records", create=True, fields=others)
    assert records.fields == fields
    records.fields = others
    assert store.keyspace("records", fields=others).fields == others
    records.fields = None
    assert records.fields is None and store.keyspace("records", fields=fields).fields == fields
    with pytest.raises(tapetum.QueryError, match="u33"):
        records.fields = "key: id u33"
    store.drop_keyspace("records")
    with pytest.raises(tapetum.Error, match="was dropped"):
        records.fields = fields


def test_a_closed_store_says_so(tmp_path):
    with tapetum.Store.open(tmp_path / "data", **SMALL) as store:
        store.put("key", b"value")
        with pytest.raises(tapetum.Error):
            tapetum.Store.open(tmp_path / "data")
    assert store.closed and "closed" in repr(store)
    store.close()
    with pytest.raises(tapetum.ClosedError):
        store.get("key")
    with pytest.raises(tapetum.Error, match="open for writing belongs to one process"):
        pickle.dumps(store)
    # Several readers beside each other, here and in other processes.
    with tapetum.Store.open(tmp_path / "data", read_only=True, memory=64 << 20) as one:
        other = pickle.loads(pickle.dumps(one))
        assert one.get("key") == other.get("key") == b"value"
        with pytest.raises(tapetum.Error, match="opened to read"):
            other.put("key", b"other")
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.apply(_value_of, (one, "key")) == b"value"
        other.close()


def test_a_closed_store_ends_what_was_made_of_it(tmp_path):
    store = tapetum.Store.open(tmp_path / "data", **SMALL)
    words = store.keyspace("words", create=True, ordered=True)
    for number in range(100):
        store[f"{number}"] = words[f"{number:03}"] = b"value"
    default, iterators = store.keyspace("default"), [iter(store.scan()), iter(words.scan())]
    [next(iterator) for iterator in iterators]
    store.close()
    # What it held is free, though all that was made of it lives.
    with tapetum.Store.open(tmp_path / "data", **SMALL) as again:
        assert len(again.keyspace("words")) == 100
        uses = [lambda: default.get("1"), lambda: words.put("1", b"2"), lambda: words.scan(), lambda: len(words)]
        uses += [lambda iterator=iterator: next(iterator) for iterator in iterators]
        for use in [*uses, store.keyspaces, lambda: store.keyspace("words"), store.applications]:
            with pytest.raises(tapetum.ClosedError, match="the store was closed: open it again"):
                use()
    store.close()


def _value_of(store, key):
    return store.get(key)


def test_a_handle_that_went_through_a_fork_raises(store):
    store.put("key", b"value")
    keyspace = store.keyspace("default")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            store.get("key")
        except tapetum.ClosedError:
            try:
                keyspace.get("key")
            except tapetum.ClosedError:
                code = 0
        # Dropping them must neither wait nor write.
        del store, keyspace
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.get("key") == b"value"


def test_a_store_is_its_default_keyspace(store):
    store["key"] = b"value"
    assert isinstance(store, tapetum.Keyspace)
    assert store.keyspace("default")["key"] == b"value" and len(store) == len(store.keyspace("default"))
    assert list(store.scan(limit=1)) == [(b"key", b"value")]


def test_the_length_is_exact(tmp_path):
    with tapetum.Store.open(tmp_path / "data", sync="no", **SMALL) as store:
        # Most of them are flushed, and of some of these another version is not.
        for number in range(20_000):
            store[f"{number}"] = bytes(1000)
        for number in range(200):
            store[f"{number}"] = b"other"
        assert len(store) == 20_000
        for number in range(200):
            del store[f"{number}"]
        assert len(store) == 19_800 and store
        words = store.keyspace("words", create=True)
        assert len(words) == 0 and not words
        store.drop_keyspace("words")
        with pytest.raises(tapetum.Error, match="was dropped"):
            len(words)


def test_sizes_are_numbers_or_text(tmp_path):
    for wrong, error in [("64 apples", ValueError), ("", ValueError), (1.5, TypeError), (-1, TypeError), ("99999999TiB", ValueError)]:
        with pytest.raises(error, match="size"):
            tapetum.Store.open(tmp_path / "data", memory=wrong)


def test_threads_share_a_store(store):
    def work(number):
        for count in range(50):
            store.put(f"{number}:{count}", bytes([number]) * count)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert len(dict(store.scan())) == 200
    assert store.get("3:49") == b"\3" * 49


def test_a_freeze_shows_its_moment_again_and_again(store):
    sorted_ = store.keyspace("sorted", create=True, ordered=True, fields="key: id string; value: score json $.score int")
    for number in range(500):
        store.put(f"key {number}", b"before")
        sorted_.put(f"key {number:04}", f'{{"score": {number}}}')
    before = dict(store.scan()), list(sorted_.scan())
    with store.freeze(30, owner="a test") as freeze:
        for number in range(0, 500, 3):
            store.put(f"key {number}", b"after")
            sorted_.delete(f"key {number:04}")
        store.drop_keyspace("sorted")
        frozen = freeze.keyspace("sorted")
        for _ in range(2):
            assert dict(freeze.keyspace().scan()) == before[0]
            assert list(frozen.scan()) == before[1]
        assert list(frozen.scan(start="key 0010", end="key 0012", reverse=True)) == before[1][10:12][::-1]
        assert len(list(frozen.scan("key 03"))) == 100
        assert sorted(freeze.keyspaces()) == ["default", "sorted"] and frozen.fields
        stats = freeze.stats()
        assert stats["owner"] == "a test" and 0 < stats["left_seconds"] <= 30
        freeze.renew(60)
        assert freeze.stats()["left_seconds"] > 30
        with pytest.raises(tapetum.Error, match="no keyspace"):
            freeze.keyspace("none")
    with pytest.raises(tapetum.ClosedError):
        freeze.stats()
    with pytest.raises(tapetum.Error, match="has ended: it was released"):
        frozen.scan()
    with pytest.raises(ValueError, match="seconds"):
        store.freeze(-1)
    with pytest.raises(tapetum.Error, match="at most 24 hours"):
        store.freeze(1e7)
    held = [store.freeze(9) for _ in range(8)]
    with pytest.raises(tapetum.Error, match="as many as one owner may have"):
        store.freeze(9)
    del held
