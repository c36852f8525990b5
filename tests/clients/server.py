"""The server under test: started on a free loopback port, stopped by SIGTERM, started again on the same data.

TAPETUM_SERVER names the binary and TAPETUM_SCRATCH a folder for data; `cargo x test-clients` sets both. With Debian's
memcached as the binary, every test but those of a restart and of memory must pass too: that is how the tests themselves are tested.
"""

import os
import pathlib
import random
import shutil
import signal
import socket
import subprocess
import tempfile
import time

BINARY = pathlib.Path(os.environ["TAPETUM_SERVER"])
SCRATCH = pathlib.Path(os.environ.get("TAPETUM_SCRATCH", tempfile.gettempdir()))
IS_MEMCACHED = BINARY.name == "memcached"


class Server:
    def __init__(self, name, options=()):
        self.data = SCRATCH / f"{name}-{os.getpid()}"
        self.log = self.data.with_suffix(".log")
        self.port = free_port()
        self.options = list(options)
        self.process = None
        self.start()

    def start(self):
        if IS_MEMCACHED:
            command = [BINARY, "-u", "root", "-l", "127.0.0.1", "-p", str(self.port), "-m", "1024", "-I", "17m"]
        else:
            command = [BINARY, "serve", "--data", self.data, "--memcached", f"127.0.0.1:{self.port}",
                       "--capacity", "2GiB", "--memory", "256MiB", *self.options]
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + 60
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not serve:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.02)

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                connection.sendall(b"version\r\n")
                return connection.recv(8) == b"VERSION "
        except OSError:
            return False

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def restart(self):
        status = self.terminate()
        if status != 0:
            raise RuntimeError(f"the server ended with {status} on SIGTERM:\n{self.log.read_text()[-2000:]}")
        self.start()

    def close(self):
        if self.process.poll() is None:
            self.terminate()
        shutil.rmtree(self.data, ignore_errors=True)


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
