"""NBD over TLS: STARTTLS, and users whom their certificates name. Clients are libnbd, nbdcopy and raw bytes."""

import os
import pathlib
import re
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
import unittest

import host
import nbd
from host import BINARY, SCRATCH

SIZE = 1 << 20
STORE = ("--capacity", "128MiB", "--memory", "64MiB")
ACK, ERR_UNSUPPORTED, ERR_INVALID, ERR_UNKNOWN, ERR_TLS_REQUIRED = 1, (1 << 31) + 1, (1 << 31) + 3, (1 << 31) + 6, (1 << 31) + 5
ABORT, LIST, START_TLS, INFO, GO, STRUCTURED, SET_CONTEXT = 2, 3, 5, 6, 7, 8, 10


def openssl(*words):
    subprocess.run(("openssl", *words), check=True, capture_output=True)


class Certificates:
    """An authority, and certificates by it: `NAME/cert.pem` and `NAME/key.pem`, as libnbd wants them beside `ca-cert.pem`."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir()
        curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
        self.authority, self.authority_key = folder / "ca-cert.pem", folder / "ca-key.pem"
        openssl("req", "-x509", *curve, "-keyout", self.authority_key, "-out", self.authority, "-days", "2", "-subj", "/CN=authority")
        self.curve = curve

    def make(self, name, names, kind):
        folder = self.folder / name
        folder.mkdir()
        (folder / "ca-cert.pem").write_bytes(self.authority.read_bytes())
        key, cert, asked = folder / f"{kind}-key.pem", folder / f"{kind}-cert.pem", folder / "request.pem"
        openssl("req", *self.curve, "-keyout", key, "-out", asked, "-subj", f"/CN={name}", "-addext", f"subjectAltName={names}")
        openssl("x509", "-req", "-in", asked, "-CA", self.authority, "-CAkey", self.authority_key, "-CAcreateserial",
                "-out", cert, "-days", "2", "-copy_extensions", "copy")
        key.chmod(0o600)
        return folder


class Tls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH, prefix="nbd-tls"))
        certificates = Certificates(cls.folder / "certificates")
        cls.certificates = certificates
        server = certificates.make("server", "DNS:localhost,IP:127.0.0.1", "server")
        for name in ("writer", "reader", "stranger"):
            certificates.make(name, f"DNS:{name}", "client")
        cls.users = cls.folder / "users"
        cls.user("writer", "--write", "disk0")
        cls.user("reader", "--read", "disk0", "--write", "disk1")
        data = cls.folder / "data"
        for device in ("disk0", "disk1"):
            subprocess.run([BINARY, "keyspace", "create", device, "--block-device", str(SIZE), "--data", data, *STORE],
                           check=True, capture_output=True)
        socket_folder = tempfile.TemporaryDirectory(prefix="tapetum-nbd")
        cls.addClassCleanup(socket_folder.cleanup)
        cls.socket = f"{socket_folder.name}/socket"
        words = [*STORE, "--nbd", "127.0.0.1:0", "--nbd", f"unix:{cls.socket}", "--users-file", cls.users,
                 "--ssl-chain-cert", server / "server-cert.pem", "--ssl-key", server / "server-key.pem",
                 "--ssl-ca-cert", certificates.authority]
        cls.server = host.Server(data, [str(word) for word in words], (), cls.folder / "log")
        cls.server.wait_until_it_serves()
        cls.server.wait_for_log("NBD clients at unix:")
        cls.port = int(re.search(r"to NBD clients at 127\.0\.0\.1:(\d+)$", cls.server.log, re.MULTILINE)[1])
        cls.addClassCleanup(cls.server.kill)

    @classmethod
    def user(cls, name, *rights):
        words = [BINARY, "user", "add", name, *rights, "--certificate", "--replace", "--users-file", cls.users]
        subprocess.run(words, check=True, capture_output=True)

    def opened(self, user, export="disk0"):
        client = nbd.NBD()
        client.set_export_name(export)
        client.set_tls(nbd.TLS_REQUIRE)
        client.set_tls_certificates(str(self.certificates.folder / user))
        client.set_tls_verify_peer(True)
        client.connect_tcp("localhost", str(self.port))
        return client

    def test_a_writer_writes_and_nobody_else_sees_more_than_his_rights(self):
        writer = self.opened("writer")
        writer.pwrite(b"x" * 8192, 0)
        self.assertEqual(writer.pread(8192, 0), b"x" * 8192)
        reader = self.opened("reader")
        self.assertTrue(reader.is_read_only())
        self.assertEqual(reader.pread(512, 0), b"x" * 512)
        with self.assertRaises(nbd.Error):
            self.opened("writer", "disk1")
        self.assertFalse(self.opened("reader", "disk1").is_read_only())
        with self.assertRaises(nbd.Error):
            self.opened("stranger")

    def test_a_device_is_copied_there_and_back(self):
        image, back = self.folder / "image", self.folder / "back"
        image.write_bytes(os.urandom(SIZE))
        place = f"nbds://localhost:{self.port}/disk0?tls-certificates={self.certificates.folder / 'writer'}"
        subprocess.run(("nbdcopy", image, place), check=True)
        subprocess.run(("nbdcopy", place, back), check=True)
        self.assertEqual(back.read_bytes(), image.read_bytes())

    def test_the_owner_of_a_unix_socket_may_do_everything(self):
        client = nbd.NBD()
        client.set_export_name("disk1")
        client.connect_unix(self.socket)
        client.pwrite(b"y" * 512, 0)
        client.shutdown()

    def test_what_was_taken_away_ends_at_the_next_request(self):
        writer, reader = self.opened("writer"), self.opened("reader", "disk1")
        writer.pwrite(b"z" * 512, 512)
        self.user("writer", "--read", "disk0")
        self.user("reader", "--read", "disk0")
        self.reload()
        with self.assertRaises(nbd.Error):
            writer.pwrite(b"w" * 512, 512)
        self.assertEqual(writer.pread(512, 512), b"z" * 512)
        with self.assertRaises(nbd.Error):
            reader.pread(512, 0)
        self.user("writer", "--write", "disk0")
        self.user("reader", "--read", "disk0", "--write", "disk1")
        self.reload()

    def reload(self):
        before = self.server.log.count(" again: ")
        self.server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while self.server.log.count(" again: ") == before:
            self.assertLess(time.monotonic(), deadline, "nothing was read again")
            time.sleep(0.02)

    # Raw bytes.

    def greeted(self):
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=20)
        self.addCleanup(connection.close)
        self.assertEqual(connection.recv(18), b"NBDMAGICIHAVEOPT\x00\x03")
        connection.sendall(struct.pack(">I", 3))
        return connection

    @staticmethod
    def option(code, data=b""):
        return b"IHAVEOPT" + struct.pack(">II", code, len(data)) + data

    def replies(self, connection, count=1):
        kinds = []
        for _ in range(count):
            head = b""
            while len(head) < 20:
                more = connection.recv(20 - len(head))
                if not more:
                    return kinds
                head += more
            _, code, kind, length = struct.unpack(">QIII", head)
            while length:
                length -= len(connection.recv(length))
            kinds.append((code, kind))
        return kinds

    def test_nothing_is_answered_before_tls(self):
        connection = self.greeted()
        name = struct.pack(">I", 5) + b"disk0" + struct.pack(">H", 0)
        for code, data in ((LIST, b""), (INFO, name), (GO, name), (STRUCTURED, b""), (SET_CONTEXT, b"x"), (77, b"y")):
            connection.sendall(self.option(code, data))
            self.assertEqual(self.replies(connection), [(code, ERR_TLS_REQUIRED)])
        connection.sendall(self.option(START_TLS, b"x"))
        self.assertEqual(self.replies(connection), [(START_TLS, ERR_TLS_REQUIRED)])
        connection.sendall(self.option(1, b"disk0"))
        self.assertEqual(connection.recv(100), b"", "EXPORT_NAME has no other refusal")

    def test_options_before_tls_are_forgotten_and_it_begins_once(self):
        connection = self.greeted()
        connection.sendall(self.option(STRUCTURED) + self.option(START_TLS))
        self.assertEqual(self.replies(connection, 2), [(STRUCTURED, ERR_TLS_REQUIRED), (START_TLS, ACK)])
        context = ssl.create_default_context(cafile=self.certificates.authority)
        folder = self.certificates.folder / "writer"
        context.load_cert_chain(folder / "client-cert.pem", folder / "client-key.pem")
        secure = context.wrap_socket(connection, server_hostname="localhost")
        self.addCleanup(secure.close)
        contexts = struct.pack(">I", 5) + b"disk0" + struct.pack(">I", 1) + struct.pack(">I", 15) + b"base:allocation"
        secure.sendall(self.option(SET_CONTEXT, contexts) + self.option(START_TLS) + self.option(LIST))
        kinds = self.replies(secure, 4)
        self.assertEqual(kinds[0], (SET_CONTEXT, ERR_INVALID), "structured replies were not agreed on within TLS")
        self.assertEqual(kinds[1], (START_TLS, ERR_INVALID))
        self.assertEqual([code for code, _ in kinds[2:]], [LIST, LIST], "one device, and the end")

    def test_plaintext_behind_the_request_ends_the_connection(self):
        connection = self.greeted()
        connection.sendall(self.option(START_TLS) + self.option(LIST))
        connection.settimeout(20)
        said = b""
        try:
            while more := connection.recv(4096):
                said += more
        except ConnectionError:
            pass
        self.assertNotIn(b"disk", said)

    def test_a_client_without_a_certificate_and_one_of_another_authority_are_let_go(self):
        other = Certificates(self.folder / "other")
        other.make("writer", "DNS:writer", "client")
        for folder in (None, other.folder / "writer"):
            connection = self.greeted()
            connection.sendall(self.option(START_TLS))
            self.assertEqual(self.replies(connection), [(START_TLS, ACK)])
            context = ssl.create_default_context(cafile=self.certificates.authority)
            if folder:
                context.load_cert_chain(folder / "client-cert.pem", folder / "client-key.pem")
            with self.assertRaises((ssl.SSLError, ConnectionError)), \
                    context.wrap_socket(connection, server_hostname="localhost") as secure:
                secure.sendall(self.option(LIST))
                if not secure.recv(1):
                    raise ConnectionError
        self.assertEqual(self.server.process.poll(), None)


if __name__ == "__main__":
    unittest.main()
