"""A server of S3 for the tests, and a proxy before it that does what networks and servers do on bad days.

The server is moto, in memory; or versitygw, if TAPETUM_S3_SERVER names its binary. `cargo x test-backups` starts the tests in an
environment with moto and boto3, and sets TAPETUM_X, the binary that tries the seam of depots by itself.
"""

import atexit
import contextlib
import http.client
import http.server
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest.mock

import boto3
from botocore.config import Config
from host import BINARY, SCRATCH, HostTest

KEY, SECRET = "AKIATESTSOFTAPETUM", "secret/of+the/tests/of/tapetum/0123456789"
VERSITY = os.environ.get("TAPETUM_S3_SERVER")
PAGE = 7  # objects on a page of a list, where a proxy makes pages small


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Storage:
    """The server. All tests share one, each with a bucket of its own."""

    def __init__(self):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
        environment = {**os.environ, "ROOT_ACCESS_KEY": KEY, "ROOT_SECRET_KEY": SECRET}
        if VERSITY:
            (folder / "buckets").mkdir()
            words = [VERSITY, "--port", f"127.0.0.1:{self.port}", "posix", folder / "buckets"]
        else:
            words = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port)]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment)
        atexit.register(self.process.kill)
        deadline = time.monotonic() + 60
        while not answers(self.port):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server of S3 does not serve:\n{(folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)
        config = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1})
        self.client = boto3.client("s3", endpoint_url=self.url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
                                   region_name="us-east-1", config=config)

    def keys(self, bucket):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return [entry["Key"] for page in pages for entry in page.get("Contents", ())]


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=5):
        return True
    return False


_storage = []


def storage():
    if not _storage:
        _storage.append(Storage())
    return _storage[0]


class Fault:
    """Happens to requests of a method whose path and query match, so many times."""

    def __init__(self, method, pattern, what, times=1):
        self.method, self.pattern, self.what, self.times = method, re.compile(pattern), what, times
        self.happened = 0

    def takes(self, method, path):
        if self.method != method or not self.pattern.search(path) or self.happened >= self.times:
            return False
        self.happened += 1
        return True


CODES = {409: "ConditionalRequestConflict", 429: "TooManyRequests", 503: "SlowDown", 501: "NotImplemented",
         403: "SignatureDoesNotMatch", 400: "InvalidRequest", 507: "InsufficientStorage"}


class Proxy:
    """Passes requests on as they are. A fault is a status, which answers for the server; or

    lost       the server does it, and its answer does not arrive
    cut        half of the answer's body arrives
    slow       it takes a second
    hang       nothing happens, until the client gives up
    code:NAME  a 403 with this code
    """

    def __init__(self, port):
        self.port, self.faults, self.seen, self.lock = port, [], [], threading.Lock()
        self.ignores_conditions, self.has_small_pages, self.is_cut_off = False, False, False
        proxy = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self):
                proxy.pass_on(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        # Clients are killed, and give up.
        self.server.handle_error = lambda *_: None
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def fault(self, *what):
        fault = Fault(*what)
        with self.lock:
            self.faults.append(fault)
        return fault

    def pass_on(self, client):
        body = client.rfile.read(int(client.headers.get("Content-Length", 0)))
        with self.lock:
            self.seen.append((client.command, client.path))
            what = next((fault.what for fault in self.faults if fault.takes(client.command, client.path)), None)
        if self.is_cut_off:
            what = "hang"
        if what == "hang":
            time.sleep(30)
            client.close_connection = True
            return
        if isinstance(what, int) or str(what).startswith("code:"):
            return self.refuse(client, what)
        if what == "slow":
            time.sleep(1)
        answer, content = self.ask(client, body)
        if what == "lost":
            client.close_connection = True
            return
        self.answer(client, answer, content, len(content) // 2 if what == "cut" else len(content))

    def ask(self, client, body):
        path = client.path
        if self.has_small_pages and "list-type=2" in path:
            path += f"&max-keys={PAGE}"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.putrequest(client.command, path, skip_host=True, skip_accept_encoding=True)
        for name, value in client.headers.items():
            if not (self.ignores_conditions and name.lower() == "if-none-match"):
                connection.putheader(name, value)
        connection.endheaders(body or None)
        with contextlib.closing(connection):
            answer = connection.getresponse()
            return answer, answer.read()

    @staticmethod
    def answer(client, answer, content, sent):
        client.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                client.send_header(name, value)
        length = answer.getheader("Content-Length") if client.command == "HEAD" else None
        client.send_header("Content-Length", length or len(content))
        client.end_headers()
        if client.command != "HEAD":
            client.wfile.write(content[:sent])
        if sent < len(content):
            client.close_connection = True

    @staticmethod
    def refuse(client, what):
        status = what if isinstance(what, int) else 403
        code = CODES.get(what) or what.removeprefix("code:")
        # As S3 does, which quotes the request.
        signed = client.headers.get("Authorization", "")
        content = f"<Error><Code>{code}</Code><AWSAccessKeyId>{KEY}</AWSAccessKeyId><StringToSign>{signed}</StringToSign></Error>"
        client.send_response(status)
        client.send_header("Content-Length", len(content))
        client.end_headers()
        if client.command != "HEAD":
            client.wfile.write(content.encode())


class StorageTest(HostTest):
    """Gives each test a bucket and a proxy before it, by which all commands and servers reach it."""

    def setUp(self):
        super().setUp()
        self.storage = storage()
        self.bucket = re.sub("[^a-z0-9]+", "-", self._testMethodName)[:40].strip("-") + f"-{time.monotonic_ns() % 10**9}"
        self.storage.client.create_bucket(Bucket=self.bucket)
        self.place = f"s3://{self.bucket}/deep/in"
        self.proxy = Proxy(self.storage.port)
        self.addCleanup(self.proxy.close)
        self.enterContext(environment(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1",
                                      AWS_ENDPOINT_URL=self.proxy.url, AWS_ALLOW_HTTP="true"))

    def serve(self, *options, **others):
        server = super().serve(*options, **others)
        self.addCleanup(self.check_no_secret, server)
        return server

    def check_no_secret(self, server):
        self.check_text(server.log)

    def check_text(self, text):
        for secret in (KEY, SECRET, "Signature="):
            self.assertNotIn(secret, text)

    def tapetum(self, *words, **others):
        done = super().tapetum(*words, **others)
        self.check_text(done.stdout + done.stderr)
        return done

    def done(self, *words):
        """What a command prints that succeeds."""
        done = self.tapetum(*words)
        self.assertEqual(done.returncode, 0, (words, done.stderr))
        return done.stdout

    def refused(self, *words):
        """What a command says that fails."""
        done = self.tapetum(*words)
        self.assertNotEqual(done.returncode, 0, (words, done.stdout))
        return done.stderr

    def started(self, *words):
        process = subprocess.Popen([BINARY, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(process.communicate)
        self.addCleanup(process.kill)
        return process

    def backups(self):
        """The numbers of the backups that are whole."""
        listed = self.tapetum("backup", "list", self.place)
        self.assertTrue(listed.returncode == 0 or "has no backups" in listed.stderr, listed.stderr)
        rows = listed.stdout.splitlines()[1:]
        return [int(row.split()[0]) for row in rows if row.split()[-1] == "whole"]

    def restored(self, name, *options):
        """A server of what was restored."""
        self.done("backup", "restore", self.place, "--into", self.folder / name, *options)
        return self.serve(data=self.folder / name)


@contextlib.contextmanager
def environment(**variables):
    """Sets variables for what is started meanwhile; None removes one."""
    with unittest.mock.patch.dict(os.environ):
        for name, value in variables.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
        yield


def stored(server, keys, value):
    """Whether all of these were stored."""
    told = server.ask("".join(f"set {key} 0 0 {len(value)}\r\n{value}\r\n" for key in keys))
    return told.count("STORED\r\n") == len(keys)


def put(server, keys, value):
    if not stored(server, keys, value):
        raise AssertionError(f"not all was stored:\n{server.log[-2000:]}")


def values(server, keys):
    """The value of each key that is there."""
    lines = server.ask("".join(f"get {key}\r\n" for key in keys)).split("\r\n")
    return {line.split()[1]: lines[at + 1] for at, line in enumerate(lines) if line.startswith("VALUE ")}


def wait_for(condition, what, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {seconds} s: {what}")
        time.sleep(0.02)
