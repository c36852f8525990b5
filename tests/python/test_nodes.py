"""A store over several nodes: the answers are those of one node that has everything."""

import collections
import math
import pickle
import struct

import pyarrow
import pytest
from served import Served

import tapetum
from tapetum.nodes import NodesKeyspace, node_of

PAPERS = "key: id u32be; value: year u16le, venue string8, title string"
MIXED = "key: id u32be; value: n i32, big i64, f f64, t seconds32, o bool, s string8?"


def mixed(number):
    value = float("nan") if number % 50 == 7 else -0.0 if number % 50 == 8 else (number % 13) / 4 - 1
    fixed = struct.pack("<iqdI?", number % 7 - 3, (number % 3) * 2**61, value, 10**9 + number % 5 * 86_400, number % 2)
    return struct.pack(">I", number), fixed + (b"" if number % 11 == 0 else b"\x07" + f"text {number % 6}%"[:7].encode())


@pytest.fixture(scope="module")
def servers(request, papers, tmp_path_factory):
    servers = []
    for number in range(3):
        servers.append(Served(tmp_path_factory.mktemp(f"node{number}")))
        request.addfinalizer(servers[-1].stop)
    for served in (papers, *servers):
        served.command("keyspace", "create", "mixed")
        served.command("keyspace", "format", "mixed", MIXED)
        if served is not papers:
            served.command("keyspace", "create", "papers")
            served.command("keyspace", "format", "papers", PAPERS)
            served.command("keyspace", "create", "ordered", "--index", "ordered")
    return servers


@pytest.fixture(scope="module")
def alone(papers):
    with tapetum.connect(papers.address) as store:
        yield store


@pytest.fixture(scope="module")
def store(servers, alone):
    with tapetum.connect([served.address for served in servers]) as store:
        store.keyspace("papers").batch(alone.keyspace("papers").scan())
        for each in (store, alone):
            each.keyspace("mixed").batch(mixed(number) for number in range(2000))
        yield store


def rows_of(rows):
    table = pyarrow.table(rows)
    columns = [column.to_pylist() for column in table.columns]
    return table.schema, list(zip(*columns, strict=True))


def as_key(row):
    """Of a row with floats whose sums depend on the order, and with NaN."""
    return tuple(
        (value is None, str(type(value)), "nan" if isinstance(value, float) and math.isnan(value) else f"{value:.9g}" if isinstance(value, float) else value)
        for value in row
    )


def test_each_key_lies_at_one_node(servers, store):
    papers = store.keyspace("papers")
    lengths = [len(part) for part in papers.nodes.values()]
    # The shares of three nodes differ little.
    assert sum(lengths) == len(papers) and min(lengths) > len(papers) * 0.3
    for name, part in papers.nodes.items():
        key = next(part.scan())[0]
        assert papers.node_of(key) == name and part[key] == papers[key]


def test_the_node_of_a_key_stays_the_same():
    """Stores keep what was put: another hash would lose it."""
    keys = [f"key {number}".encode() for number in range(1000)]
    places = [node_of(["a", "b", "c"], key) for key in keys]
    assert "".join(places[:32]) == "bcaacabbaabccbaabbcacaccbbccbcbc"
    assert places == [node_of(["c", "a", "b"], key) for key in keys]
    wider = [node_of(["a", "b", "c", "d"], key) for key in keys]
    moved = [(old, new) for old, new in zip(places, wider, strict=True) if old != new]
    assert 200 < len(moved) < 300 and {new for _, new in moved} == {"d"}
    assert min(collections.Counter(places).values()) > 300


def test_values_come_back(store):
    ordered = store.keyspace("ordered", ordered=True)
    writes = {f"{number}".encode(): f"value {number}".encode() for number in range(100)}
    ordered.batch(writes.items())
    assert ordered.multi_get([*writes, "none"]) == [*writes.values(), None]
    assert len(ordered) == 100 and {ordered.node_of(key) for key in writes} == set(ordered.nodes)
    ordered["1"] = b"other"
    assert ordered["1"] == b"other" and "1" in ordered and ordered.delete("1") and not ordered.delete("1")
    with pytest.raises(KeyError):
        ordered["1"]
    ordered.batch([(key, None) for key in writes])
    assert len(ordered) == 0 and list(ordered.scan()) == []


def test_items_come_in_order(store):
    ordered = store.keyspace("ordered")
    items = [(f"k{number:04}".encode(), b"") for number in range(1000)]
    ordered.batch(items)
    assert list(ordered.scan()) == items and list(ordered.scan("k", reverse=True)) == items[::-1]
    assert list(ordered.scan(start="k0100", end="k0200", limit=10)) == items[100:110]
    for reverse, wanted in ((False, items), (True, items[::-1])):
        first = ordered.scan(reverse=reverse, limit=300)
        taken = list(first)
        assert taken == wanted[:300] and taken + list(ordered.scan(reverse=reverse, cursor=first.cursor)) == wanted
    assert list(ordered.scan(limit=0)) == []
    begun = ordered.scan()
    assert next(begun) == items[0]
    begun.close()
    assert list(begun) == []
    ordered.batch([(key, None) for key, _ in items])
    papers = store.keyspace("papers")
    assert len(dict(papers.scan())) == len(papers) and len(list(papers.scan(limit=5))) == 5
    with pytest.raises(tapetum.Error, match="has no order of keys"):
        papers.scan(start="a")


class Impatient:
    """A keyspace whose server waits for no reader: each scan ends after three items."""

    name, ordered = "impatient", True

    def __init__(self, keys):
        self.keys = keys

    def scan(self, cursor=None, reverse=False, **_asked):
        class Items:
            def close(self):
                pass

            def __next__(self):
                if len(taken) == 3:
                    raise tapetum.Error("the client read nothing for 60 s: ask again, and read faster")
                taken.append(next(left))
                return taken[-1], b""

        taken = []
        ahead = [key for key in self.keys if cursor is None or (key < cursor if reverse else key > cursor)]
        left = iter(ahead[::-1] if reverse else ahead)
        return Items()


def test_a_node_whose_turn_comes_late_is_asked_again():
    keys = [f"{number:03}".encode() for number in range(50)]
    keyspace = NodesKeyspace({"a": Impatient(keys[:30]), "b": Impatient(keys[30:])})
    assert [key for key, _ in keyspace.scan()] == keys and [key for key, _ in keyspace.scan(reverse=True)] == keys[::-1]


PLAIN = [
    {"where": "venue = 'VLDB' and year > 2000"},
    {"select": "id, year + 1 as next", "where": "year < 1990"},
    {"select": "*", "order_by": "id", "limit": 50},
    {"select": "id", "order_by": "year * 100000 + id desc", "limit": 20},
    {"select": "id, title", "order_by": "title", "limit": 5},
    {"order_by": "2 desc", "limit": 0},
    {"select": "id as a, year as b", "where": "year = 2003", "order_by": "a desc", "limit": 65_536},
    {"select": "id, id", "order_by": "1", "limit": 3},
    {"select": "distinct venue"},
    {"select": "distinct venue, year", "order_by": "venue"},
    {"select": "distinct year as y", "order_by": "y desc", "limit": 3},
    {"select": "distinct *", "where": "id < 100"},
    {"select": "count(*)"},
    {"select": "count(*) as n, min(year), max(title), avg(id), sum(id)"},
    {"select": "count(*), avg(year)", "where": "id < 0"},
    {"select": "count(*)", "having": "count(*) > 1000000"},
    {"select": "count(*)", "having": "max(id) > 3 and not min(title) like 'B%'"},
    {"select": "venue, count(*) as n, avg(year)", "group_by": "venue"},
    {"select": "venue, count(*) as n", "group_by": "1", "having": "n > 50 and venue not like '%shop%'", "order_by": "venue desc"},
    {"select": "year - year % 10 as decade, count(*)", "group_by": "decade", "having": "year - year % 10 > 1970 and count(*) > 3"},
    {"select": "year - year % 10 as decade, count(*) as papers", "group_by": "decade", "having": "papers > 100", "order_by": "decade"},
    {"select": "count(*)", "group_by": "venue, year", "having": "venue = 'VLDB' and year between 2000 and 2004 or year in (1990)"},
    {"select": "max(id), venue", "group_by": "venue", "order_by": "max(id) desc", "limit": 4},
    {"select": "year % 2 = 0 as even, count(*)", "group_by": "even", "order_by": "2"},
    {"select": "venue", "group_by": "venue", "limit": 3, "order_by": "1"},
    {"select": "sum(year+1)", "having": "sum(year + 1) > 0 and avg(year) between 1990 and 2010.5"},
    {"select": "count(distinct venue), count(distinct year % 10) as digits, count(*), avg(year), min(distinct id)"},
    {"select": "count(distinct venue), count(*), sum(id), max(id)", "where": "id < 0"},
    {"select": "year, count(distinct venue) as v, count(*)", "group_by": "year", "having": "count(distinct venue) > 30 and count(*) < 400", "order_by": "year"},
    {"select": "count(distinct 7), count(distinct null), count(distinct (venue))"},
    {"select": "distinct year", "having": "year > 2005", "order_by": "1"},
    {"select": "COUNT(*) as N, Count( * )", "having": "N = count(*)"},
]
STRANGE = [
    {"select": "*"},
    {"select": "id, f", "order_by": "f desc", "where": "f > 1.9", "limit": 65_536},
    {"select": "s, id", "order_by": "s", "limit": 2000},
    {"select": "f, count(*)", "group_by": "f"},
    {"select": "f, count(*)", "group_by": "f", "order_by": "f desc"},
    {"select": "s, count(*), count(s)", "group_by": "s"},
    {"select": "s, count(*)", "group_by": "s", "having": "s is not null and s like '%!%' escape '!'"},
    {"select": "s, sum(n), avg(n), min(f), max(f)", "group_by": "s", "order_by": "1 desc"},
    {"select": "t, count(*), max(t)", "group_by": "t", "having": "t >= '2001-09-10' and t < '2001-09-12 01:46:40.5'", "order_by": "t"},
    {"select": "min(t), max(t), min(o), max(o), min(s), max(s), sum(f), avg(f)", "where": "not f = float 'NaN'"},
    {"select": "max(f), sum(f)"},
    {"select": "o, sum(big), avg(big)", "group_by": "o"},
    {"select": "sum(big), avg(big), count(s)", "where": "s is null"},
    {"select": "sum(big) as b, id % 3 as r", "group_by": "id % 3", "where": "id < 4", "order_by": "b"},
    {"select": "n, count(*)", "group_by": "n", "having": "n / 2 = -1 or n % 2 = -1 or -n = 3 or n / 0 is null and n = 1"},
    {"select": "o, count(*)", "group_by": "o", "having": "o"},
    {"select": "o, count(distinct f), count(distinct s), sum(f), count(distinct t)", "group_by": "o"},
    {"select": "o, n", "group_by": "o, n", "having": "not o and n is not null and (n < 0) is false", "order_by": "n"},
    {"select": "avg(f) as f", "group_by": "n", "having": "n > 0"},
    {"select": "count(*) as \"a b\"", "group_by": "\"n\"", "order_by": "\"a b\" desc", "limit": 100},
]


@pytest.mark.parametrize("keyspace, words", [("papers", words) for words in PLAIN] + [("mixed", words) for words in STRANGE])
def test_queries_have_the_rows_of_one_node(alone, store, keyspace, words):
    one = alone.keyspace(keyspace).scan(**words)
    several = store.keyspace(keyspace).scan(**words)
    assert several.columns == one.columns and pyarrow.schema(several) == pyarrow.schema(one)
    (schema, wanted), (found_schema, found) = rows_of(one), rows_of(several)
    assert found_schema == schema
    assert sorted(map(as_key, found)) == sorted(map(as_key, wanted))
    if "order_by" in words and keyspace == "papers":
        assert found == wanted or "2" in words["order_by"] or words["order_by"] == "venue"
    elif "order_by" in words:
        # Rows that are equal in what they are ordered by come in any order.
        place = found_schema.names.index(words["order_by"].split(" ")[0]) if words["order_by"].split(" ")[0] in found_schema.names else 0
        assert [as_key(row)[place] for row in found] == [as_key(row)[place] for row in wanted]


def test_limits_cut_what_comes(store):
    papers = store.keyspace("papers")
    assert pyarrow.table(papers.scan(select="id", limit=7)).num_rows == 7
    assert pyarrow.table(papers.scan(select="distinct venue", limit=7)).num_rows == 7
    assert pyarrow.table(papers.scan(select="year, count(*)", group_by="year", limit=7)).num_rows == 7
    reader = pyarrow.RecordBatchReader.from_stream(papers.scan(select="*"))
    assert next(reader).num_rows > 0
    del reader


def test_a_range_of_an_ordered_keyspace(store):
    ordered = store.keyspace("ordered")
    ordered.batch((f"{number:03}", struct.pack("<H", number)) for number in range(200))
    words = {"fields": "key: id string; value: n u16", "select": "count(*) as n, sum(n) as s"}
    assert rows_of(ordered.scan(start="010", end="020", **words))[1] == [(10, sum(range(10, 20)))]
    assert rows_of(ordered.scan("01", **words))[1] == [(10, sum(range(10, 20)))]
    ordered["odd"] = b""
    told = f"node {ordered.node_of('odd')}, keyspace 'ordered', all keys: the record of the key \"odd\" does not fit"
    with pytest.raises(pyarrow.ArrowException, match=told):
        pyarrow.table(ordered.scan(**words))
    assert rows_of(ordered.scan(on_error="skip", **words))[1] == [(200, sum(range(200)))]
    ordered.batch([(key, None) for key, _ in ordered.scan()])


def test_errors_in_a_text_are_those_of_one_node(store):
    with pytest.raises(tapetum.QueryError) as raised:
        store.keyspace("papers").scan(where="yaer = 2000")
    assert str(raised.value) == "where, column 1, yaer: the format has no such field; year is one" and raised.value.clause == "where"
    with pytest.raises(tapetum.QueryError, match="rows need a limit"):
        store.keyspace("papers").scan(order_by="year")
    with pytest.raises(tapetum.QueryError, match="distinct values are counted, and not added up"):
        store.keyspace("papers").scan(select="sum(distinct year)")


def test_libraries_take_the_rows(alone, store):
    duckdb, polars = (pytest.importorskip(name) for name in ("duckdb", "polars"))
    scan = pytest.importorskip("tapetum.polars").scan
    papers, count = store.keyspace("papers"), len(alone.keyspace("papers"))
    rows = papers.scan(select="id, venue")
    assert duckdb.sql("select count(distinct id) from rows").fetchall() == [(count,)]
    assert polars.DataFrame(rows).height == count
    assert scan(papers).filter(polars.col("year") > 2000).collect().height == rows_of(papers.scan(where="year > 2000", select="count(*)"))[1][0][0]


def test_the_store_has_what_all_nodes_have(servers, store):
    assert set(store.keyspaces()) == {"default", "mixed", "papers", "ordered"} and not store.closed
    assert list(store.path) == [served.address for served in servers] and set(store.stats()) == set(store.path)
    with pickle.loads(pickle.dumps(store)) as copy:
        assert copy.keyspaces() == store.keyspaces()
    assert len(pickle.loads(pickle.dumps(store.keyspace("papers")))) == len(store.keyspace("papers"))
    servers[1].command("keyspace", "create", "one")
    assert "one" not in store.keyspaces()
    with pytest.raises(tapetum.Error, match=f"node {servers[0].address}.*there is no keyspace 'one'"):
        store.keyspace("one")
    for place, kind in ((0, ["--index", "ordered"]), (2, [])):
        servers[place].command("keyspace", "create", "one", *kind)
    with pytest.raises(tapetum.Error, match=f"differs in kind: node {servers[0].address} has 'ordered', and node {servers[1].address} 'hashed'"):
        store.keyspace("one")
    for served in servers:
        served.command("keyspace", "drop", "one", "--yes")


def test_what_several_nodes_do_not_do(servers, store):
    with pytest.raises(tapetum.Error, match="no moment is common to several nodes"):
        store.freeze()
    with pytest.raises(tapetum.Error, match=r"node .*, key b'': .*the key is empty"):
        store.cas("", b"", None)
    assert store.cas("a", b"1", None) and store.gets("a")[0] == b"1"
    assert store.increment("a", 2) == 3 and store.decrement("a") == 2
    del store["a"]
    for addresses, told in [([], "no node is given"), ([servers[0].address] * 2, "given twice")]:
        with pytest.raises(tapetum.Error, match=told):
            tapetum.connect(addresses)
    with pytest.raises(tapetum.Error, match="node grpc://127.0.0.1:1: no server answers at grpc://127.0.0.1:1"):
        tapetum.connect([servers[0].address, "grpc://127.0.0.1:1"])


def test_names_of_nodes_stay_where_addresses_change(servers):
    names = dict(zip("abc", [served.address for served in servers], strict=True))
    with tapetum.connect(names) as store:
        store["key"] = b"value"
        assert store.node_of("key") == node_of("abc", b"key")
        part = store.nodes[store.node_of("key")]
        assert part["key"] == b"value" and part.address == names[store.node_of("key")]
        del store["key"]


def test_a_node_that_is_away_is_named(tmp_path):
    servers = [Served(tmp_path / f"{number}") for number in range(2)]
    for served in servers:
        served.command("keyspace", "create", "ordered", "--index", "ordered")
        served.command("keyspace", "format", "ordered", "key: id string; value: v bytes")
    with tapetum.connect([served.address for served in servers]) as store:
        ordered = store.keyspace("ordered")
        ordered.batch((f"{number:04}", bytes(40_000)) for number in range(1000))
        items, rows = ordered.scan("0"), ordered.scan(select="*")
        reader = pyarrow.RecordBatchReader.from_stream(rows)
        taken = [next(items) for _ in range(5)]
        next(reader)
        lost = servers[1].address
        servers[1].kill()
        with pytest.raises(tapetum.Error, match=f"node {lost}, keyspace 'ordered', prefix b'0', after b'.*': no server answers at {lost}"):
            for item in items:
                taken.append(item)
        assert items.cursor == taken[-1][0]
        with pytest.raises(pyarrow.ArrowException, match=f"node {lost}, keyspace 'ordered', all keys: no server answers at {lost}"):
            reader.read_all()
        with pytest.raises(pyarrow.ArrowException, match=f"node {lost}, keyspace 'ordered', all keys: no server answers at {lost}"):
            pyarrow.table(ordered.scan(select="count(*)"))
        keys = {ordered.node_of(key): key for key in "0123456789abcdefghijklmnopqrstuvwxyz"}
        with pytest.raises(tapetum.Error, match=f"node {lost}, keyspace 'ordered', key b'.': no server answers"):
            ordered.get(keys[lost])
        assert ordered.get(keys[servers[0].address]) is None
    servers[0].stop()
