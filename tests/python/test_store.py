"""The embedded store, from Python."""

import multiprocessing
import os
import pickle
import threading

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
