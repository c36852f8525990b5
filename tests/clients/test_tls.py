"""TLS: resumption, certificates, and clients that do not keep to it."""

import contextlib
import itertools
import os
import select
import socket
import ssl
import struct
import subprocess
import threading
import time
import unittest
from random import Random

from records import DATA, HANDSHAKE, Records
from secured import TIMEOUT, AccessTest, Authority, Folder, SecuredServer, frame_of, login_of
from server import IS_MEMCACHED


def setUpModule():
    if IS_MEMCACHED:
        raise unittest.SkipTest("it has other options for TLS")
    storms.append(Storm("access-storm", 300))


def tearDownModule():
    for storm in storms:
        storm.ended.set()
        storm.join()


storms = []


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
                    end(raw)
                    while raw.recv(1 << 16):
                        pass
                self.assertEqual(served.ask(b"get none\r\n"), b"END\r\n")

    def test_bytes_that_are_no_tls_behind_a_part_of_a_handshake_while_an_answer_waits(self):
        served = self.connect("writer")
        garbage = struct.pack(">BHH", DATA, 0x303, 40) + bytes(40)
        for number, kinds in enumerate((
                ((DATA, b"version\r\n"), (HANDSHAKE, b"\x18")), ((DATA, b"version\r\n"), (HANDSHAKE, b"\1\0")),
                ((HANDSHAKE, b"\1"), (DATA, b"version\r\n")), ((DATA, b"version\r\n" * 50),))):
            with self.subTest(number), socket.create_connection(("127.0.0.1", self.server.port), timeout=TIMEOUT) as raw:
                client = Records(raw, self.server.context(), self.folder.path / "keys")
                with contextlib.suppress(ConnectionError):
                    raw.sendall(client.record(DATA, login_of("writer")))
                    raw.recv(1000)
                    # A long one first: the next read is of all that has come.
                    raw.sendall(client.record(DATA, b"set long 0 0 9000\r\n" + b"x" * 9000 + b"\r\n"))
                    raw.recv(1000)
                    raw.sendall(b"".join(client.record(*parts) for parts in kinds) + garbage)
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
                            end(raw)
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
                    end(raw)
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
        got = [ask_at_once(client.socket, requests + b"mn\r\n", b"MN\r\n").splitlines(True) for client in (over, plain)]
        differing = [pair for pair in itertools.zip_longest(*got) if pair[0] != pair[1]]
        self.assertFalse(differing[:10], f"{len(differing)} lines differ")
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
        slow.send(b"get slow\r\n" * count)
        other = self.connect("writer")
        for _ in range(100):
            self.assertEqual(other.ask(b"get none\r\n"), b"END\r\n")
        time.sleep(0.3)
        wanted = b"VALUE slow 0 %d\r\n%s\r\nEND\r\n" % (len(value), value)
        for _ in range(count):
            self.assertTrue(slow.replies.read(len(wanted)) == wanted)
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
        raw.settimeout(TIMEOUT)
        end(raw)
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


def ask_at_once(raw, requests, last):
    """What it answers up to `last`, while requests are sent as fast as it takes them: by one thread, since those of OpenSSL are one thread's."""
    raw.setblocking(False)
    answers = bytearray()
    while not answers.endswith(last):
        select.select([raw], [raw] if requests else [], [], TIMEOUT)
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            requests = requests[raw.send(requests[:1 << 14]):] if requests else requests
        with contextlib.suppress(BlockingIOError, ssl.SSLWantReadError):
            while piece := raw.recv(1 << 16):
                answers += piece
            raise EOFError(bytes(answers[-100:]))
    return bytes(answers)


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


def end(raw):
    """Sends nothing more; the other side may have closed it already."""
    with contextlib.suppress(OSError):
        raw.shutdown(socket.SHUT_WR)


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
        self.assertLess(figures["ended after s"] - figures["opened after s"], 45, figures)
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
