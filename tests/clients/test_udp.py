"""Requests in datagrams, by a client as small as one can be: no client on PyPI speaks memcached's UDP. The same bytes beside
memcached are compared by tests/differential/datagrams.py; here is what a user of both doors sees."""

import socket
import struct
import time
import unittest

from adapters import Text
from server import IS_MEMCACHED, Server, free_port

FRAME = struct.Struct(">HHHH")
PAYLOAD_BYTES_MAX = 1400 - FRAME.size


class Datagrams:
    def __init__(self, port):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.connect(("127.0.0.1", port))
        self.socket.settimeout(60)
        self.request_id = 0

    def close(self):
        self.socket.close()

    def send(self, payload):
        self.request_id = (self.request_id + 1) % 65536
        self.socket.send(FRAME.pack(self.request_id, 0, 1, 0) + payload)

    def ask(self, payload):
        """The reply, put together from its datagrams, which may come in any order."""
        self.send(payload)
        parts, count = {}, None
        while count is None or len(parts) < count:
            datagram = self.socket.recv(65536)
            request_id, number, count, _ = FRAME.unpack_from(datagram)
            assert request_id == self.request_id and number < count and number not in parts, datagram[:8]
            parts[number] = datagram[FRAME.size:]
        assert all(len(parts[number]) == PAYLOAD_BYTES_MAX for number in range(count - 1))
        return b"".join(parts[number] for number in range(count))


@unittest.skipIf(IS_MEMCACHED, "memcached is compared by tests/differential")
class Udp(unittest.TestCase):
    def start(self, *options):
        port = free_port()
        server = Server("udp", ["--udp", str(port), *options])
        self.addCleanup(server.close)
        datagrams, text = Datagrams(port), Text(server.port)
        self.addCleanup(datagrams.close)
        self.addCleanup(text.close)
        return server, datagrams, text

    def test_both_doors_show_the_same_items_before_and_after_a_restart(self):
        server, datagrams, text = self.start()
        values = {f"key{number}": bytes([number % 251]) * (number * 37) for number in range(0, 1000, 3)}
        for key, value in values.items():
            self.assertEqual(datagrams.ask(b"set %s 0 0 %d\r\n%s\r\n" % (key.encode(), len(value), value)), b"STORED\r\n")
            self.assertEqual(text.get(key), value)
        text.close()
        server.restart()
        for key, value in values.items():
            reply = b"VALUE %s 0 %d\r\n%s\r\nEND\r\n" % (key.encode(), len(value), value)
            self.assertEqual(datagrams.ask(b"get %s\r\n" % key.encode()), reply)

    def test_a_stranger_gets_little_for_little(self):
        _, datagrams, text = self.start("--udp-allow", "192.0.2.0/24")
        text.set("key", b"v" * 100)
        hit = b"VALUE key 0 100\r\n" + b"v" * 100 + b"\r\nEND\r\n"
        self.assertEqual(datagrams.ask(b"get key\r\n"), b"SERVER_ERROR too large for UDP\r\n")
        self.assertEqual(datagrams.ask(b"get key" + b" " * 40 + b"\r\n"), hit)
        for silent in (b"stats\r\n", b"delete key\r\n", b"flush_all noreply\r\n", b"nonsense\r\n"):
            datagrams.send(silent)
        # What is answered next is what is asked next.
        self.assertEqual(datagrams.ask(b"get none\r\n"), b"END\r\n")
        self.assertEqual(text.get("key"), b"v" * 100)
        stats = text.stats()
        counted = {name: int(stats[f"udp_{name}"]) for name in ("received", "answered", "sent", "refused_size",
                                                              "dropped_not_allowed", "dropped_no_request")}
        self.assertEqual(counted, {"received": 7, "answered": 3, "sent": 3, "refused_size": 1,
                                   "dropped_not_allowed": 3, "dropped_no_request": 1})

    def test_what_there_is_no_memory_for_is_not_answered(self):
        server, datagrams, text = self.start()
        large = b"v" * 100_000
        text.set("large", large)
        text.set("small", b"v")
        # All that clients may hold, and more, by values that are not whole yet.
        sets = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(2)]
        for connection in sets:
            self.addCleanup(connection.close)
            connection.sendall(b"set held 0 0 16000000\r\n" + b"v" * 15_999_000)
        while int(text.stats()["bytes_read"]) < 2 * 15_999_000:
            pass
        for _ in range(50):
            datagrams.ask(b"get small\r\n")
        datagrams.send(b"get large\r\n")
        # What is answered next is what is asked next.
        self.assertEqual(datagrams.ask(b"get small\r\n"), b"VALUE small 0 1\r\nv\r\nEND\r\n")
        # The answer may be here before the store has said how long the other value is.
        deadline = time.monotonic() + 30
        while int(text.stats()["udp_dropped_busy"]) != 1:
            self.assertLess(time.monotonic(), deadline, "nothing was dropped, or more than the one")
        for connection in sets:
            connection.sendall(b"v" * 1000 + b"\r\n")
        for connection in sets:
            self.assertEqual(connection.recv(8), b"STORED\r\n")
        self.assertEqual(datagrams.ask(b"get large\r\n"), b"VALUE large 0 100000\r\n" + large + b"\r\nEND\r\n")
