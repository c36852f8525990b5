"""Flight SQL through ADBC's driver: statements, parameters, the catalog, types, refusals."""

import datetime
import unittest

import pyarrow as pa

from served import Served

FIELDS = "key: id u32be; value: year u16le, venue string8, score f64le, big u64le, at micros64le, ok bool, raw bytes8, pages u16le?"
AT = datetime.datetime(2001, 2, 3, 4, 5, 6, 789, tzinfo=datetime.timezone.utc)


def papers(count):
    return pa.table({
        "id": pa.array(range(count), pa.uint32()),
        "year": pa.array([1990 + n % 20 for n in range(count)], pa.int16()),
        "venue": [["VLDB", "SIGMOD", "it's"][n % 3] for n in range(count)],
        "score": [n / 4 if n % 5 else float("nan") for n in range(count)],
        "big": pa.array([2**64 - 1 - n for n in range(count)], pa.uint64()),
        "at": pa.array([AT + datetime.timedelta(seconds=n) for n in range(count)], pa.timestamp("us", "UTC")),
        "ok": [n % 2 == 0 for n in range(count)],
        "raw": pa.array([bytes([n % 256]) for n in range(count)], pa.binary()),
        "pages": pa.array([n if n % 4 else None for n in range(count)], pa.int64()),
    })


class TestStatements(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served("flight-statements")
        cls.addClassCleanup(cls.server.close)
        cls.server.keyspace("papers", FIELDS)
        cls.server.keyspace("plain")
        cls.table = papers(300)
        assert cls.server.put("papers", cls.table) == 300

    def test_rows_come_as_they_were_put(self):
        rows = self.server.rows("SELECT * FROM papers").sort_by("id")
        for name in self.table.column_names:
            with self.subTest(name):
                self.assertEqual(str(rows[name].to_pylist()), str(self.table[name].to_pylist()))

    def test_the_advertised_schema_is_the_streamed_one(self):
        with self.server.cursor() as cursor:
            for sql in ("SELECT * FROM papers", "SELECT 1 AS one, 'x' AS x", "SELECT count(*), avg(score) FROM papers",
                        "SELECT year + 1 AS next, venue FROM papers WHERE id < 0"):
                advertised = cursor.adbc_execute_schema(sql)
                cursor.execute(sql)
                self.assertEqual(cursor.fetch_arrow_table().schema, advertised, sql)

    def test_groups_are_chosen_and_ordered(self):
        rows = self.server.rows(
            "SELECT p.venue AS where_, count(*) AS n, count(DISTINCT year) AS years FROM tapetum.main.papers AS p "
            "WHERE p.year >= 1995 AND venue LIKE '%L%' GROUP BY p.venue HAVING count(*) > 1 ORDER BY n DESC LIMIT 5")
        self.assertEqual(rows.to_pydict(), {"where_": ["VLDB"], "n": [75], "years": [15]})
        rows = self.server.rows("SELECT DISTINCT venue FROM papers ORDER BY venue LIMIT 2")
        self.assertEqual(rows.to_pydict(), {"venue": ["SIGMOD", "VLDB"]})

    def test_parameters_have_the_values_that_were_given(self):
        for sql, values, ids in [
            ("id < ? AND venue = ?", (10, "it's"), [2, 5, 8]),
            ("big = ?", (2**64 - 3,), None),
            ("at = ?", (AT + datetime.timedelta(seconds=7),), [7]),
            ("raw = ? AND id < 256", (b"\x05",), [5]),
            ("ok = ? AND id < ?", (True, 5), [0, 2, 4]),
            ("score = ? AND id < 12", (float("nan"),), [0, 5, 10]),
            ("pages = ?", (None,), []),
            ("venue = ?", ("'; DROP",), []),
        ]:
            with self.subTest(sql):
                if isinstance(values[0], int) and values[0] >= 2**63:
                    values, ids = pa.record_batch([pa.array(values, pa.uint64())], ["1"]), [2]
                rows = self.server.rows(f"SELECT id FROM papers WHERE {sql}", values)
                self.assertEqual(sorted(rows["id"].to_pylist()), ids)

    def test_the_catalog_has_the_keyspaces(self):
        with self.server.cursor() as cursor:
            connection = cursor.connection
            self.assertEqual(connection.adbc_get_info()["vendor_name"], "tapetum")
            [catalog] = connection.adbc_get_objects(depth="all").read_all().to_pylist()
            self.assertEqual(catalog["catalog_name"], "tapetum")
            [schema] = catalog["catalog_db_schemas"]
            tables = {table["table_name"]: [column["column_name"] for column in table["table_columns"]]
                      for table in schema["db_schema_tables"]}
            self.assertEqual(tables["papers"], self.table.column_names)
            self.assertEqual(tables["plain"], ["key", "value"])
            self.assertEqual(connection.adbc_get_table_types(), ["TABLE"])
            [catalog] = connection.adbc_get_objects(depth="tables", table_name_filter="pa%").read_all().to_pylist()
            [table] = catalog["catalog_db_schemas"][0]["db_schema_tables"]
            self.assertEqual(table["table_name"], "papers")
            self.assertEqual(connection.adbc_get_table_schema("papers").field("big").type, pa.uint64())

    def test_what_the_drive_does_not_do_is_refused_in_words(self):
        for sql, told in [
            ("SELECT * FROM papers p JOIN plain q ON p.id = q.key", "DuckDB"),
            ("SELECT id, row_number() OVER (ORDER BY id) FROM papers", "DuckDB"),
            ("SELECT id FROM (SELECT id FROM papers) x", "DuckDB"),
            ("SELECT id FROM papers UNION SELECT id FROM papers", "DuckDB"),
            ("WITH x AS (SELECT 1) SELECT * FROM x", "DuckDB"),
            ("SELECT nope FROM papers", "no such field"),
            ("SELECT id FROM nope", "has no keyspace"),
            ("SELECT id FROM other.papers", "schema"),
            ("INSERT INTO papers VALUES (1)", "ingest"),
            ("DELETE FROM papers", "tapetum delete"),
            ("CREATE TABLE x (y INT)", "keyspace create"),
            ("SELECT id FROM papers WHERE id = ?", "parameter"),
            ("SELEC 1", "column"),
            (";", "statement"),
        ]:
            with self.subTest(sql), self.assertRaises(Exception) as refused:
                self.server.rows(sql)
            self.assertIn(told, str(refused.exception), sql)


if __name__ == "__main__":
    unittest.main()
