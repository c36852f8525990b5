"""Random queries, whose rows are compared with DuckDB's over the same table and with those of `tapetum scan`."""

import io
import os
import random
import unittest

import duckdb
import pyarrow as pa
import pyarrow.csv

from served import Served

# So many; a tenth of them is compared with the command too.
QUERIES = int(os.environ.get("TAPETUM_QUERIES", "300"))
FIELDS = "key: id u32be; value: year u16le, score f64le, big u64le, small i16be, venue string8, ok bool, pages u16le?"
ROWS = 2000


def made(chance):
    numbers = range(ROWS)
    scores = [chance.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -1e300, chance.uniform(-5, 5)]) for _ in numbers]
    return pa.table({
        "id": pa.array(numbers, pa.uint32()),
        "year": pa.array([chance.randrange(1980, 2020) for _ in numbers], pa.int64()),
        "score": scores,
        "big": pa.array([chance.choice([0, 2**63 - 1, 2**63, 2**64 - 1, chance.randrange(2**64)]) for _ in numbers], pa.uint64()),
        "small": pa.array([chance.randrange(-300, 300) for _ in numbers], pa.int64()),
        "venue": [chance.choice(["VLDB", "SIGMOD", "", "it's", "naïve %_"]) for _ in numbers],
        "ok": [chance.random() < 0.5 for _ in numbers],
        "pages": pa.array([chance.choice([None, chance.randrange(40)]) for _ in numbers], pa.int64()),
    })


def condition(chance, depth=2):
    if depth and chance.random() < 0.5:
        word = chance.choice(["and", "or"])
        return f"({condition(chance, depth - 1)} {word} {condition(chance, depth - 1)})"
    if depth and chance.random() < 0.15:
        return f"(not {condition(chance, depth - 1)})"
    compare = chance.choice(["=", "<>", "<", "<=", ">", ">="])
    return chance.choice([
        lambda: f"year {compare} {chance.randrange(1975, 2025)}",
        lambda: f"small {compare} {chance.randrange(-300, 300)}",
        lambda: f"small + year {compare} {chance.randrange(1500, 2500)}",
        lambda: f"big {compare} {chance.choice([0, 2**63, 2**64 - 1, chance.randrange(2**64)])}",
        lambda: f"score {compare} {chance.choice(['0.0', '1.5', '-2.25'])}",
        lambda: f"pages {compare} {chance.randrange(40)}",
        lambda: f"pages is {chance.choice(['', 'not '])}null",
        lambda: f"venue {compare} {chance.choice(['VLDB', 'SIGMOD', ''])!r}",
        lambda: f"venue in ('VLDB', 'it''s')",
        lambda: f"venue {chance.choice(['', 'not '])}like {chance.choice(['%L%', 'V___', '%ï%', '']) !r}",
        lambda: f"year between {chance.randrange(1980, 2000)} and {chance.randrange(1990, 2020)}",
        lambda: f"{chance.choice(['', 'not '])}ok",
    ])()


def query(chance):
    """Clauses of a query whose result depends on no order, or on one that is whole."""
    where = condition(chance) if chance.random() < 0.9 else None
    if chance.random() < 0.4:
        keys = chance.sample(["venue", "year", "ok", "pages"], chance.randrange(1, 3))
        sums = ["count(*) as n", "count(pages) as p", "sum(small) as s", "min(big) as least", "max(year) as y",
                "count(distinct year) as years"]
        chosen = chance.sample(sums, chance.randrange(1, 4))
        having = "count(*) > 3" if chance.random() < 0.3 else None
        return {"select": ", ".join(keys + chosen), "where": where, "group_by": ", ".join(keys), "having": having}
    columns = chance.sample(["id", "year", "score", "big", "small", "venue", "ok", "pages", "small * 2 as twice"],
                            chance.randrange(1, 5))
    if chance.random() < 0.3:
        return {"select": ", ".join(["id", *[column for column in columns if column != "id"]]), "where": where,
                "order_by": chance.choice(["id", "id desc"]), "limit": chance.randrange(1, 40)}
    distinct = "distinct " if chance.random() < 0.2 else ""
    return {"select": distinct + ", ".join(columns), "where": where}


def statement(clauses):
    words = [("where", "where"), ("group_by", "group by"), ("having", "having"), ("order_by", "order by"), ("limit", "limit")]
    rest = [f"{word} {clauses[name]}" for name, word in words if clauses.get(name) is not None]
    return " ".join([f"select {clauses['select']} from papers", *rest])


def shown(table, is_ordered):
    """Rows that compare: floats as texts, because NaN equals nothing; -0 is shown as 0."""
    def value(of):
        return repr(of + 0.0) if isinstance(of, float) else of
    rows = [tuple(value(of) for of in row.values()) for row in table.to_pylist()]
    return rows if is_ordered else sorted(rows, key=repr)


class TestJudge(unittest.TestCase):
    def test_rows_are_those_of_duckdb_and_of_the_command(self):
        seed = int(os.environ.get("TAPETUM_SEED", random.randrange(2**32)))
        chance = random.Random(seed)
        server = Served("flight-judge")
        self.addCleanup(server.close)
        server.keyspace("papers", FIELDS)
        papers = made(chance)
        self.assertEqual(server.put("papers", papers), ROWS)
        judge = duckdb.connect()
        judge.register("papers", papers)
        with server.cursor() as cursor:
            for number in range(QUERIES):
                clauses = query(chance)
                sql, is_ordered = statement(clauses), "order_by" in clauses
                with self.subTest(seed=seed, number=number, sql=sql):
                    cursor.execute(sql)
                    got = cursor.fetch_arrow_table()
                    judged = judge.execute(sql).to_arrow_table()
                    self.assertEqual(shown(got, is_ordered), shown(judged, is_ordered))
                    if number % 10 == 0:
                        self.assertEqual(self.commanded(server, clauses, got), shown(got, False))

    def commanded(self, server, clauses, got):
        options = [(f"--{name.replace('_', '-')}", value) for name, value in clauses.items() if value is not None]
        words = [str(word) for option in options for word in option]
        text = server.run("scan", "papers", *words, "--format", "csv")
        types = pa.csv.ConvertOptions(column_types=got.schema, strings_can_be_null=True, quoted_strings_can_be_null=False,
                                      null_values=[""], true_values=["true"], false_values=["false"])
        # A row whose only column is NULL is an empty line.
        lines = pa.csv.ParseOptions(ignore_empty_lines=False)
        return shown(pa.csv.read_csv(io.BytesIO(text.encode()), parse_options=lines, convert_options=types), False)


if __name__ == "__main__":
    unittest.main()
