"""A keyspace as a lazy frame of Polars: what goes down to the drive, and that rows are those that Polars would keep."""

import datetime
import struct

import pytest

import tapetum

polars = pytest.importorskip("polars")
import tapetum.polars  # noqa: E402

col = polars.col

FORMAT = "key: k string; value: t seconds32, o bool, f f64, n i8, b bytes8, s string"
TEXTS = ["it's", "a%b", "a_b", "back\\slash", "é", "", "VLDB", "VL"]
BEGIN = datetime.datetime(2001, 9, 9, 1, 46, 40, tzinfo=datetime.timezone.utc)


def record(number):
    """Values that would break a pattern or a literal, and NaN."""
    score = float("nan") if number % 16 == 3 else number / 2 - 4
    fixed = struct.pack("<I?db", int(BEGIN.timestamp()) + number, number % 2, score, number - 30)
    return f"m{number:03}", fixed + bytes([2, number, 255]) + TEXTS[number % len(TEXTS)].encode()


@pytest.fixture(scope="module", params=["served", "embedded"])
def keyspace(request, tmp_path_factory):
    records = [record(number) for number in range(64)]
    if request.param == "served":
        papers = request.getfixturevalue("papers")
        with tapetum.connect(papers.address) as store:
            ordered = store.keyspace("ordered")
            ordered.batch(records)
            yield ordered
            ordered.batch([(key, None) for key, _ in ordered.scan()])
    elif hasattr(tapetum, "Store"):
        with tapetum.Store.open(tmp_path_factory.mktemp("polars") / "data", capacity="64MiB", memory="64MiB") as store:
            ordered = store.keyspace("ordered", create=True, ordered=True)
            # A small store takes no batch of so many.
            for key, value in records:
                ordered.put(key, value)
            yield ordered
    else:
        pytest.skip("the package has no native module here")


class Asked:
    """A keyspace that notes what is asked of it."""

    def __init__(self, keyspace):
        self.keyspace, self.asked = keyspace, []

    def scan(self, **words):
        rows = self.keyspace.scan(**words)
        self.asked.append(words)
        return rows

    def frame(self, **options):
        frame = tapetum.polars.scan(self, **options)
        self.asked.clear()
        return frame


# An expression, and the condition that the drive decides; None, if it decides nothing, and … where Polars chooses among equal ones.
TRANSLATED = [
    (col("n") > 3, '"n" > 3'),
    (col("n") != -30, '"n" <> -30'),
    ((col("n") > 3) & (col("s") == "it's"), ...),
    (col("s") == "it's", "\"s\" = 'it''s'"),
    (col("s") > "a", "\"s\" > 'a'"),
    (col("s").str.starts_with("VL"), "\"s\" like 'VL%'"),
    (col("s").str.ends_with("_b"), "\"s\" like '%\\_b'"),
    (col("s").str.contains("a%", literal=True), "\"s\" like '%a\\%%'"),
    (col("s").str.contains("\\", literal=True), "\"s\" like '%\\\\%'"),
    (col("s").str.contains("LD"), "\"s\" like '%LD%'"),
    (col("s").str.contains("é"), "\"s\" like '%é%'"),
    (col("s").str.contains("^V.*B$"), None),
    (col("n").is_in([1, 2, 3]), '"n" in (1, 2, 3)'),
    (col("s").is_in(["VL", "it's"]), "\"s\" in ('VL', 'it''s')"),
    (~col("s").is_in(["VL", "it's"]), "not (\"s\" in ('VL', 'it''s'))"),
    (col("n").is_in([1, None]), None),
    (col("n").is_in([]), None),
    (col("n").is_in(list(range(-100, 100)) * 6), None),
    (col("n").is_between(1, 5), '("n" >= 1 and "n" <= 5)'),
    (col("n").is_between(1, 5, closed="none"), '("n" > 1 and "n" < 5)'),
    (col("s").is_null(), '"s" is null'),
    (col("s").is_not_null(), '"s" is not null'),
    (col("o"), '"o"'),
    (~col("o"), 'not ("o")'),
    (col("f") > 0, '"f" > 0.0'),
    (col("f") > 1e-7, '"f" > 1e-07'),
    (~(col("f") < 0.5), ...),
    (col("f") == float("nan"), None),
    (col("f").is_nan(), None),
    (col("f") < float("inf"), None),
    (col("f").is_in([0.5, 1.0]), '"f" in (0.5, 1.0)'),
    (col("b") == b"\x07\xff", "\"b\" = X'07ff'"),
    (col("b") > b"\x07", "\"b\" > X'07'"),
    (col("t") > BEGIN, "\"t\" > '2001-09-09 01:46:40'"),
    (col("t") > BEGIN + datetime.timedelta(seconds=9.5), "\"t\" > '2001-09-09 01:46:49.500000'"),
    ((col("n") < 0) | (col("s") == "é"), "(\"n\" < 0 or \"s\" = 'é')"),
    ((col("n") % 2 == 0) | (col("s") == "é"), None),
    ((col("n") % 2 == 0) & (col("s") == "é"), "\"s\" = 'é'"),
    (~((col("n") % 2 == 0) & (col("s") == "é")), None),
    ((col("n") + 1) * 2 > 9, None),
    (col("n") > 1.5, None),
    ((col("n") > 1).xor(col("o")), None),
    (col("n").eq_missing(3), None),
    (polars.any_horizontal(col("n") > 20, col("o")), '("n" > 20 or "o")'),
    (col("n") > 2**63, None),
    (polars.lit(True), None),
    (col("s").str.len_chars() > 3, None),
    (col("s") == "a\0b", None),
]


@pytest.mark.parametrize("expression, condition", TRANSLATED, ids=[str(number) for number in range(len(TRANSLATED))])
def test_a_filter_is_decided_at_the_drive_as_polars_does(keyspace, expression, condition):
    asked = Asked(keyspace)
    whole = polars.DataFrame(keyspace.scan(select="*", fields=FORMAT))
    found = asked.frame(fields=FORMAT).filter(expression).collect()
    assert found.sort("k").equals(whole.filter(expression).sort("k"))
    (words,) = asked.asked
    if condition is not ...:
        assert words.get("where") == condition


def test_columns_and_limits_go_down(keyspace):
    asked = Asked(keyspace)
    frame = asked.frame(fields=FORMAT)
    assert frame.collect_schema().names() == ["k", "t", "o", "f", "n", "b", "s"] and asked.asked == []
    assert frame.select("s", "k").head(3).collect().columns == ["s", "k"]
    (words,) = asked.asked
    assert set(words["select"].split(", ")) == {'"s"', '"k"'} and words["limit"] == 3
    asked.asked.clear()
    # The limit comes first.
    assert frame.head(3).filter(col("n") > 100).collect().height == 0
    assert [(words.get("where"), words["limit"]) for words in asked.asked] == [(None, 3)]
    asked.asked.clear()
    assert frame.filter(col("n") >= 0).head(3).collect().height == 3
    assert frame.select(polars.len()).collect().item() == 64
    assert frame.filter(col("o")).group_by("s").agg(polars.len()).collect()["len"].sum() == 32
    assert frame.join(frame, on="k").select(polars.len()).collect(engine="streaming").item() == 64
    assert frame.filter(col("n") > 0).select("f").explain().count("SELECTION") == 1


def test_a_range_and_records_that_do_not_fit(keyspace):
    assert tapetum.polars.scan(keyspace, fields=FORMAT, start="m010", end="m020").collect().height == 10
    assert tapetum.polars.scan(keyspace, fields=FORMAT, prefix="m01").filter(col("o")).collect().height == 5
    long = "key: k string; value: a u64, b u64, c u64, d u64"
    with pytest.raises(Exception, match="does not fit the format"):
        tapetum.polars.scan(keyspace, fields=long).collect()
    assert tapetum.polars.scan(keyspace, fields=long, on_error="skip").collect().height == 0
    with pytest.raises(tapetum.Error, match="the format of the records is not known"):
        tapetum.polars.scan(keyspace)
    with pytest.raises(tapetum.QueryError):
        tapetum.polars.scan(keyspace, fields="key: k strin")


def test_the_rows_of_the_command_line(papers):
    with tapetum.connect(papers.address) as store:
        frame = tapetum.polars.scan(store.keyspace("papers"))
        found = frame.filter((col("venue") == "VLDB") & (col("year") >= 2000)).select("id", "title").collect()
        wanted = papers.printed("papers", "--where", "venue = 'VLDB' and year >= 2000", "--select", "id, title")
        assert sorted((str(key), title) for key, title in found.rows()) == sorted(wanted)
        with store.freeze() as freeze:
            assert tapetum.polars.scan(freeze.keyspace("papers")).collect().height == len(store.keyspace("papers"))
