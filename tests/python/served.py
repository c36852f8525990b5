"""Servers of the tests: processes of this machine, reached through their Flight doors.

TAPETUM_SERVER names the binary; `cargo x test-python` sets it.
"""

import atexit
import csv
import io
import os
import pathlib
import random
import socket
import subprocess
import time

import pytest

SERVER = os.environ.get("TAPETUM_SERVER")
START_S = 60


def command(*words, **options):
    """What a command of the binary prints."""
    done = subprocess.run([SERVER, *map(str, words)], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def free_port():
    """A port that the system gives to no client by itself: one of those could take it while a server is started again."""
    while True:
        port = random.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


class Served:
    """A store and its server. ``address`` is where its door is."""

    def __init__(self, folder, address=None):
        if SERVER is None:
            pytest.skip("TAPETUM_SERVER names no server")
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.flight = address or f"127.0.0.1:{free_port()}"
        self.address = self.flight.removeprefix("unix:") if address else f"grpc://{self.flight}"
        self.start()

    def start(self):
        log = self.folder / "log"
        words = [SERVER, "serve", "--data", self.folder / "data", "--capacity", "256MiB", "--memcached", "none", "--flight", self.flight]
        with log.open("w") as out:
            self.process = subprocess.Popen(words, stdout=out, stderr=out)
        # A test that fails may leave it.
        atexit.register(self.process.kill)
        until = time.monotonic() + START_S
        while "to Flight's clients" not in log.read_text():
            assert self.process.poll() is None and time.monotonic() < until, log.read_text()
            time.sleep(0.02)

    def command(self, *words, **options):
        return command(*words, "--data", self.folder / "data", **options)

    def printed(self, keyspace, *words):
        """The rows that `tapetum scan` prints, as texts, without the names of the columns."""
        rows = csv.reader(io.StringIO(self.command("scan", keyspace, *words, "--format", "csv")))
        return [tuple(row) for row in rows][1:]

    def stop(self):
        self.process.terminate()
        self.process.wait(START_S)

    def kill(self):
        self.process.kill()
        self.process.wait(START_S)
