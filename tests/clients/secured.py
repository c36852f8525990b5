"""A server that asks for logins, and speaks TLS: its certificates and users, and connections that speak its protocols byte by byte."""

import atexit
import functools
import os
import pathlib
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import time
import unittest

from server import BINARY, IS_MEMCACHED, SCRATCH, Server, free_port

PASSWORD = "open sesame"
# Users with every combination of rights.
RIGHTS = {"other": ("--admin", "another"), "reader": ("--read", "default"), "writer": ("--write", "default"),
          "admin": ("--admin", "default"), "allreader": ("--read", "*"), "allwriter": ("--write", "*"), "root": ("--admin", "*")}
TIMEOUT = 60  # seconds; only a fault waits so long


def openssl(*words, folder, **options):
    subprocess.run(["openssl", *words], cwd=folder, capture_output=True, check=True, **options)


class Authority:
    """One of certificates, made by openssl in a folder."""

    def __init__(self, folder, name="ca"):
        self.folder, self.name = folder, name
        openssl("req", "-x509", *NEW_KEY, f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-days", "2", folder=folder)
        self.pem = folder / f"{name}.pem"

    def certify(self, name, alternative_names="DNS:localhost,IP:127.0.0.1"):
        """The paths of a certificate and its key."""
        (self.folder / f"{name}.ext").write_text(f"subjectAltName={alternative_names}\n")
        openssl("req", *NEW_KEY, f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", folder=self.folder)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", f"{self.name}.pem", "-CAkey", f"{self.name}.key", "-CAcreateserial",
                "-extfile", f"{name}.ext", "-days", "2", "-out", f"{name}.pem", folder=self.folder)
        return self.folder / f"{name}.pem", self.folder / f"{name}.key"


NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")


class Folder:
    """A server's files: certificates, and users by the command line."""

    def __init__(self, name):
        self.path = SCRATCH / f"{name}-files-{os.getpid()}"
        shutil.rmtree(self.path, ignore_errors=True)
        self.path.mkdir()
        self.authority = Authority(self.path)
        self.chain, self.key = self.authority.certify("server")
        self.users = self.path / "users"

    def user(self, name, *rights, password=PASSWORD):
        return subprocess.run([BINARY, "user", "add", name, *rights, "--password-file", "-", "--users-file", self.users, "--replace"],
                              input=password.encode(), capture_output=True, check=True)

    def remove_user(self, name):
        subprocess.run([BINARY, "user", "remove", name, "--users-file", self.users], capture_output=True, check=True)

    def close(self):
        shutil.rmtree(self.path, ignore_errors=True)


class SecuredServer(Server):
    """Speaks TLS at `port` and none at `plain_port`, to the users of its folder if it has any."""

    def __init__(self, name, folder, options=()):
        self.folder, self.plain_port = folder, free_port()
        users = ["--users-file", folder.users] if folder.users.exists() else []
        super().__init__(name, ["--ssl-chain-cert", folder.chain, "--ssl-key", folder.key, *users,
                                "--memcached", f"notls:127.0.0.1:{self.plain_port}", *options])

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.plain_port), timeout=5) as connection:
                connection.sendall(b"version\r\n")
                return connection.recv(8) in (b"VERSION ", b"CLIENT_E")
        except OSError:
            return False

    def said(self):
        return self.log.read_text()

    def reload(self):
        """Returns what the log says of it."""
        before = len(self.said())
        self.process.send_signal(signal.SIGHUP)
        told = 1 + self.folder.users.exists()
        deadline = time.monotonic() + TIMEOUT
        while True:
            said = self.said()[before:]
            if sum(said.count(words) for words in (" again", "stays as it was", "stay as they were")) >= told:
                return said
            if time.monotonic() > deadline:
                raise AssertionError(f"it does not say that it read its files: {said}")
            time.sleep(0.005)

    def cpu_seconds(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mebibytes(self, field="VmRSS"):
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(field + ":"):
                return int(line.split()[1]) >> 10
        raise AssertionError(field)

    def context(self, version=None, certificate=None):
        """What a client needs for TLS; a version, if it speaks this one alone."""
        context = ssl.create_default_context(cafile=self.folder.authority.pem)
        if version:
            context.minimum_version = context.maximum_version = version
        if certificate:
            context.load_cert_chain(*certificate)
        return context

    def connect(self, tls=True, source="127.0.0.1", login=None, **of_context):
        """A connection of one whose address is `source`: failures of one slow no other."""
        port = self.port if tls else self.plain_port
        raw = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT, source_address=(source, 0))
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if tls:
            raw = self.context(**of_context).wrap_socket(raw, server_hostname="localhost")
        connection = Connection(raw)
        if login:
            connection.log_in(login)
        return connection


class Connection:
    """Text by lines, and binary by frames."""

    def __init__(self, raw):
        self.socket, self.replies = raw, raw.makefile("rb")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.replies.close()
        self.socket.close()

    def detach(self):
        """The socket, for whom reads it himself."""
        self.replies.close()
        return self.socket

    def send(self, data):
        self.socket.sendall(data)

    def line(self):
        return self.replies.readline()

    def ask(self, data, lines=1):
        self.send(data)
        return b"".join(self.line() for _ in range(lines))

    def all(self, data):
        """What it answers, up to the answer to a mn that follows."""
        self.send(data + b"mn\r\n")
        lines = []
        while not lines or lines[-1] not in (b"MN\r\n", b""):
            lines.append(self.line())
        if lines[-1] == b"":
            raise EOFError(lines)
        return b"".join(lines[:-1])

    def is_over(self):
        """Whether the server closes it, and says nothing more."""
        try:
            return self.replies.read(1) == b""
        except (ConnectionResetError, ssl.SSLError):
            return True

    def log_in(self, name, password=PASSWORD):
        reply = self.ask(login_of(name, password))
        if reply != b"STORED\r\n":
            raise AssertionError((name, reply))

    def frame(self):
        """Opcode, status and value of the next binary answer, without its extras."""
        head = self.replies.read(24)
        if len(head) < 24:
            raise EOFError
        _, opcode, key_bytes, extra_bytes, _, status, body_bytes, _, _ = struct.unpack(">BBHBBHIIQ", head)
        return opcode, status, self.replies.read(body_bytes)[extra_bytes + key_bytes:]

    def ask_frame(self, *parts, **more):
        self.send(frame_of(*parts, **more))
        return self.frame()

    def sasl(self, name, password=PASSWORD):
        return self.ask_frame(0x21, b"PLAIN", value=plain_of(name, password))[1]


def login_of(name, password=PASSWORD, end=b"\r\n"):
    words = f"{name} {password}".encode()
    return b"set auth 0 0 %d%s%s\r\n" % (len(words), end, words)


def plain_of(name, password=PASSWORD):
    return f"\0{name}\0{password}".encode()


def frame_of(opcode, key=b"", extras=b"", value=b"", opaque=7, stamp=0):
    return struct.pack(">BBHBBHIIQ", 0x80, opcode, len(key), len(extras), 0, 0, len(extras) + len(key) + len(value), opaque,
                       stamp) + extras + key + value


@functools.cache
def everybody():
    """Files with users who have every combination of rights."""
    folder = Folder("access")
    atexit.register(folder.close)
    for name, rights in RIGHTS.items():
        folder.user(name, *rights)
    return folder


class AccessTest(unittest.TestCase):
    """With a server of its own."""

    @classmethod
    def setUpClass(cls):
        if IS_MEMCACHED:
            raise unittest.SkipTest("it has other options for users and TLS")
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
