"""Roles: no command of any protocol does more than its client's user may."""

import os
import re
import socket
import struct
import subprocess
import time
import unittest

from secured import TIMEOUT, AccessTest, Folder, SecuredServer, frame_of
from server import BINARY, IS_MEMCACHED, SCRATCH, free_port

from server import BINARY, IS_MEMCACHED, SCRATCH, free_port

# Roles, each holding those before it, over the keyspace that the clients see and over the store.
NOTHING, READ, WRITE, ADMIN = range(4)
USERS = {"other": (NOTHING, NOTHING), "reader": (READ, NOTHING), "writer": (WRITE, NOTHING), "admin": (ADMIN, NOTHING),
         "allreader": (READ, READ), "allwriter": (WRITE, WRITE), "root": (ADMIN, ADMIN)}

TEXT = {
    NOTHING: ("verbosity 1", "version", "nonsense", "get", "set a 0 0 x", "mg", "slabs automove 1"),
    READ: ("get a", "gets a b", "get a " + "b " * 200, "mg a v", "mg a s h l t f c k O1", "mg YQ== v b", "mg a q v", "me a", "stats",
           "stats settings", "stats items", "stats slabs", "stats sizes", "stats inspect a", "stats cachedump 1 1",
           "lru_crawler metadump all", "lru_crawler mgdump all"),
    WRITE: ("gat 0 a", "gats 0 a", "mg a v T60", "mg a v N30", "mg new N30", "mg a v R30", "set a 0 0 1\r\nx", "set new 0 0 0\r\n",
            "add new 0 0 1\r\nx", "replace a 0 0 1\r\nx", "append a 0 0 1\r\nx", "prepend a 0 0 1\r\nx", "cas a 0 0 1 1\r\nx",
            "ms a 1\r\nx", "ms a 1 q\r\nx", "ms new 1 ME\r\nx", "ms a 1 MA\r\nx", "ms a 1 MP\r\nx", "ms a 1 MR\r\nx", "ms a 1 I\r\nx",
            "incr a 1", "decr a 1", "touch a 60", "delete a", "md a", "md a q", "md a I T30", "ma a", "ma a MD", "ma new N0 J1"),
    ADMIN: ("flush_all", "flush_all 0"),
}
TEXT_OF_STORE = {
    READ: ("stats inspect",),
    ADMIN: ("stats conns", "stats reset", "stats detail on", "stats detail dump", "stats detail off", "watch", "watch fetchers",
            "cache_memlimit 256", "resize capacity 2147483648"),
}
QUIET_TEXT = {
    WRITE: ("set a 0 0 1 noreply\r\nx", "add new 0 0 1 noreply\r\nx", "cas a 0 0 1 1 noreply\r\nx", "incr a 1 noreply",
            "touch a 60 noreply", "delete a noreply"),
    ADMIN: ("flush_all noreply", "flush_all 0 noreply"),
}
VERBS = {READ: "read", WRITE: "write", ADMIN: "administer"}

STORE, FOUR, COUNT = struct.pack(">II", 0, 0), struct.pack(">I", 0), struct.pack(">QQI", 1, 0, 0)
BINARY_FRAMES = {
    NOTHING: [(0x0a,), (0x0b,), (0x20,)],
    READ: [(code, b"a") for code in (0x00, 0x09, 0x0c, 0x0d)] + [(0x10,), (0x10, b"settings"), (0x10, b"items")],
    WRITE: [(code, b"a", STORE, b"x") for code in (0x01, 0x02, 0x03, 0x11, 0x12, 0x13)]
           + [(code, b"a") for code in (0x04, 0x14)] + [(code, b"a", COUNT) for code in (0x05, 0x06, 0x15, 0x16)]
           + [(code, b"a", b"", b"x") for code in (0x0e, 0x0f, 0x19, 0x1a)]
           + [(code, b"a", FOUR) for code in (0x1c, 0x1d, 0x1e, 0x23, 0x24)],
    ADMIN: [(0x08,), (0x18,), (0x08, b"", FOUR)],
}
BINARY_OF_STORE = {ADMIN: [(0x10, b"reset"), (0x10, b"detail on"), (0x10, b"detail dump"), (0x10, b"detail off")]}
REFUSED, UNKNOWN = 0x20, 0x81


def rows(of_keyspace, of_store):
    for where, table in enumerate((of_keyspace, of_store)):
        for role, commands in table.items():
            yield from ((role, where, command) for command in commands)


class Roles(AccessTest):
    """No command does more than its client's user may."""

    def setUp(self):
        self.root = self.plain("root")
        self.root.all(b"flush_all\r\nset a 5 0 2\r\n41\r\nms aged 4 T1000\r\nolds\r\n")
        self.before = self.state()

    def state(self):
        """Everything about the items: a change of any gives it another unique."""
        dump = self.root.all(b"lru_crawler metadump all\r\n")
        words = [re.sub(rb" (la|fetch)=\S+", b"", line) for line in dump.splitlines()]
        return sorted(words) + [self.root.all(b"mg a v c t f\r\n"), self.root.all(b"mg new v c\r\n")]

    def test_each_text_command_needs_its_role(self):
        for name, held in USERS.items():
            client = self.plain(name)
            for role, where, command in [*rows(TEXT, TEXT_OF_STORE)]:
                may = held[where] >= role
                if may and command.startswith("watch"):
                    continue
                with self.subTest(name=name, command=command):
                    reply = client.all(command.encode() + b"\r\n")
                    if may:
                        self.assertNotIn(b"has no right", reply)
                    else:
                        scope = "the store" if where else "the keyspace default"
                        self.assertEqual(reply, f"CLIENT_ERROR {name} has no right to {VERBS[role]} {scope}\r\n".encode())
            if held[0] < WRITE:
                self.assertEqual(self.state(), self.before, name)
            else:
                self.setUp()

    def test_refused_ones_that_want_no_reply_get_none(self):
        for name, held in USERS.items():
            client = self.plain(name)
            for role, where, command in rows(QUIET_TEXT, {}):
                if held[where] < role:
                    with self.subTest(name=name, command=command):
                        self.assertEqual(client.all(command.encode() + b"\r\n"), b"")
            self.assertEqual(self.state(), self.before, name)

    def test_each_binary_opcode_needs_its_role(self):
        for name, held in USERS.items():
            client = self.plain()
            self.assertEqual(client.sasl(name), 0)
            for role, where, parts in rows(BINARY_FRAMES, BINARY_OF_STORE):
                with self.subTest(name=name, frame=parts):
                    client.send(frame_of(*parts, opaque=1) + frame_of(0x0a, opaque=2))
                    answers = []
                    while not answers or answers[-1][0] != 0x0a or len(answers) < 1 + (parts[0] == 0x0a):
                        answers.append(client.frame())
                    if held[where] >= role:
                        self.assertNotIn(REFUSED, [status for _, status, _ in answers])
                    else:
                        self.assertEqual([(code, status) for code, status, _ in answers], [(parts[0], REFUSED), (0x0a, 0)])
                        self.assertIn(b"has no right", answers[0][2])
            if held[0] < WRITE:
                self.assertEqual(self.state(), self.before, name)
            else:
                self.setUp()

    def test_pipelined_requests_are_each_refused_or_served_in_order(self):
        reader = self.plain("reader")
        pairs = 100
        reader.send(b"".join(b"get a\r\nset a 0 0 2\r\n%02d\r\nms a 2 O%d\r\n%02d\r\nmg a v O%d\r\n" % (at % 100, at, at % 100, at)
                             for at in range(pairs)))
        for at in range(pairs):
            self.assertEqual(b"".join(reader.line() for _ in range(3)), b"VALUE a 5 2\r\n41\r\nEND\r\n", at)
            for _ in range(2):
                self.assertEqual(reader.line(), b"CLIENT_ERROR reader has no right to write the keyspace default\r\n", at)
            self.assertEqual(reader.line() + reader.line(), b"VA 2 O%d\r\n41\r\n" % at)
        self.assertEqual(self.state(), self.before)

    def test_a_refused_value_of_any_length_is_passed_over(self):
        reader = self.plain("reader")
        for value_bytes in (0, 1, 4 << 10, 4 << 20, (16 << 20) + 1):
            reader.send(b"set a 0 0 %d\r\n%s\r\nget a\r\n" % (value_bytes, b"x" * value_bytes))
            self.assertEqual(reader.line(), b"CLIENT_ERROR reader has no right to write the keyspace default\r\n", value_bytes)
            self.assertEqual(b"".join(reader.line() for _ in range(3)), b"VALUE a 5 2\r\n41\r\nEND\r\n")
        self.assertEqual(self.state(), self.before)

    def test_requests_of_admins_leave_a_line_each(self):
        commands = ("flush_all", "cache_memlimit 256", "resize capacity 2147483648", "stats conns", "stats reset", "stats detail on",
                    "stats detail off", "watch fetchers")
        for name, ended in (("root", "done"), ("reader", "has no right")):
            for command in commands:
                with self.subTest(name=name, command=command), self.server.connect(tls=False, login=name) as client:
                    before = len(self.server.said())
                    client.ask(command.encode() + b"\r\n")
                    time.sleep(0.02)
                    said = self.server.said()[before:]
                    self.assertEqual(said.count(command), 1, said)
                    self.assertIn(name, said)


@unittest.skipIf(IS_MEMCACHED, "it has other options for users")
class Udp(unittest.TestCase):
    def setUp(self):
        self.folder = Folder("access-udp")
        self.addCleanup(self.folder.close)
        self.folder.user("writer", "--write", "default")

    def test_without_a_keyspace_to_read_it_is_refused(self):
        command = [BINARY, "serve", "--data", SCRATCH / f"access-udp-refused-{os.getpid()}", "--memcached", f"127.0.0.1:{free_port()}",
                   "--capacity", "1GiB", "--memory", "256MiB", "--udp", f"127.0.0.1:{free_port()}", "--users-file", self.folder.users]
        done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("--udp-anonymous", done.stderr)

    def test_everybody_reads_the_keyspace_and_changes_nothing(self):
        port = free_port()
        server = SecuredServer("access-udp", self.folder, ["--udp", f"127.0.0.1:{port}", "--udp-anonymous", "default"])
        self.addCleanup(server.close)
        with server.connect(login="writer") as client:
            client.ask(b"set a 0 0 2\r\n41\r\n")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as peer:
            peer.settimeout(TIMEOUT)

            def ask(words):
                peer.sendto(b"\0\7\0\0\0\1\0\0" + words, ("127.0.0.1", port))
                return peer.recv(1 << 16)[8:]

            before = ask(b"mg a v c t\r\n")
            self.assertEqual(ask(b"get a\r\n"), b"VALUE a 0 2\r\n41\r\nEND\r\n")
            self.assertEqual(ask(frame_of(0x00, b"a"))[:8], struct.pack(">BBHBBH", 0x81, 0, 0, 4, 0, 0))
            for _, _, command in rows({WRITE: TEXT[WRITE], ADMIN: TEXT[ADMIN]}, TEXT_OF_STORE):
                self.assertIn(b"nobody has no right to", ask(command.encode() + b"\r\n"), command)
            for _, _, parts in rows({WRITE: BINARY_FRAMES[WRITE], ADMIN: BINARY_FRAMES[ADMIN]}, BINARY_OF_STORE):
                self.assertEqual(ask(frame_of(*parts))[6:8], struct.pack(">H", REFUSED), parts)
            self.assertEqual(ask(b"mg a v c t\r\n"), before)
            self.assertIn(b"STAT pid", ask(b"stats\r\n"))
