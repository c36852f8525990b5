"""Large values that nobody expected: they come as there is room for them, and keep nobody waiting for ever."""

import os
import pathlib
import re
import socket
import unittest
from concurrent.futures import ThreadPoolExecutor

from server import Server, IS_MEMCACHED

LARGE_BYTES = (16 << 20) - 512
LARGE_KEYS = 4
# More than the kernel holds for a client of a Unix socket, and little of a long value.
UNREAD_BYTES = 260 << 10


def resident_max_mebibytes(process):
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) >> 10


@unittest.skipIf(IS_MEMCACHED, "memcached keeps its memory apart")
class Memory(unittest.TestCase):
    def setUp(self):
        # Paths of sockets are short.
        self.path = f"/tmp/tapetum-memory-{os.getpid()}"
        self.server = Server("memory", ["--threads", "1", "--memcached", f"unix:{self.path}"])
        self.addCleanup(self.server.close)
        # In an extent of its own, in its record, and compressed to nearly nothing.
        self.values = {"large": os.urandom(LARGE_BYTES), "long": os.urandom(3 << 20), "even": b"v" * LARGE_BYTES}
        connection, replies = self.connect()
        for name, value in [*self.values.items(), ("small", b"v")]:
            for number in range(LARGE_KEYS):
                connection.sendall(b"set %s%d 0 0 %d\r\n%s\r\n" % (name.encode(), number, len(value), value))
                self.assertEqual(replies.readline(), b"STORED\r\n")

    def connect(self):
        connection = socket.create_connection(("127.0.0.1", self.server.port), timeout=60)
        replies = connection.makefile("rb")
        self.addCleanup(connection.close)
        self.addCleanup(replies.close)
        return connection, replies

    def expect_small_values(self, connection, replies):
        """Of a client that asked for such the server expects more of the kind."""
        for _ in range(50):
            connection.sendall(b"get small0\r\n")
            self.assertEqual(replies.readline() + replies.readline(), b"VALUE small0 0 1\r\nv\r\n")
            self.assertEqual(replies.readline(), b"END\r\n")

    def test_many_at_once_stay_within_the_budget(self):
        for command in (b"get %s%d\r\n", b"mg %s%d v\r\n", b"gat 0 %s%d\r\n"):
            for name, value in self.values.items():
                connection, replies = self.connect()
                self.expect_small_values(connection, replies)
                gets = 40
                connection.sendall(b"".join(command % (name.encode(), at % LARGE_KEYS) for at in range(gets)))
                for _ in range(gets):
                    head = replies.readline()
                    self.assertRegex(head, rb"^VA(LUE \S+ 0)? %d\r\n$" % len(value))
                    self.assertTrue(replies.read(len(value)) == value, (command, name))
                    self.assertEqual(replies.readline(), b"\r\n")
                    if not command.startswith(b"mg"):
                        self.assertEqual(replies.readline(), b"END\r\n")
                self.assertLess(resident_max_mebibytes(self.server.process), 256, (command, name))

    def test_counts_by_prefix_that_nobody_reads_stay_within_the_budget(self):
        connection, replies = self.connect()
        keys = [b"%06d%s:k" % (number, b"x" * 230) for number in range(10_000)]
        connection.sendall(b"stats detail on\r\n" + b"".join(b"get %s\r\n" % key for key in keys) + b"stats detail dump\r\n")
        self.assertEqual(replies.readline(), b"OK\r\n")
        for _ in keys:
            self.assertEqual(replies.readline(), b"END\r\n")
        lines = list(iter(replies.readline, b"END\r\n"))
        self.assertLessEqual(sum(len(line) for line in lines), 2 << 20)
        self.assertEqual(lines[0], b"PREFIX %s get 1 hit 0 set 0 del 0\r\n" % keys[0][:-2])
        lazy = [self.connect()[0] for _ in range(300)]
        for client in lazy:
            client.sendall(b"stats detail dump\r\n")
        # Its turn comes when the server has looked at theirs.
        connection.sendall(b"version\r\n" * 10)
        for _ in range(10):
            self.assertTrue(replies.readline().startswith(b"VERSION "))
        self.assertLess(resident_max_mebibytes(self.server.process), 256)
        for client in lazy[:3]:
            with client.makefile("rb") as counts:
                self.assertEqual(list(iter(counts.readline, b"END\r\n")), lines)

    def test_appends_to_large_values_stay_within_the_budget(self):
        # Each thread can have some under way.
        server = Server("appends", ["--threads", "8"])
        self.addCleanup(server.close)
        value, clients = self.values["large"], 40
        connection = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        self.addCleanup(connection.close)
        replies = connection.makefile("rb")
        self.addCleanup(replies.close)
        for number in range(clients):
            connection.sendall(b"set large%d 0 0 %d\r\n%s\r\n" % (number, len(value), value))
            self.assertEqual(replies.readline(), b"STORED\r\n")
        appenders = []
        for number in range(clients):
            appender = socket.create_connection(("127.0.0.1", server.port), timeout=60)
            self.addCleanup(appender.close)
            appender.sendall(b"append large%d 0 0 3\r\nend\r\n" % number)
            appenders.append(appender)
        for appender in appenders:
            self.assertEqual(appender.recv(100), b"STORED\r\n")
        connection.sendall(b"append large0 0 0 3\r\nend\r\nget large0\r\n")
        self.assertEqual(replies.readline(), b"STORED\r\n")
        self.assertEqual(replies.readline(), b"VALUE large0 0 %d\r\n" % (len(value) + 6))
        self.assertTrue(replies.read(len(value) + 6) == value + b"endend", "a get behind an append sees it")
        self.assertLess(resident_max_mebibytes(server.process), 256)

    def test_replies_that_are_sent_but_for_their_end_hold_little(self):
        long = self.values["long"]
        head = b"VALUE long0 0 %d\r\n" % len(long)
        clients = []
        for _ in range(120):
            client = socket.socket(socket.AF_UNIX)
            self.addCleanup(client.close)
            client.settimeout(60)
            client.connect(self.path)
            client.sendall(b"get long0\r\n")
            left = len(head) + len(long) - UNREAD_BYTES
            while left > 0:
                left -= len(client.recv(left))
            clients.append(client)
        self.assertLess(resident_max_mebibytes(self.server.process), 256)
        for client in clients:
            end = b""
            while not end.endswith(b"END\r\n"):
                end += client.recv(UNREAD_BYTES)
            self.assertTrue(end == long[-UNREAD_BYTES:] + b"\r\nEND\r\n")

    def read_value(self, replies, values):
        value_bytes = int(replies.readline().split()[3])
        value = replies.read(value_bytes)
        self.assertTrue(value in values, f"{value[:20]} and so on, {len(value)} bytes")
        self.assertEqual(replies.readline() + replies.readline(), b"\r\nEND\r\n")

    def test_who_reads_nothing_holds_no_key(self):
        lazy, lazy_replies = self.connect()
        self.expect_small_values(lazy, lazy_replies)
        lazy.sendall(b"".join(b"get large%d\r\n" % number for number in range(LARGE_KEYS)))
        other, replies = self.connect()
        for number in reversed(range(LARGE_KEYS)):
            other.sendall(b"set large%d 0 0 1\r\nw\r\n" % number)
            self.assertEqual(replies.readline(), b"STORED\r\n")
        # Had they waited for it, it would have been closed.
        for _ in range(LARGE_KEYS):
            self.read_value(lazy_replies, [self.values["large"], b"w"])

    def test_the_server_stops_although_values_wait_for_room(self):
        lazy, lazy_replies = self.connect()
        self.expect_small_values(lazy, lazy_replies)
        lazy.sendall(b"".join(b"get large%d\r\n" % number for number in range(LARGE_KEYS)))
        # The first is on its way, so the others ask.
        self.assertTrue(lazy.recv(1, socket.MSG_PEEK))
        self.server.restart()
        connection, replies = self.connect()
        connection.sendall(b"get large3\r\n")
        self.read_value(replies, [self.values["large"]])

    def test_a_get_and_a_set_of_a_key_that_both_want_room_both_come(self):
        setter, setter_replies = self.connect()
        new = os.urandom(LARGE_BYTES)
        setter.sendall(b"set large0 0 0 %d\r\n" % LARGE_BYTES + new[: LARGE_BYTES // 2])
        getter, getter_replies = self.connect()
        self.expect_small_values(getter, getter_replies)
        getter.sendall(b"get large0\r\n" * 4)
        with ThreadPoolExecutor() as readers:
            values = [self.values["large"], new]
            all_read = readers.submit(lambda: [self.read_value(getter_replies, values) for _ in range(4)])
            setter.sendall(new[LARGE_BYTES // 2 :] + b"\r\n")
            self.assertEqual(setter_replies.readline(), b"STORED\r\n")
            all_read.result()
