"""Logins: before one and behind it, wrong ones, with the libraries that people use, and what a change of the users file takes away."""

import contextlib
import os
import re
import socket
import ssl
import threading
import time

import bmemcached
import pymemcache
from meta_memcache import CacheClient, Key, ServerAddress
from meta_memcache.connection.pool import ConnectionPool

from secured import PASSWORD, TIMEOUT, AccessTest, Folder, SecuredServer, frame_of, login_of, plain_of
from test_access import (BINARY_FRAMES, BINARY_OF_STORE, REFUSED, STORE, TEXT, TEXT_OF_STORE, UNKNOWN, rows)


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
        for number, client in enumerate(slowed):
            client.send(login_of("reader", f"guess{number}"))
        longest = 0
        for _ in range(1000):
            asked = time.monotonic()
            self.assertEqual(served.ask(b"get a\r\n", 3), b"VALUE a 0 1\r\nx\r\nEND\r\n")
            longest = max(longest, time.monotonic() - asked)
        self.assertLess(longest, 2)
        # One more than may wait, while some still do.
        more = [self.plain(source="127.0.1.1") for _ in range(64)]
        for number, client in enumerate(more):
            client.send(login_of("reader", f"guess{100 + number}"))
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
        # A connection that was not accepted by then hears nothing.
        told = {client.line() for client in clients[10:]} - {b""}
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
