"""What clients should not send: each is told so, and nobody else is harmed."""

import json
import socket
import unittest

import pyarrow as pa
import pyarrow.flight as flight

from served import PATIENCE, Served, command_descriptor, key, read


class TestBadInput(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served("flight-bad-input")
        cls.addClassCleanup(cls.server.close)
        cls.server.keyspace("k", "key: id u32be; value: n i64le")
        cls.server.keyspace("plain")
        cls.client = cls.server.client()
        cls.addClassCleanup(cls.client.close)
        cls.server.put("k", pa.table({"id": [1, 2], "n": [10, 20]}))

    def tearDown(self):
        # It still serves.
        self.assertEqual(read(self.client, command_descriptor(query={"keyspace": "k", "select": "count(*) as n"}))["n"].to_pylist(), [2])

    def refused(self, what, told):
        with self.assertRaises(Exception) as refused:
            what()
        self.assertRegex(str(refused.exception), told)

    def test_statements_of_ten_megabytes_and_of_depth_ten_thousand(self):
        for sql in (f"SELECT id FROM k WHERE n = {'1 + ' * 2_500_000} 1", f"SELECT {'(' * 10_000}1{')' * 10_000} FROM k",
                    f"SELECT id FROM k WHERE {'not ' * 10_000} true", f"SELECT id FROM k WHERE n in ({'1,' * 100_000}1)"):
            self.refused(lambda: self.server.rows(sql), "long|deep|at most|bytes|lie in each other")

    def test_ten_thousand_prepared_statements_of_one_client(self):
        with self.server.cursor() as cursor:
            for number in range(10_000):
                body = prepare_body(f"SELECT id FROM k WHERE n = {number}")
                list(self.client.do_action(flight.Action("CreatePreparedStatement", body), PATIENCE))
            cursor.execute("SELECT n FROM k WHERE id = ?", (2,))
            self.assertEqual(cursor.fetchall(), [(20,)])

    def test_messages_of_more_than_sixteen_megabytes(self):
        table = pa.table({"key": pa.array([b"a"], pa.binary()), "value": pa.array([bytes(17 << 20)], pa.binary())})
        self.refused(lambda: self.server.put("plain", table), "16777216|larger|too large|length")
        self.refused(lambda: self.client.get_flight_info(flight.FlightDescriptor.for_command(b"x" * (17 << 20)), PATIENCE),
                     "16777216|larger|too large|length")

    def test_what_is_no_command(self):
        for descriptor, told in [
            (flight.FlightDescriptor.for_command(b"\xff\xff nonsense"), "descriptor"),
            (flight.FlightDescriptor.for_command(b""), "descriptor"),
            (flight.FlightDescriptor.for_command(b"{"), "command"),
            (flight.FlightDescriptor.for_path("a", "b"), "descriptor"),
            (flight.FlightDescriptor.for_path("nope"), "no keyspace"),
            (command_descriptor(query={"keyspace": "k", "selekt": "n"}), "selekt"),
            (command_descriptor(query={"keyspace": "k", "select": "n +"}), "select"),
            (command_descriptor(query={"keyspace": "k", "freeze": 99}), "freeze 99"),
            (command_descriptor(items={"keyspace": "k", "range": {"from": key(b"a")}}), "ordered"),
            (command_descriptor(put={"keyspace": "k"}), "DoPut"),
        ]:
            self.refused(lambda: read(self.client, descriptor), told)
        for ticket in (b"", b"\xff nonsense", b"TPT1", b"TPT1" + bytes(2 << 20)):
            self.refused(lambda: self.client.do_get(flight.Ticket(ticket), PATIENCE).read_all(), "ticket|snapshot too old")

    def test_actions_that_make_no_sense(self):
        for name, body, told in [
            ("nope", b"", "no action"),
            ("tapetum.get", b"{", "makes no sense"),
            ("tapetum.get", json.dumps({"keyspace": "k", "keys": ["?"]}).encode(), "base64"),
            ("tapetum.get", json.dumps({"keyspace": "k", "keys": [""]}).encode(), "empty"),
            ("tapetum.get", json.dumps({"keyspace": "k", "keys": ["YQ=="] * 10_001}).encode(), "10000"),
            ("tapetum.freeze", json.dumps({"owner": "x", "seconds": -1}).encode(), "seconds"),
            ("tapetum.freeze", json.dumps({"owner": "x", "seconds": 1e300}).encode(), "hours"),
            ("tapetum.release_freeze", json.dumps({"id": 12345}).encode(), "no freeze"),
            ("CreatePreparedStatement", b"\xff", "makes no sense"),
            ("RenewFlightEndpoint", b"", "endpoint"),
        ]:
            self.refused(lambda: list(self.client.do_action(flight.Action(name, body), PATIENCE)), told)
        for body in (b"", b"\x00", b"\xff\xff\xff", b"\x03\x00", b"\x03\x00\xff\xff\xff\xff"):
            frames = [result.body.to_pybytes() for result in self.client.do_action(flight.Action("tapetum.request", body), PATIENCE)]
            self.assertEqual(frames[-1][4], 5, "the last frame tells of a failure")

    def test_rows_that_do_not_fit(self):
        for table, told in [
            (pa.table({"id": [3], "n": ["x"]}), "give it that type"),
            (pa.table({"id": [3, -1], "n": [1, 1]}), "row 1 .*id is not from 0"),
            (pa.table({"id": [3]}), "row 0 .*n is NULL"),
            (pa.table({"id": [3], "n": [1], "more": [1]}), "no field"),
            (pa.table({"id": [3], "n": pa.array([1], pa.decimal128(9, 2))}), "cents"),
        ]:
            self.refused(lambda: self.server.put("k", table), told)
        self.refused(lambda: self.server.put("plain", pa.table({"a": [1]})), "key and value")

    def test_what_changes_keyspaces_and_sizes_is_refused(self):
        for words in (["keyspace", "create", "x"], ["keyspace", "drop", "k", "--yes"], ["keyspace", "format", "k", "--remove"],
                      ["resize", "--capacity", "4GiB"], ["backup", "create", str(self.server.data) + "-backup"]):
            with self.subTest(words):
                from served import command
                done = command(*words, "--server", self.server.address, check=False)
                self.assertNotEqual(done.returncode, 0)
                self.assertIn("owner", done.stderr)

    def test_another_protocol_at_the_port(self):
        for said in (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00nonsense", b"\x00" * 100):
            with socket.create_connection(("127.0.0.1", self.server.flight_port), timeout=10) as connection:
                connection.sendall(said)
                connection.settimeout(10)
                try:
                    while connection.recv(4096):
                        pass
                except (ConnectionError, TimeoutError) as error:
                    self.assertIsInstance(error, ConnectionError, "the connection ends")

    def test_addresses_that_others_reach_are_refused(self):
        from served import command
        for address in ("0.0.0.0:0", "[::]:0"):
            done = command("serve", "--data", str(self.server.data) + "-open", "--flight", address, "--memcached", "none", check=False)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("or --insecure if something else decides who connects", done.stderr)


def prepare_body(sql):
    """An ActionCreatePreparedStatementRequest, as an Any."""
    def field(number, data):
        assert len(data) < 128
        return bytes([number * 8 + 2, len(data)]) + data
    name = b"type.googleapis.com/arrow.flight.protocol.sql.ActionCreatePreparedStatementRequest"
    return field(1, name) + field(2, field(1, sql.encode()))


if __name__ == "__main__":
    unittest.main()
