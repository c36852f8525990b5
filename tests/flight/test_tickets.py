"""Tickets: asked again, renewed, forged, of another server, too old."""

import json
import time
import unittest

import pyarrow as pa
import pyarrow.flight as flight

from served import PATIENCE, Served, command_descriptor, key, read

QUERY = command_descriptor(query={"keyspace": "k", "fields": "key: n string; value: v string", "select": "n, v"})


def items(pairs):
    return pa.table({"key": pa.array([pair[0] for pair in pairs], pa.binary()),
                     "value": pa.array([pair[1] for pair in pairs], pa.binary())})


class TestTickets(unittest.TestCase):
    def setUp(self):
        self.server = Served("flight-tickets")
        self.addCleanup(self.server.close)
        self.server.keyspace("k")
        self.server.put("k", items([(b"a", b"1"), (b"b", b"2")]))
        self.client = self.server.client()
        self.addCleanup(self.client.close)

    def rows(self, ticket):
        return sorted(self.client.do_get(ticket, PATIENCE).read_all().to_pydict()["v"])

    def test_a_ticket_that_is_shown_again_gives_the_same_rows(self):
        before = self.client.get_flight_info(QUERY).endpoints[0]
        self.server.put("k", items([(b"a", b"3"), (b"c", b"4")]))
        [deleted] = self.client.do_action(flight.Action("tapetum.delete", json.dumps({"keyspace": "k", "keys": [key(b"b")]}).encode()))
        self.assertEqual(json.loads(deleted.body.to_pybytes()), {"deleted": 1})
        after = self.client.get_flight_info(QUERY).endpoints[0]
        for _ in range(3):
            self.assertEqual(self.rows(before.ticket), ["1", "2"])
        self.assertEqual(self.rows(after.ticket), ["3", "4"])

    def test_what_was_put_before_is_seen(self):
        for number in range(30):
            self.server.put("k", items([(b"a", b"%d" % number)]))
            self.assertIn(str(number), read(self.client, QUERY)["v"].to_pylist())

    def test_a_renewed_ticket_is_good_for_longer(self):
        endpoint = self.client.get_flight_info(QUERY).endpoints[0]
        time.sleep(1.1)
        [renewed] = self.client.do_action(flight.Action("RenewFlightEndpoint", b"\x0a" + self.sized(endpoint.serialize())))
        later = flight.FlightEndpoint.deserialize(renewed.body.to_pybytes())
        self.assertGreater(later.expiration_time.as_py(), endpoint.expiration_time.as_py())
        self.assertEqual(self.rows(later.ticket), ["1", "2"])

    @staticmethod
    def sized(message):
        """A message within another one: its length, seven bits a byte, and itself."""
        size, length = len(message), bytearray()
        while size >= 128:
            length.append(size % 128 + 128)
            size //= 128
        return bytes([*length, size]) + message

    def test_a_ticket_that_was_changed_is_refused(self):
        ticket = self.client.get_flight_info(QUERY).endpoints[0].ticket.ticket
        for at in (0, 4, 11, len(ticket) // 2, len(ticket) - 1):
            changed = bytearray(ticket)
            changed[at] ^= 1
            with self.subTest(at), self.assertRaises(Exception) as refused:
                self.rows(flight.Ticket(bytes(changed)))
            self.assertRegex(str(refused.exception), "ticket|snapshot too old")

    def test_tickets_of_another_server_and_of_before_a_restart_are_too_old(self):
        ticket = self.client.get_flight_info(QUERY).endpoints[0].ticket
        other = Served("flight-other")
        self.addCleanup(other.close)
        with other.client() as client, self.assertRaises(Exception) as refused:
            client.do_get(ticket, PATIENCE).read_all()
        self.assertIn("snapshot too old", str(refused.exception))
        self.server.restart()
        with self.server.client() as client, self.assertRaises(Exception) as refused:
            client.do_get(ticket, PATIENCE).read_all()
        self.assertIn("snapshot too old", str(refused.exception))

    def test_a_scan_in_order_goes_on_at_its_cursor_in_both_directions(self):
        self.server.keyspace("o", ordered=True)
        self.server.put("o", items([(b"%04d" % n, b"v%d" % n) for n in range(100)]))
        for reverse, bound in ((False, "after"), (True, "before")):
            seen, last = [], None
            while True:
                spans = {"reverse": reverse} | ({bound: key(last)} if last else {})
                page = read(self.client, command_descriptor(items={"keyspace": "o", "limit": 7, "range": spans}))
                if page.num_rows == 0:
                    break
                seen += page["key"].to_pylist()
                last = seen[-1]
            self.assertEqual(seen, sorted([b"%04d" % n for n in range(100)], reverse=reverse))
        spans = {"from": key(b"0010"), "before": key(b"0013")}
        page = read(self.client, command_descriptor(items={"keyspace": "o", "range": spans}))
        self.assertEqual(page["key"].to_pylist(), [b"0010", b"0011", b"0012"])


if __name__ == "__main__":
    unittest.main()
