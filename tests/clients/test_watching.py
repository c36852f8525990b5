"""What one client sees of the others: `watch`, `stats conns` and `stats detail`, as memcached has them."""

import socket
import unittest

from adapters import Text
from server import IS_MEMCACHED, Server


class Line:
    """A connection that speaks lines."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.lines = self.socket.makefile("rb")

    def send(self, line):
        self.socket.sendall(line + b"\r\n")

    def read(self):
        line = self.lines.readline()
        if not line:
            raise EOFError
        return line.rstrip(b"\r\n")

    def ask(self, line):
        """A reply of many lines, without its END."""
        self.send(line)
        return list(iter(self.read, b"END"))

    def until(self, *wanted):
        """Reads lines until each of these was part of one; all of them, together."""
        seen, wanted = b"", list(wanted)
        while not all(part in seen for part in wanted):
            seen += self.read() + b"\n"
        return seen

    def close(self):
        self.lines.close()
        self.socket.close()


class Watching(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("watching", [] if IS_MEMCACHED else ["--cache"])
        cls.addClassCleanup(cls.server.close)

    def line(self):
        line = Line(self.server.port)
        self.addCleanup(line.close)
        return line

    def client(self):
        client = Text(self.server.port)
        self.addCleanup(client.close)
        return client

    def test_gets_and_sets_of_others_are_shown_while_one_watches(self):
        watcher = self.line()
        watcher.send(b"watch fetchers mutations")
        self.assertEqual(watcher.read(), b"OK")
        client = self.client()
        client.set("w:a", b"abc", expire=100)
        client.add("w:a", b"x")
        client.get("w:a")
        client.get("w:nobody")
        seen = watcher.until(b"key=w%3Anobody")
        for line in (rb"type=item_store key=w%3Aa status=stored cmd=set ttl=100 clsid=\d+ cfd=\d+ size=3\n",
                     rb"type=item_store key=w%3Aa status=not_stored cmd=add ttl=0 clsid=\d+ cfd=\d+ size=1\n",
                     rb"ts=\d+\.\d+ gid=\d+ type=item_get key=w%3Aa status=found clsid=\d+ cfd=\d+ size=3\n",
                     rb"type=item_get key=w%3Anobody status=not_found clsid=0 cfd=\d+ size=0\n"):
            self.assertRegex(seen, line)

    def test_who_watches_gets_alone_sees_no_sets(self):
        watcher = self.line()
        watcher.send(b"watch")
        self.assertEqual(watcher.read(), b"OK")
        client = self.client()
        client.set("only", b"abc")
        client.get("only")
        self.assertNotIn(b"item_store", watcher.until(b"key=only status=found"))

    def test_those_who_come_and_go_are_shown(self):
        watcher = self.line()
        watcher.send(b"watch connevents")
        self.assertEqual(watcher.read(), b"OK")
        other = self.line()
        port = other.socket.getsockname()[1]
        other.send(b"quit")
        ends = rb"rip=127\.0\.0\.1 rport=%d transport=tcp" % port
        seen = watcher.until(b"type=conn_close rip=127.0.0.1 rport=%d" % port)
        self.assertRegex(seen, rb"type=conn_new " + ends + rb" cfd=\d+\n")
        self.assertRegex(seen, rb"type=conn_close " + ends + rb" reason=normal cfd=\d+\n")

    @unittest.skipIf(IS_MEMCACHED, "its buffer is larger")
    def test_a_watcher_that_does_not_read_holds_nobody_up_and_hears_what_it_missed(self):
        watcher = socket.socket()
        watcher.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        watcher.connect(("127.0.0.1", self.server.port))
        watcher.settimeout(60)
        self.addCleanup(watcher.close)
        watcher.sendall(b"watch fetchers\r\n")
        line, key = self.line(), b"k" * 250
        skipped = 0
        while not skipped:
            line.socket.sendall(b"get " + b" ".join([key] * 1000) + b"\r\n")
            self.assertEqual(line.read(), b"END")
            skipped = int(self.client().stats()["log_watcher_skipped"])
        seen = b""
        while b"[skipped: " not in seen:
            seen = seen[-100:] + watcher.recv(1 << 16)

    def test_connections_are_listed(self):
        line = self.line()
        own, server = line.socket.getsockname()[1], self.server.port
        lines = line.ask(b"stats conns")
        number = next(row.split()[1].split(b":")[0] for row in lines if row.endswith(b":addr tcp:127.0.0.1:%d" % own))
        for wanted in (b"STAT %s:listen_addr tcp:127.0.0.1:%d" % (number, server), b"STAT %s:state conn_parse_cmd" % number,
                       b"STAT %s:secs_since_last_cmd 0" % number):
            self.assertIn(wanted, lines)
        self.assertTrue(any(row.endswith(b":state conn_listening") for row in lines))

    def test_prefixes_are_counted_while_that_is_on(self):
        line, client = self.line(), self.client()
        line.send(b"stats detail on")
        self.assertEqual(line.read(), b"OK")
        client.set("p:a", b"1")
        client.get("p:a")
        client.get("p:b")
        client.delete("p:a")
        client.get("none")
        wanted = b"PREFIX p get 2 hit 1 set 1 del 1"
        self.assertIn(wanted, line.ask(b"stats detail dump"))
        line.send(b"stats detail off")
        self.assertEqual(line.read(), b"OK")
        client.get("p:a")
        self.assertIn(wanted, line.ask(b"stats detail dump"))
