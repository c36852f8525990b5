"""What one client sees of the others: `watch`, `stats conns` and `stats detail`, as memcached has them."""

import contextlib
import os
import re
import socket
import struct
import unittest

from adapters import Text
from server import IS_MEMCACHED, Server, free_port


class Line:
    """A connection that speaks lines."""

    def __init__(self, port):
        self.begin(socket.create_connection(("127.0.0.1", port), timeout=60))

    @classmethod
    def of_path(cls, path):
        line = cls.__new__(cls)
        line.begin(socket.socket(socket.AF_UNIX))
        line.socket.settimeout(60)
        line.socket.connect(path)
        return line

    def begin(self, connection):
        self.socket = connection
        self.lines = connection.makefile("rb")

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

    def test_what_changes_an_item_is_shown_with_the_look_at_it_that_comes_before(self):
        watcher, other = self.line(), self.line()
        watcher.send(b"watch fetchers mutations")
        self.assertEqual(watcher.read(), b"OK")
        found, missing = rb"status=found clsid=\d+ cfd=\d+ size=%d\n", rb"status=not_found clsid=0 cfd=\d+ size=0\n"
        for number, (command, reply, look) in enumerate((
                (b"set %s 0 0 2\r\nab", b"STORED", missing), (b"set %s 0 0 3 noreply\r\nabc", None, found % 2),
                (b"add %s 0 0 1\r\nx", b"NOT_STORED", found % 3), (b"append %s 0 0 1\r\nd", b"STORED", found % 3),
                (b"replace %s 0 0 2\r\n41", b"STORED", found % 4), (b"incr %s 1", b"42", found % 2),
                (b"touch %s 100", b"TOUCHED", found % 2), (b"cas %s 0 0 1 1\r\nx", b"EXISTS", found % 2),
                (b"ms %s 1 T0\r\nx", b"HD", found % 2), (b"mg %s T30", b"HD", found % 1), (b"md %s", b"HD", found % 1),
                (b"mg %s N30", b"HD W", missing), (b"mg %s", b"HD Z", found % 0), (b"md %s", b"HD", found % 0),
                (b"delete %s", b"NOT_FOUND", missing))):
            other.send(command % b"look")
            if reply is not None:
                self.assertEqual(other.read(), reply)
            other.send(b"get end%d" % number)
            self.assertEqual(other.read(), b"END")
            seen = watcher.until(b"key=end%d" % number)
            self.assertRegex(seen, rb"type=item_get key=look " + look, command)
            self.assertEqual(seen.count(b"type=item_get key=look "), 1, seen)
            if b"item_store" in seen:
                self.assertLess(seen.index(b"item_get"), seen.index(b"item_store"))

    def test_the_look_before_a_set_is_for_those_who_watch_gets_alone(self):
        watcher, other = self.line(), self.line()
        watcher.send(b"watch mutations")
        self.assertEqual(watcher.read(), b"OK")
        before = int(self.client().stats()["get_misses"])
        other.send(b"set unlooked 0 0 1\r\nx")
        self.assertEqual(other.read(), b"STORED")
        self.assertNotIn(b"item_get", watcher.until(b"key=unlooked"))
        self.assertEqual(int(self.client().stats()["get_misses"]), before)

    def test_no_more_watch_than_may(self):
        # Not the others' server: memcached looks for watchers that have left when it has something to tell them.
        server = Server("watchers")
        self.addCleanup(server.close)
        watchers = [Line(server.port) for _ in range(21)]
        answers = set()
        for watcher in watchers:
            watcher.send(b"watch evictions")
            answers.add(watcher.read())
        self.assertEqual(answers, {b"OK", b"WATCHER_TOO_MANY log watcher limit reached"})
        for watcher in watchers:
            watcher.close()

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

    def close_seen(self, end):
        """The words of `watch` about the end of a connection that `end` brings about."""
        watcher = self.line()
        watcher.send(b"watch connevents")
        self.assertEqual(watcher.read(), b"OK")
        other = self.line()
        port = other.socket.getsockname()[1]
        end(other)
        seen = watcher.until(b"type=conn_close rip=127.0.0.1 rport=%d" % port)
        return re.search(rb"type=conn_close rip=127\.0\.0\.1 rport=%d transport=tcp reason=(\w+) cfd=" % port, seen)[1]

    def test_why_a_connection_ended_is_shown(self):
        def reset(line):
            line.send(b"version")
            line.read()
            line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.close()

        def no_line_of_ours(line):
            # memcached may have hung up before.
            with contextlib.suppress(OSError):
                line.socket.sendall(b"x" * 70000)
                line.socket.shutdown(socket.SHUT_WR)

        def no_packet_of_ours(line):
            # Its key is longer than its body.
            line.socket.sendall(struct.pack(">BBHBBHIIQ", 0x80, 0, 3, 0, 0, 0, 1, 0, 0) + b"abc")

        for end, reason in ((Line.close, b"normal"), (lambda line: line.send(b"quit"), b"normal"), (reset, b"error"),
                            (no_line_of_ours, b"error"), (no_packet_of_ours, b"error")):
            self.assertEqual(self.close_seen(end), reason, end)

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
        while not re.search(rb"\nskipped=\d+\n", seen):
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

    def states(self, line):
        """What `stats conns` says of each client, by its port."""
        told = {}
        for row in line.ask(b"stats conns"):
            number, name, value = re.match(rb"STAT (\d+):(\S+) (.*)", row).groups()
            told.setdefault(number, {})[name] = value
        return {int(rows[b"addr"].rsplit(b":")[-1]): rows[b"state"] for rows in told.values() if b"listen_addr" in rows}

    def test_what_a_client_is_doing_is_listed(self):
        line, receiving, swallowing, watching, late = (self.line() for _ in range(5))
        receiving.socket.sendall(b"set nread 0 0 10\r\nabc")
        swallowing.socket.sendall(b"set nread 0 0 99999999\r\nabc")
        late.socket.sendall(b"set nread 0 ")
        watching.send(b"watch evictions")
        self.assertEqual(watching.read(), b"OK")
        port = lambda line: line.socket.getsockname()[1]
        wanted = {port(receiving): b"conn_nread", port(swallowing): b"conn_swallow", port(watching): b"conn_watch",
                  port(late): b"conn_read"}
        # Another thread of the server may not have read a client's bytes yet.
        for _ in range(1000):
            seen = self.states(line)
            if wanted.items() <= seen.items():
                return
        self.fail(f"{seen}, not {wanted}")

    @unittest.skipIf(IS_MEMCACHED, "it has either a port or a path")
    def test_clients_of_a_unix_socket_are_shown_with_its_path_and_udp_is_listed(self):
        # Paths of sockets are short.
        path, udp = f"/tmp/tapetum-watching-{os.getpid()}", free_port()
        server = Server("paths", ["--memcached", f"unix:{path}", "--udp", str(udp), "--threads", "2"])
        self.addCleanup(server.close)
        watcher = Line(server.port)
        self.addCleanup(watcher.close)
        watcher.send(b"watch connevents")
        self.assertEqual(watcher.read(), b"OK")
        client = Line.of_path(path)
        self.addCleanup(client.close)
        self.assertRegex(watcher.until(b"conn_new rip=unix"), rb"type=conn_new rip=unix rport=0 transport=local cfd=\d+\n")
        lines = client.ask(b"stats conns")
        address = b" unix:" + path.encode()
        for name, times in ((b":addr", 2), (b":listen_addr", 1)):
            self.assertEqual(sum(row.endswith(name + address) for row in lines), times, lines)
        for wanted in (b":UDP UDP", b":addr udp:127.0.0.1:%d" % udp):
            self.assertEqual(sum(row.endswith(wanted) for row in lines), 2, lines)
        client.close()
        self.assertRegex(watcher.until(b"conn_close rip=unix"), rb"rip=unix rport=0 transport=local reason=normal cfd=\d+\n")

    def test_the_binary_protocol_counts_prefixes_too(self):
        line = self.line()
        header = struct.Struct(">BBHBBHIIQ")

        def stat(words):
            """Statuses, keys and values of the packets that answer."""
            line.socket.sendall(header.pack(0x80, 0x10, len(words), 0, 0, 0, len(words), 7, 0) + words)
            packets = []
            while not packets or packets[-1][1]:
                _, _, key_bytes, _, _, status, body_bytes, _, _ = header.unpack(line.lines.read(header.size))
                key = line.lines.read(key_bytes)
                packets.append((status, key, line.lines.read(body_bytes - key_bytes)))
            return packets

        self.assertEqual(stat(b"reset"), [(0, b"", b"")])
        self.assertEqual(stat(b"detail on"), [(0, b"", b"")])
        client = self.client()
        client.set("bin:a", b"1")
        client.get("bin:a")
        counts = b"PREFIX bin get 1 hit 1 set 1 del 0\r\nEND\r\n"
        self.assertEqual(stat(b"detail dump"), [(0, b"detailed", counts), (0, b"", b"")])
        self.assertEqual(stat(b"detail off"), [(0, b"", b"")])
        for words in (b"detail foo", b"detaildump"):
            self.assertEqual(stat(words), [(1, b"", b"Not found")], words)

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

    @unittest.skipIf(IS_MEMCACHED, "it has one list at a time, and a client that reads none of it stops it for all")
    def test_lists_of_keys_that_nobody_reads_are_few_and_others_hear_that_the_crawler_is_busy(self):
        line, lists_max, busy = self.line(), 8, b"BUSY currently processing crawler request"
        # More than the kernel holds for a client that does not read.
        keys = [b"%06d" % number + b"k" * 240 for number in range(40_000)]
        line.socket.sendall(b"".join(b"set %s 0 0 1 noreply\r\nv\r\n" % key for key in keys) + b"mn\r\n")
        self.assertEqual(line.read(), b"MN")
        lazy = []
        for _ in range(lists_max):
            lazy.append(self.line())
            lazy[-1].send(b"lru_crawler metadump all")
            self.assertTrue(lazy[-1].socket.recv(1, socket.MSG_PEEK))
        for command in (b"lru_crawler metadump all", b"lru_crawler mgdump all"):
            line.send(command)
            self.assertEqual(line.read(), busy)
        # What follows a list on its connection waits for it, another list too.
        lazy[0].send(b"lru_crawler mgdump all\r\nversion")
        self.assertGreaterEqual(sum(row.startswith(b"key=") for row in iter(lazy[0].read, b"END")), len(keys))
        self.assertGreaterEqual(sum(row.startswith(b"mg ") for row in iter(lazy[0].read, b"EN")), len(keys))
        self.assertTrue(lazy[0].read().startswith(b"VERSION "))
        rows = line.ask(b"lru_crawler metadump all")
        self.assertGreaterEqual(len(rows), len(keys))
