"""Users and TLS: who may do what in each protocol, what is taken away while clients are connected, and clients that do not keep
to the rules."""

import contextlib
import functools
import os
import re
import socket
import ssl
import struct
import subprocess
import threading
import time
import unittest
from random import Random

import bmemcached
import pymemcache
from meta_memcache import CacheClient, Key, ServerAddress
from meta_memcache.connection.pool import ConnectionPool

from records import DATA, HANDSHAKE, Records
from secured import PASSWORD, TIMEOUT, Authority, Folder, SecuredServer, frame_of, login_of, plain_of
from server import BINARY, IS_MEMCACHED, SCRATCH, free_port

# Roles, each holding those before it, over the keyspace that the clients see and over the store.
NOTHING, READ, WRITE, ADMIN = range(4)
USERS = {"other": (NOTHING, NOTHING), "reader": (READ, NOTHING), "writer": (WRITE, NOTHING), "admin": (ADMIN, NOTHING),
         "allreader": (READ, READ), "allwriter": (WRITE, WRITE), "root": (ADMIN, ADMIN)}
RIGHTS = {"other": ("--admin", "another"), "reader": ("--read", "default"), "writer": ("--write", "default"),
          "admin": ("--admin", "default"), "allreader": ("--read", "*"), "allwriter": ("--write", "*"), "root": ("--admin", "*")}

# By the role that each needs over the keyspace, or over the store: crates/server/src/doors/memcached/needs.rs.
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


def setUpModule():
    if IS_MEMCACHED:
        raise unittest.SkipTest("it needs other options for users and TLS")
    storms.append(Storm("access-storm", 300))


def tearDownModule():
    for storm in storms:
        storm.ended.set()
        storm.join()


storms = []


@functools.cache
def everybody():
    """Files with users who have every combination of rights."""
    folder = Folder("access")
    unittest.addModuleCleanup(folder.close)
    for name, rights in RIGHTS.items():
        folder.user(name, *rights)
    return folder


class AccessTest(unittest.TestCase):
    """With a server of its own."""

    @classmethod
    def setUpClass(cls):
        cls.folder = cls.files()
        cls.server = SecuredServer(f"access-{cls.__name__.lower()}", cls.folder)
        cls.addClassCleanup(cls.server.close)

    @classmethod
    def files(cls):
        return everybody()

    def connect(self, login=None, **more):
        connection = self.server.connect(login=login, **more)
        self.addCleanup(connection.close)
        return connection

    def plain(self, login=None, **more):
        return self.connect(login, tls=False, **more)


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


class Logins(AccessTest):
    """Before a login, and wrong ones."""

    def test_no_text_command_is_heeded_before_a_login(self):
        unheeded = [command for _, _, command in [*rows(TEXT, TEXT_OF_STORE)] if not command.startswith(("set a", "set new"))]
        client = self.plain(source="127.0.0.2")
        for command in unheeded:
            lines = 1 + command.count("\r\n")
            self.assertEqual(client.ask(command.encode() + b"\r\n", lines), b"CLIENT_ERROR unauthenticated\r\n" * lines, command)
        self.assertEqual(client.ask(b"set a 0 0 1\r\nx\r\n"), b"CLIENT_ERROR authentication failure\r\n")
        client.send(b"set a 0 0 1 noreply\r\nx\r\nget a\r\n")
        self.assertEqual(client.line(), b"CLIENT_ERROR unauthenticated\r\n")
        client.log_in("reader")
        self.assertEqual(client.ask(b"get none\r\n"), b"END\r\n")
        client.send(b"quit\r\n")
        self.assertTrue(client.is_over())

    def test_no_binary_opcode_is_heeded_before_a_login(self):
        heeded = {0x07, 0x0b, 0x17, 0x20, 0x21, 0x22}
        for _, _, parts in rows(BINARY_FRAMES, BINARY_OF_STORE):
            if parts[0] not in heeded:
                with self.subTest(frame=parts), self.server.connect(tls=False) as client:
                    self.assertEqual(client.ask_frame(*parts), (parts[0], REFUSED, b"Auth failure."))
                    self.assertTrue(client.is_over())
        client = self.plain(source="127.0.0.3")
        self.assertEqual(client.ask_frame(0x20), (0x20, 0, b"PLAIN"))
        self.assertEqual(client.ask_frame(0x0b)[:2], (0x0b, 0))
        self.assertEqual(client.ask_frame(0x22, b"PLAIN", value=b"x")[1], REFUSED)
        self.assertEqual(client.ask_frame(0x21, b"CRAM-MD5", value=plain_of("reader"))[1], REFUSED)
        for message in (b"", b"\0", b"reader", b"\0reader", b"\0reader\0", b"root\0reader\0" + PASSWORD.encode(), b"\xff\0\xff\0\xff"):
            self.assertEqual(client.ask_frame(0x21, b"PLAIN", value=message)[1], REFUSED, message)
        self.assertEqual(client.ask_frame(0x99)[1], UNKNOWN)
        client = self.plain()
        self.assertEqual(client.sasl("reader"), 0)
        self.assertEqual(client.ask_frame(0x00, b"none")[1], 1)
        self.assertEqual(client.ask_frame(0x07)[1], 0)
        self.assertTrue(client.is_over())

    def test_wrong_passwords_and_unknown_users_are_told_alike(self):
        for number, (name, password) in enumerate((("reader", PASSWORD + "!"), ("reader", PASSWORD[:-1]), ("nobody", PASSWORD),
                                                   ("READER", PASSWORD))):
            text, binary = (self.connect(tls=number < 2, source=f"127.0.8.{2 * number + last}") for last in (1, 2))
            self.assertEqual(text.ask(login_of(name, password)), b"CLIENT_ERROR authentication failure\r\n")
            self.assertEqual(binary.sasl(name, password), REFUSED)
            self.assertEqual(text.ask(b"get a\r\n"), b"CLIENT_ERROR unauthenticated\r\n")

    def test_a_login_that_comes_in_pieces_or_with_requests_behind_it(self):
        whole = login_of("writer") + b"set piece 0 0 1\r\nx\r\nget piece\r\n" + b"version\r\n"
        for step in (1, 7, 24):
            client = self.plain()
            for at in range(0, len(whole), step):
                client.send(whole[at:at + step])
            self.assertEqual([client.line() for _ in range(6)][:5], [b"STORED\r\n", b"STORED\r\n", b"VALUE piece 0 1\r\n", b"x\r\n", b"END\r\n"])
        # A second one, of another user, changes what may be done behind it.
        first, second = (frame_of(0x21, b"PLAIN", value=plain_of(name)) for name in ("writer", "reader"))
        put = frame_of(0x01, b"piece", STORE, b"y")
        client = self.plain()
        client.send(first + put + second + put + frame_of(0x00, b"piece"))
        self.assertEqual([client.frame()[:2] for _ in range(5)], [(0x21, 0), (0x01, 0), (0x21, 0), (0x01, REFUSED), (0x00, 0)])

    def test_a_second_login_that_is_wrong_ends_the_first(self):
        client = self.plain(source="127.0.0.6")
        self.assertEqual(client.sasl("writer"), 0)
        client.send(frame_of(0x21, b"PLAIN", value=plain_of("root", "guess")) + frame_of(0x01, b"a", STORE, b"x"))
        self.assertEqual([client.frame()[:2] for _ in range(2)], [(0x21, REFUSED), (0x01, REFUSED)])
        self.assertTrue(client.is_over())

    def test_a_password_of_a_megabyte_takes_no_memory(self):
        password = b"x" * (1 << 20)
        before = self.server.resident_mebibytes()
        texts = [self.plain(source="127.0.0.7") for _ in range(20)]
        for text in texts:
            with contextlib.suppress(ConnectionError):
                text.send(b"set auth 0 0 %d\r\n" % (len(password) + 7))
                self.assertEqual(text.line(), b"CLIENT_ERROR bad command line termination\r\n")
                text.send(b"reader " + password)
            self.assertTrue(text.is_over())
        line = self.plain(source="127.0.0.7")
        with contextlib.suppress(ConnectionError):
            line.send(password)
        self.assertTrue(line.is_over())
        for _ in range(20):
            binary = self.plain(source="127.0.0.7")
            self.assertEqual(binary.ask_frame(0x21, b"PLAIN", value=b"\0reader\0" + password)[1], REFUSED)
            self.assertEqual(binary.ask_frame(0x0b)[1], 0, "the connection goes on behind it")
        after = self.plain("writer")
        binary = self.plain()
        self.assertEqual(binary.sasl("writer"), 0)
        self.assertEqual(binary.ask_frame(0x21, b"PLAIN", value=b"\0reader\0" + password)[1], REFUSED, "and behind a login")
        self.assertEqual(after.ask(b"get a\r\n"), b"END\r\n")
        self.assertLess(self.server.resident_mebibytes() - before, 16)

    def test_a_login_for_each_request_is_remembered(self):
        self.connect("writer").close()
        began, used = time.monotonic(), self.server.cpu_seconds()
        for number in range(100):
            with self.server.connect(tls=number % 2 == 0, login="writer") as client:
                self.assertEqual(client.ask(b"set each 0 0 1\r\nx\r\n"), b"STORED\r\n")
        # Each hash takes 20 ms of it or more.
        self.assertLess(self.server.cpu_seconds() - used, 1.5)
        self.assertLess(time.monotonic() - began, 20)

    def test_failures_wait_are_counted_and_told_once_while_others_are_served(self):
        served = self.plain("writer")
        self.assertEqual(served.ask(b"set a 0 0 1\r\nx\r\n"), b"STORED\r\n")
        told = re.compile(r"logins? failed lately")
        before = self.errors(served)
        slowed = [self.plain(source="127.0.1.1") for _ in range(32)]
        began = time.monotonic()
        for client in slowed:
            client.send(login_of("reader", "guess"))
        longest = 0
        for _ in range(1000):
            asked = time.monotonic()
            self.assertEqual(served.ask(b"get a\r\n", 3), b"VALUE a 0 1\r\nx\r\nEND\r\n")
            longest = max(longest, time.monotonic() - asked)
        self.assertLess(longest, 2)
        # One more than may wait, while some still do.
        more = [self.plain(source="127.0.1.1") for _ in range(64)]
        for client in more:
            client.send(login_of("reader", "guess"))
        replies = {client.line() for client in slowed + more}
        self.assertEqual(replies - {b"CLIENT_ERROR authentication failure\r\n"}, {b"CLIENT_ERROR too many log in now: try again in a while\r\n"})
        self.assertEqual(len(told.findall(self.server.said())), 1)
        self.assertGreaterEqual(self.errors(served) - before, 32)
        # By now each failure makes this address wait for seconds, also for a password that is remembered; others do not wait.
        patient = self.plain(source="127.0.1.1")
        began = time.monotonic()
        patient.send(login_of("writer"))
        self.plain(source="127.0.1.2").log_in("reader")
        self.assertLess(time.monotonic() - began, 2)
        patient.socket.settimeout(1)
        with self.assertRaises(TimeoutError):
            patient.socket.recv(1)

    def errors(self, client):
        stats = dict(line.split()[1:3] for line in client.all(b"stats\r\n").splitlines() if line.startswith(b"STAT"))
        return int(stats[b"auth_errors"])

    def test_the_server_stops_while_logins_wait(self):
        name = "access-stopped"
        server = SecuredServer(name, self.folder)
        self.addCleanup(server.close)
        clients = [server.connect(tls=False) for _ in range(30)]
        for client in clients:
            self.addCleanup(client.close)
            client.send(login_of("reader", "guess"))
        for client in clients[:10]:
            client.close()
        began = time.monotonic()
        self.assertEqual(server.terminate(), 0)
        self.assertLess(time.monotonic() - began, 4, "they need not be looked at")
        told = {client.line() for client in clients[10:]}
        self.assertLessEqual(told, {b"CLIENT_ERROR authentication failure\r\n", b"CLIENT_ERROR too many log in now: try again in a while\r\n"})


class Clients(AccessTest):
    """Libraries that people use."""

    def test_pymemcache_with_tls_and_a_login_as_text(self):
        for noreply in (False, True):
            client = pymemcache.Client(("localhost", self.server.port), default_noreply=False, timeout=TIMEOUT,
                                       tls_context=self.server.context())
            self.addCleanup(client.close)
            with self.assertRaises(pymemcache.exceptions.MemcacheClientError):
                client.get("k")
            self.assertTrue(client.set("auth", f"writer {PASSWORD}", noreply=noreply))
            for value in (b"", b"value", bytes(range(256)) * 1000):
                self.assertTrue(client.set("k", value))
                self.assertEqual(client.get("k"), value)
            values = {f"k{at}": b"%d" % at for at in range(1000)}
            self.assertEqual(client.set_many(values), [])
            self.assertEqual(client.get_many(values), values)
            with self.assertRaisesRegex(pymemcache.exceptions.MemcacheClientError, "writer has no right to administer the keyspace default"):
                client.flush_all()

    def test_bmemcached_with_tls_and_sasl(self):
        # It sends its login again on each connection.
        context = self.server.context()
        client = bmemcached.Client((f"127.0.0.1:{self.server.port}",), "writer", PASSWORD, socket_timeout=TIMEOUT, tls_context=context)
        self.addCleanup(client.disconnect_all)
        for value in ("", "value", "v" * 300_000):
            self.assertTrue(client.set("b", value, compress_level=0))
            self.assertEqual(client.get("b"), value)
        values = {f"b{at}": str(at) for at in range(1000)}
        self.assertEqual(client.set_multi(values, time=0), [])
        self.assertEqual(client.get_multi(values), values)
        client.disconnect_all()
        self.assertEqual(client.get("b1"), "1")
        wrong = bmemcached.Client((f"127.0.0.1:{self.server.plain_port}",), "writer", "guess", socket_timeout=TIMEOUT)
        self.addCleanup(wrong.disconnect_all)
        with self.assertRaisesRegex(bmemcached.exceptions.MemcachedException, "Auth failure"):
            wrong.get("b")

    def test_meta_memcache_behind_a_login(self):
        # It reads the descriptor itself, and so speaks no TLS.
        def logged_in():
            raw = self.server.connect(tls=False, login="writer").detach()
            self.addCleanup(raw.close)
            return raw

        def pool(address):
            return ConnectionPool(server=str(address), socket_factory_fn=logged_in, initial_pool_size=1, max_pool_size=2)

        client = CacheClient.cache_client_from_servers([ServerAddress("127.0.0.1", self.server.plain_port)], pool)
        for value in (b"", b"\r\n", bytes(range(256)) * 4096, "text", {"a": [1, 2]}):
            self.assertTrue(client.set("m", value, ttl=300))
            self.assertEqual(client.get("m"), value)
        keys = [Key(f"m{at}") for at in range(300)]
        for at, key in enumerate(keys):
            client.set(key, at, ttl=300)
        self.assertEqual(client.multi_get(keys), {key: at for at, key in enumerate(keys)})


class TakenAway(AccessTest):
    """SIGHUP, while clients are connected."""

    def setUp(self):
        self.folder.users.write_bytes(self.users)
        self.server.reload()

    @classmethod
    def files(cls):
        folder = Folder("access-changed")
        cls.addClassCleanup(folder.close)
        folder.user("alice", "--write", "default")
        folder.user("watcher", "--admin", "*")
        cls.users = folder.users.read_bytes()
        return folder

    def change(self, before, after):
        """Rights alone: a password that is given again has another hash."""
        text = self.folder.users.read_text()
        self.assertIn(before, text)
        self.folder.users.write_text(text.replace(before, after))

    def both(self):
        text, binary = self.plain("alice"), self.connect()
        self.assertEqual(binary.sasl("alice"), 0)
        self.assertEqual(text.ask(b"set k 0 0 1\r\nx\r\n"), b"STORED\r\n")
        self.assertEqual(binary.ask_frame(0x01, b"k", STORE, b"y")[1], 0)
        return text, binary

    def test_a_right_ends_at_the_next_request(self):
        text, binary = self.both()
        # Half of a request came before.
        late = self.plain("alice")
        late.send(b"set k 0 0 4\r\nla")
        self.change("alice write:default", "alice read:default")
        self.assertIn("read", self.server.reload())
        late.send(b"te\r\n")
        self.assertEqual(late.line(), b"CLIENT_ERROR alice has no right to write the keyspace default\r\n")
        self.assertEqual(text.ask(b"set k 0 0 1\r\nz\r\n"), b"CLIENT_ERROR alice has no right to write the keyspace default\r\n")
        self.assertEqual(binary.ask_frame(0x01, b"k", STORE, b"z")[1], REFUSED)
        self.assertEqual(text.ask(b"get k\r\n", 3), b"VALUE k 0 1\r\ny\r\nEND\r\n")
        self.assertEqual(binary.ask_frame(0x00, b"k"), (0x00, 0, b"y"))

    def test_a_user_or_a_password_ends_at_the_next_request(self):
        for change in (lambda: self.folder.remove_user("alice"),
                       lambda: self.folder.user("alice", "--write", "default", password="another")):
            self.setUp()
            text, binary = self.both()
            setter, getter = self.plain("alice"), self.plain("alice")
            change()
            self.server.reload()
            self.assertEqual(text.ask(b"get k\r\n"), b"CLIENT_ERROR unauthenticated\r\n")
            self.assertTrue(text.is_over())
            # Its value is no login, whatever it is.
            setter.send(b"set k 0 0 11\r\nalice guess\r\n" * 100)
            self.assertEqual(setter.line(), b"CLIENT_ERROR unauthenticated\r\n")
            self.assertTrue(setter.is_over())
            getter.send(b"get" + b" k" * 200_000)
            with contextlib.suppress(ConnectionError):
                self.assertEqual(getter.line(), b"CLIENT_ERROR unauthenticated\r\n")
            self.assertTrue(getter.is_over())
            self.assertEqual(binary.ask_frame(0x00, b"k")[1], REFUSED)
            self.assertTrue(binary.is_over())
            again = self.plain(source="127.0.2.1")
            self.assertEqual(again.ask(login_of("alice")), b"CLIENT_ERROR authentication failure\r\n")
        self.plain().log_in("alice", "another")
        self.assertNotIn("failed lately", self.server.said().rpartition("again")[0].rpartition("again")[2])

    def test_who_watches_is_shown_no_more(self):
        watcher, other = self.plain("watcher"), self.plain("watcher")
        self.assertEqual(watcher.ask(b"watch fetchers\r\n"), b"OK\r\n")
        other.all(b"get seen\r\n")
        self.assertIn(b"seen", watcher.line())
        self.change("watcher admin:*", "watcher write:*")
        self.server.reload()
        self.assertEqual(other.ask(b"get hidden\r\n"), b"END\r\n")
        self.assertTrue(watcher.is_over())

    def test_a_get_without_an_end_ends(self):
        client = self.plain("alice")
        client.all(b"set k 0 0 1\r\nx\r\n")
        keys = b" k" * 200_000
        client.send(b"get" + keys)
        self.assertEqual(client.line(), b"VALUE k 0 1\r\n")
        self.folder.remove_user("alice")
        self.server.reload()
        client.send(keys)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            while client.line():
                pass
        self.assertTrue(client.is_over())

    def test_requests_that_came_together_see_one_change(self):
        client = self.plain("alice")
        client.all(b"set k 0 0 1\r\n0\r\n")
        stop, done = threading.Event(), []

        def ask_on():
            while not stop.is_set() or not done:
                client.send(b"set k 0 0 1\r\n1\r\nget k\r\n" * 50)
                replies = [client.line()]
                for at in range(50):
                    if at:
                        replies.append(client.line())
                    replies.extend(client.line() for _ in range(3))
                done.append(replies)

        asking = threading.Thread(target=ask_on)
        asking.start()
        time.sleep(0.05)
        self.change("alice write:default", "alice read:default")
        self.server.reload()
        stop.set()
        asking.join()
        sets = [reply for replies in done for reply in replies if reply.startswith((b"STORED", b"CLIENT_ERROR"))]
        refused = [at for at, reply in enumerate(sets) if reply != b"STORED\r\n"]
        self.assertEqual(refused, list(range(len(sets) - len(refused), len(sets))), "none is served behind one that is refused")
        self.assertEqual(client.ask(b"set k 0 0 1\r\n2\r\n"), b"CLIENT_ERROR alice has no right to write the keyspace default\r\n")

    def test_a_broken_file_leaves_the_one_before_in_use(self):
        whole, chain, key = (path.read_bytes() for path in (self.folder.users, self.folder.chain, self.folder.key))
        client = self.connect("alice")
        try:
            for path, broken in ((self.folder.users, b"alice write\n"), (self.folder.users, b"\xff" + whole), (self.folder.chain, b""),
                                 (self.folder.chain, chain[:300]), (self.folder.key, key[:60]), (self.folder.key, b"nothing")):
                path.write_bytes(broken)
                said = self.server.reload()
                self.assertIn("ERROR", said)
                self.assertNotIn(PASSWORD, said)
                self.assertEqual(client.ask(b"set k 0 0 1\r\nx\r\n"), b"STORED\r\n")
                self.connect("alice").close()
                for path, kept in ((self.folder.users, whole), (self.folder.chain, chain), (self.folder.key, key)):
                    path.write_bytes(kept)
            os.chmod(self.folder.users, 0o644)
            self.assertIn("chmod 600", self.server.reload())
        finally:
            for path, kept in ((self.folder.users, whole), (self.folder.chain, chain), (self.folder.key, key)):
                path.write_bytes(kept)
                os.chmod(path, 0o600)

    def test_a_new_certificate_is_shown_to_new_clients(self):
        before = self.connect("alice")
        old = before.socket.getpeercert(binary_form=True)
        self.assertTrue(self.is_resumed(before))
        self.folder.authority.certify("server")
        self.server.reload()
        after = self.connect("alice")
        self.assertNotEqual(after.socket.getpeercert(binary_form=True), old)
        self.assertEqual(before.ask(b"set k 0 0 1\r\nx\r\n"), b"STORED\r\n")
        self.assertFalse(self.is_resumed(before))

    def is_resumed(self, earlier):
        raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT)
        with earlier.socket.context.wrap_socket(raw, server_hostname="localhost", session=earlier.socket.session) as again:
            return again.session_reused


class Tls(AccessTest):
    """With users, since none of these may let anybody in."""

    def shake(self, context, session=None, port=None):
        raw = socket.create_connection(("127.0.0.1", port or self.server.port), timeout=TIMEOUT)
        self.addCleanup(raw.close)
        wrapped = context.wrap_socket(raw, server_hostname="localhost", session=session)
        self.addCleanup(wrapped.close)
        return wrapped

    def test_sessions_are_resumed_and_nothing_is_sent_early(self):
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            context = self.server.context(version=version)
            first = self.shake(context)
            first.sendall(login_of("writer"))
            self.assertEqual(first.recv(100), b"STORED\r\n")
            self.assertFalse(first.session_reused)
            second = self.shake(context, first.session)
            self.assertTrue(second.session_reused, version)
            second.sendall(b"get a\r\n")
            self.assertEqual(second.recv(100), b"CLIENT_ERROR unauthenticated\r\n", "a session is no login")
        told = self.s_client("-tls1_3", "-sess_out", self.folder.path / "session", words=b"quit\r\n", wait=0.3)
        self.assertIn("Max Early Data: 0", told)
        early = self.folder.path / "early"
        early.write_bytes(b"version\r\n")
        told = self.s_client("-tls1_3", "-sess_in", self.folder.path / "session", "-early_data", early, words=b"quit\r\n")
        self.assertNotIn("Early data was accepted", told)

    def s_client(self, *options, words=b"", wait=0.0, before=()):
        """What openssl says; `words` are sent after `wait` seconds, and each of those `before` them too."""
        command = ["openssl", "s_client", "-connect", f"127.0.0.1:{self.server.port}", "-CAfile", self.folder.authority.pem, *options]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        for line in before:
            time.sleep(wait)
            process.stdin.write(line)
            process.stdin.flush()
        time.sleep(wait)
        with contextlib.suppress(BrokenPipeError):
            return process.communicate(words, timeout=TIMEOUT)[0].decode(errors="replace")
        return process.communicate(timeout=TIMEOUT)[0].decode(errors="replace")

    def test_old_versions_and_weak_ciphers_are_refused(self):
        for options in (("-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0"), ("-tls1", "-cipher", "DEFAULT@SECLEVEL=0"),
                        ("-tls1_2", "-cipher", "AES128-SHA:@SECLEVEL=0"), ("-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA:@SECLEVEL=0")):
            told = self.s_client(*options)
            self.assertRegex(told, "alert protocol version|alert handshake failure", options)
            self.assertIn("Cipher is (NONE)", told)

    def test_a_renegotiation_is_not_begun(self):
        served = self.connect("writer")
        for _ in range(3):
            told = self.s_client("-tls1_2", words=b"R\n", wait=0.2)
            self.assertIn("RENEGOTIATING", told)
            self.assertNotIn("CLIENT_ERROR", told)
        self.assertEqual(served.ask(b"get a\r\n"), b"END\r\n")

    def test_keys_are_updated_between_requests(self):
        told = self.s_client("-tls1_3", before=(b"K\n", b"k\n", login_of("writer"), b"K\n", b"get none\r\n"), words=b"quit\r\n", wait=0.1)
        counts = [told.splitlines().count(line) for line in ("KEYUPDATE", "STORED", "END")]
        self.assertEqual(counts, [3, 1, 1], told[-500:])

    def test_parts_of_handshakes_behind_the_handshake(self):
        served = self.connect("writer")
        part = (HANDSHAKE, b"\1")
        whole = (HANDSHAKE, b"\1\0\0\0")
        for number, kinds in enumerate((
                ((DATA, b"get a\r\n"), part), (part, (DATA, b"get a\r\n")), ((DATA, b"quit\r\n"), part), (part, part, part), (whole,) * 50,
                ((DATA, b"get a\r\n" * 100), (HANDSHAKE, b"\1\0\1")), ((HANDSHAKE, b""),) * 50, ((DATA, b""),) * 50, ((99, b"x"),),
                ((HANDSHAKE, b"\xff\xff\xff\xff" + bytes(1000)),), ((DATA, b"version\r\n"), (21, b"\1\0")), ((21, b"\1\x64"),) * 50)):
            with self.subTest(number), socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT) as raw:
                client = Records(raw, self.server.context(), self.folder.path / "keys")
                with contextlib.suppress(ConnectionError):
                    raw.sendall(b"".join(client.record(*parts) for parts in kinds))
                    if kinds[0][1].startswith((b"get", b"quit", b"version")):
                        raw.recv(1000)
                    raw.shutdown(socket.SHUT_WR)
                    while raw.recv(1 << 16):
                        pass
                self.assertEqual(served.ask(b"get none\r\n"), b"END\r\n")

    def test_handshakes_that_were_damaged_on_the_way(self):
        served, random = self.connect("writer"), Random(1)
        for number in range(160):
            raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            context = self.server.context(version=(ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)[number % 2])
            session = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
            flight, damaged = 0, number // 2 % 2
            with raw, contextlib.suppress(ConnectionError, ssl.SSLError):
                for flight in range(4):
                    with contextlib.suppress(ssl.SSLWantReadError):
                        session.do_handshake()
                    data = bytearray(outgoing.read())
                    if flight == damaged and data:
                        for _ in range(random.choice((1, 1, 1, 3, 30))):
                            # Lengths and kinds stand at the beginning.
                            at = random.choice((random.randrange(len(data)), random.randrange(min(50, len(data)))))
                            data[at] = random.choice((0, 1, 22, 255, data[at] ^ 1 << random.randrange(8)))
                        cut = random.choice((len(data), random.randrange(len(data))))
                        raw.sendall(data[:cut])
                        data = data[cut:]
                        if flight == damaged and random.randrange(2):
                            raw.shutdown(socket.SHUT_WR)
                            break
                    raw.sendall(data)
                    raw.settimeout(0.05)
                    with contextlib.suppress(TimeoutError):
                        incoming.write(raw.recv(1 << 16))
            self.assertEqual(served.ask(b"get none\r\n"), b"END\r\n", number)

    def test_plain_words_at_a_port_with_tls_and_the_reverse(self):
        for words in (b"get a\r\n" * 10, b"version\r\n", frame_of(0x0b), b"\x16\x03\x01", b"\x16\x03\x01\x00\x05hello", bytes(100),
                      b"\xff" * 70_000):
            with socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT) as raw:
                came = b""
                with contextlib.suppress(ConnectionError):
                    raw.sendall(words)
                    raw.shutdown(socket.SHUT_WR)
                    while piece := raw.recv(100):
                        came += piece
                self.assertNotIn(b"VERSION", came)
                self.assertNotIn(b"CLIENT_ERROR", came)
        with self.assertRaises((ssl.SSLError, ConnectionError)):
            self.shake(self.server.context(), port=self.server.plain_port)
        self.assertEqual(self.connect("writer").ask(b"get a\r\n"), b"END\r\n")

    def test_large_values_and_many_requests_are_those_without_tls(self):
        over, plain = self.connect("writer"), self.plain("writer")
        value = os.urandom(4 << 20)
        for client in (over, plain):
            client.send(b"set large 0 0 %d\r\n%s\r\n" % (len(value), value))
            self.assertEqual(client.line(), b"STORED\r\n")
        wanted = b"VALUE large 0 %d\r\n%s\r\nEND\r\n" % (len(value), value)
        count = 3
        for client in (over, plain):
            client.send(b"get large\r\n" * count)
            for _ in range(count):
                self.assertTrue(client.replies.read(len(wanted)) == wanted)
        requests = b"".join(b"set k%d 0 0 %d\r\n%s\r\nget k%d\r\n" % (at, at % 300, b"v" * (at % 300), at) for at in range(5000))
        got = []
        for client in (over, plain):
            sending = threading.Thread(target=client.send, args=(requests + b"mn\r\n",))
            sending.start()
            got.append(list(iter(client.line, b"MN\r\n")))
            sending.join()
        self.assertTrue(got[0] == got[1])
        self.assertEqual(got[0].count(b"STORED\r\n"), 5000)

    def test_a_new_client_hears_nothing_of_what_others_asked(self):
        # Each worker opens what comes in a buffer of its own.
        others = [self.connect("writer") for _ in range(8)]
        for number in range(10):
            for other in others:
                self.assertEqual(other.ask(b"get none\r\n"), b"END\r\n")
            raw = socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT)
            self.addCleanup(raw.close)
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            session = self.server.context().wrap_bio(incoming, outgoing, server_hostname="localhost")
            cut, is_done = 100, False
            while not is_done:
                with contextlib.suppress(ssl.SSLWantReadError):
                    session.do_handshake()
                    is_done = True
                data = outgoing.read()
                raw.sendall(data[:cut])
                time.sleep(0.001)
                raw.sendall(data[cut:])
                if not is_done:
                    incoming.write(raw.recv(1 << 16))
            session.write(b"get none\r\n" + login_of("writer"))
            raw.sendall(outgoing.read())
            answer = b""
            while not answer.endswith(b"STORED\r\n"):
                with contextlib.suppress(ssl.SSLWantReadError):
                    answer += session.read(1000)
                    continue
                incoming.write(raw.recv(1 << 16))
            self.assertEqual(answer, b"CLIENT_ERROR unauthenticated\r\nSTORED\r\n", number)

    def test_slow_readers_and_writers(self):
        slow, value = self.connect("writer"), os.urandom(1 << 20)
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        slow.send(b"set slow 0 0 %d\r\n%s\r\n" % (len(value), value))
        self.assertEqual(slow.line(), b"STORED\r\n")
        count = 4
        sending = threading.Thread(target=slow.send, args=(b"get slow\r\n" * count,))
        sending.start()
        other = self.connect("writer")
        for _ in range(100):
            self.assertEqual(other.ask(b"get none\r\n"), b"END\r\n")
        time.sleep(0.3)
        wanted = b"VALUE slow 0 %d\r\n%s\r\nEND\r\n" % (len(value), value)
        for _ in range(count):
            self.assertTrue(slow.replies.read(len(wanted)) == wanted)
        sending.join()
        for piece in (login_of("writer"), b"set byte 0 0 5\r\nbytes\r\n", b"get byte\r\n"):
            for at in range(len(piece)):
                other.send(piece[at:at + 1]) if piece != login_of("writer") else None
        self.assertEqual(b"".join(other.line() for _ in range(4)), b"STORED\r\nVALUE byte 0 5\r\nbytes\r\nEND\r\n")

    def test_ends_that_are_told_and_those_that_are_not(self):
        # One who sends nothing more still gets his answers.
        raw = self.server.connect(source="127.0.0.1").detach()
        self.addCleanup(raw.close)
        raw.sendall(login_of("writer") + b"set half 0 0 1\r\nx\r\nget half\r\n" * 100)
        came = b""
        with contextlib.suppress(ssl.SSLError):
            raw.settimeout(TIMEOUT)
            raw.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ssl.SSLError, ConnectionError, ValueError):
            while piece := socket.socket.recv(raw, 1 << 20):
                came += piece
        self.assertGreater(len(came), 100 * 20)
        # One who hangs up in the middle of a record, and one who does in the middle of a handshake.
        for _ in range(20):
            broken = self.connect("writer")
            broken.send(b"set half 0 0 100000\r\n" + b"x" * 50_000)
            broken.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            broken.close()
            with socket.create_connection(("127.0.0.1", self.server.port)) as raw:
                raw.sendall(b"\x16\x03\x01\x02\x00\x01")
        again = self.connect("writer")
        self.assertEqual(again.ask(b"get half\r\n", 3), b"VALUE half 0 1\r\nx\r\nEND\r\n")
        # It is told the end, so that it knows an end from an attack.
        again.send(b"quit\r\n")
        self.assertEqual(again.socket.recv(100), b"")


class Storm(threading.Thread):
    """Handshakes of a byte a second, so many at once. One who was there before goes on, and another gets in behind them. It goes on beside
    other tests, as it takes ten seconds."""

    def __init__(self, name, connections):
        super().__init__()
        self.name, self.connections, self.ended, self.failure = name, connections, threading.Event(), None
        self.start()

    def run(self):
        try:
            self.rage()
        except Exception as failure:  # shown by whoever asks for the result
            self.failure = failure

    def result(self):
        self.join()
        if self.failure:
            raise self.failure
        return self.figures

    def rage(self):
        with contextlib.ExitStack() as stack:
            folder = Folder(self.name)
            stack.callback(folder.close)
            folder.user("writer", "--write", "default")
            server = SecuredServer(self.name, folder, ["--connections", "12000"])
            stack.callback(server.close)
            served = stack.enter_context(server.connect(login="writer"))
            served.ask(b"set k 0 0 1\r\nx\r\n")
            before, began, slow = server.resident_mebibytes(), time.monotonic(), []
            for _ in range(self.connections):
                raw = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=TIMEOUT))
                raw.setblocking(False)
                slow.append(raw)
            opened = time.monotonic() - began
            hello, sent, longest, gets, most, next_byte = client_hello(), 0, 0, 0, 0, time.monotonic()
            while slow and time.monotonic() - began < opened + 40 and not self.ended.is_set():
                if time.monotonic() >= next_byte:
                    next_byte += 1
                    slow, sent = [raw for raw in slow if is_open_after(raw, hello[sent:sent + 1])], sent + 1
                    most = max(most, server.resident_mebibytes())
                asked = time.monotonic()
                if served.ask(b"get k\r\n", 3) != b"VALUE k 0 1\r\nx\r\nEND\r\n":
                    raise AssertionError("another answer")
                longest, gets = max(longest, time.monotonic() - asked), gets + 1
                time.sleep(0.002)
            ended = time.monotonic() - began
            if self.ended.is_set():
                return
            with server.connect(login="writer") as new:
                if new.ask(b"get k\r\n", 3) != b"VALUE k 0 1\r\nx\r\nEND\r\n":
                    raise AssertionError("another answer")
            self.figures = {"still open": len(slow), "opened after s": opened, "ended after s": ended, "gets": gets, "longest get s": longest,
                            "MiB before": before, "MiB at the most": most}


def is_open_after(raw, data):
    try:
        raw.send(data)
        return raw.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False


class Storms(unittest.TestCase):
    def expect(self, figures, connections):
        self.assertEqual(figures["still open"], 0, figures)
        self.assertLess(figures["ended after s"] - figures["opened after s"], 16, figures)
        self.assertGreater(figures["gets"], 500, figures)
        self.assertLess(figures["longest get s"], 2, figures)
        self.assertLess(figures["MiB at the most"] - figures["MiB before"], 16 + connections // 50, figures)

    def test_slow_handshakes_keep_nobody_waiting(self):
        self.expect(storms[0].result(), 300)

    @unittest.skipUnless("TAPETUM_HANDSHAKES" in os.environ, "many, by hand: TAPETUM_HANDSHAKES=10000 wants ulimit -n 12000")
    def test_many_slow_handshakes_keep_nobody_waiting(self):
        connections = int(os.environ["TAPETUM_HANDSHAKES"])
        figures = Storm("access-storms", connections).result()
        print(connections, figures)
        self.expect(figures, connections)


def client_hello():
    """The first bytes of a handshake."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing, server_hostname="localhost").do_handshake()
    return outgoing.read()


class ClientCertificates(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Folder("access-certificates")
        cls.addClassCleanup(cls.folder.close)
        cls.known = cls.folder.authority.certify("known", "DNS:known")
        cls.stranger = Authority(cls.folder.path, "stranger").certify("strange", "DNS:known")

    def serve(self, *options):
        server = SecuredServer("access-certificates", self.folder, ["--ssl-ca-cert", self.folder.authority.pem, *options])
        self.addCleanup(server.close)
        return server

    def is_served(self, server, **of_context):
        try:
            with server.connect(**of_context) as client:
                return client.ask(b"get a\r\n") == b"END\r\n"
        except (ssl.SSLError, ConnectionError):
            return False

    def test_those_without_one_of_the_authority_are_refused_and_so_is_an_old_version(self):
        server = self.serve("--ssl-min-version", "tlsv1.3")
        for _ in range(3):
            self.assertFalse(self.is_served(server))
            self.assertFalse(self.is_served(server, certificate=self.stranger))
            self.assertTrue(self.is_served(server, certificate=self.known))
        self.assertFalse(self.is_served(server, certificate=self.known, version=ssl.TLSVersion.TLSv1_2))
        self.assertTrue(self.is_served(server, certificate=self.known, version=ssl.TLSVersion.TLSv1_3))

    def test_those_that_are_asked_may_have_none(self):
        server = self.serve("--ssl-verify-mode", "request")
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
            self.assertTrue(self.is_served(server, version=version))
            self.assertFalse(self.is_served(server, certificate=self.stranger, version=version))
            self.assertTrue(self.is_served(server, certificate=self.known, version=version))


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


if __name__ == "__main__":
    unittest.main()
