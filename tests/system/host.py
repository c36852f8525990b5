"""The server under test as a process of this machine, and what an operating system does to it.

TAPETUM_SERVER names the binary and TAPETUM_SCRATCH a folder for data; `cargo x test-system` sets both. A test that only root
can run carries `needs_root`.
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile
import time
import unittest

BINARY = pathlib.Path(os.environ["TAPETUM_SERVER"]).resolve()
SCRATCH = pathlib.Path(os.environ.get("TAPETUM_SCRATCH", tempfile.gettempdir()))
SMALL = ("--capacity", "64MiB", "--memory", "64MiB")

# A runner under nohup would pass on to every server that it ignores this.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

needs_root = unittest.skipUnless(os.geteuid() == 0, "only root can run this")


class HostTest(unittest.TestCase):
    """Gives each test an empty folder, and stops what it started."""

    def setUp(self):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))

    def serve(self, *options, prefix=(), data=None):
        """A server on a free port of loopback. `prefix` is a command that runs it, such as prlimit."""
        server = Server(data or self.folder / "data", options, prefix, self.folder / f"log{time.monotonic_ns()}")
        self.addCleanup(server.kill)
        server.wait_until_it_serves()
        return server

    def tapetum(self, *words, prefix=()):
        return subprocess.run([*prefix, BINARY, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)

    def run_quietly(self, *words):
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, words))}: {done.stderr}")
        return done.stdout.strip()

    def loop_device(self, size_bytes, sector_bytes=512):
        """A loop device over a file of zeros, `image`."""
        image = self.folder / "image"
        with open(image, "wb") as file:
            file.truncate(size_bytes)
        device = self.run_quietly("losetup", "--find", "--show", "--sector-size", str(sector_bytes), image)
        self.addCleanup(self.run_quietly, "losetup", "--detach", device)
        return device

    def mount_ext4(self, size_bytes, sector_bytes=512):
        """An empty ext4 file system on a loop device; its folder."""
        device, folder = self.loop_device(size_bytes, sector_bytes), self.folder / "mounted"
        self.run_quietly("mkfs.ext4", "-q", "-F", "-m", "0", device)
        folder.mkdir()
        self.run_quietly("mount", device, folder)
        self.addCleanup(self.unmount, folder)
        return folder

    def unmount(self, folder, seconds=20):
        """The rings of a server that was killed let go of its files a moment after it has ended."""
        deadline = time.monotonic() + seconds
        while subprocess.run(("umount", folder), stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if time.monotonic() > deadline:
                self.run_quietly("umount", folder)
            time.sleep(0.05)


class Server:
    def __init__(self, data, options, prefix, log):
        self.log_path = log
        sizes = () if "--capacity" in options else SMALL
        # A standby has the capacity of what it follows, and two stores in its memory.
        sizes = ("--memory", "128MiB") if "--follow" in options else sizes
        addresses = () if "--memcached" in options else ("--memcached", "127.0.0.1:0")
        place = () if "--drive" in options else ("--data", data)
        words = [*prefix, BINARY, "serve", *place, *sizes, *addresses, *options]
        with open(log, "wb") as file:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def port(self):
        return int(re.search(r"to memcached clients at \S*:(\d+)$", self.log, re.MULTILINE)[1])

    def wait_until_it_serves(self):
        self.wait_for_log("to memcached clients at")

    def wait_for_log(self, text, seconds=60):
        deadline = time.monotonic() + seconds
        while text not in self.log:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the log has no {text!r}:\n{self.log[-2000:]}")
            time.sleep(0.02)

    def ask(self, text, host="127.0.0.1"):
        """Sends lines and `quit`; all that comes back."""
        with socket.create_connection((host, self.port), timeout=20) as connection:
            connection.sendall(text.encode() + b"quit\r\n")
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).decode()

    def stop(self):
        """Stops it as an init system does; its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
