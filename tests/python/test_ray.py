"""Keyspaces for Ray Data: by option, where Ray is installed (`pip install "ray[data]"==2.60.*`)."""

import pytest
from served import Served

import tapetum

ray = pytest.importorskip("ray")
import tapetum.ray  # noqa: E402

FORMAT = "key: k string; value: n u32"


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=2, include_dashboard=False, logging_level="ERROR", log_to_driver=False)
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    servers = [Served(tmp_path_factory.mktemp(f"ray{number}")) for number in range(2)]
    for served in servers:
        served.command("keyspace", "create", "ordered", "--index", "ordered")
        served.command("keyspace", "create", "hashed")
        for name in ("ordered", "hashed"):
            served.command("keyspace", "format", name, FORMAT)
    with tapetum.connect([served.address for served in servers]) as store:
        for name in ("ordered", "hashed"):
            store.keyspace(name).batch((f"key {number:04}", number.to_bytes(4, "little")) for number in range(2000))
        yield store
    for served in servers:
        served.stop()


def part(store, name):
    return next(iter(store.keyspace(name).nodes.values()))


def test_ranges_are_all_keys_once(store):
    ordered = part(store, "ordered")
    whole = [key for key, _ in ordered.scan()]
    for words, parallelism in [({}, 7), ({}, 1), ({"bounds": ["key 0500", "key 1000", "key 1000"]}, 9), ({"start": "key 0100", "end": "key 0200"}, 4)]:
        ranges = tapetum.ray.KeyspaceDatasource(ordered, {"select": "*"}, **words).ranges(parallelism)
        assert len(ranges) == (3 if "bounds" in words else parallelism)
        found = [[key for key, _ in ordered.scan(start=start, end=end)] for start, end in ranges]
        wanted = [key for key in whole if words.get("start", "").encode() <= key and ("end" not in words or key < words["end"].encode())]
        assert sum(found, []) == wanted and (not found[1:] or max(map(len, found)) < len(wanted) * 0.7)
    assert tapetum.ray.KeyspaceDatasource(part(store, "hashed"), {"select": "*"}).ranges(7) == [(None, None)]
    empty = part(store, "ordered")
    assert tapetum.ray.KeyspaceDatasource(empty, {"select": "*"}, start="z").ranges(3) == [(b"z", None)]


@pytest.mark.parametrize("name", ["ordered", "hashed"])
def test_rows_of_all_nodes(cluster, store, name):
    keyspace = store.keyspace(name)
    dataset = tapetum.ray.read(keyspace, where="n >= 500", select="k, n * 2 as twice", parallelism=3)
    assert sorted(row["twice"] for row in dataset.take_all()) == [2 * number for number in range(500, 2000)]
    assert set(dataset.schema().names) == {"k", "twice"}
    near = {node: ray.nodes()[0]["NodeManagerAddress"] for node in keyspace.nodes}
    assert tapetum.ray.read(keyspace, near=near).sum("n") == sum(range(2000))
    if name == "ordered":
        assert tapetum.ray.read(keyspace, start="key 0010", end="key 0020", select="n").count() == 10


def test_a_freeze_is_read_as_it_was(cluster, store):
    name, node = next(iter(store.nodes.items()))
    keyspace = node.keyspace("hashed") if hasattr(node, "keyspace") else None
    assert keyspace is not None
    with node.freeze(120) as freeze:
        before = len(keyspace)
        keyspace["later"] = bytes(4)
        assert tapetum.ray.read(freeze.keyspace("hashed")).count() == before
        assert tapetum.ray.read(keyspace).count() == before + 1
    del keyspace["later"]


def test_errors_come_before_any_task(store):
    with pytest.raises(tapetum.QueryError, match="no such field"):
        tapetum.ray.read(store.keyspace("hashed"), select="x")
    with pytest.raises(tapetum.Error, match="has no order of keys"):
        tapetum.ray.read(store.keyspace("hashed"), start="a")
