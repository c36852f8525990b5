"""A server with block devices, and clients of libnbd on it.

`cargo x test-nbd` sets TAPETUM_SERVER and TAPETUM_SCRATCH, and PYTHONPATH to where `host` is, tests/system. The module `nbd` is
Debian's python3-libnbd.
"""

import contextlib
import pathlib
import subprocess
import tempfile
import unittest

import host
import nbd
from host import BINARY, SCRATCH

BLOCK = 4096
# The longest read or write that the server takes.
REQUEST_MAX = 32 << 20
DISK, GROUPED, LARGE, FROZEN = "disk0", "grouped", "large", "frozen"
SIZES = {DISK: 64 << 20, GROUPED: 64 << 20, LARGE: 4 << 30, FROZEN: 1 << 20}
STORE = ("--capacity", "512MiB", "--memory", "128MiB")


class Server(host.Server):
    """A new store with a device of each size in SIZES, in a folder of its own."""

    def __init__(self, name):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH, prefix=name))
        # The path of a socket is short.
        self.socket_folder = tempfile.TemporaryDirectory(prefix="tapetum-nbd")
        self.socket = f"{self.socket_folder.name}/socket"
        for device, size in SIZES.items():
            groups = "8" if device == GROUPED else "1"
            words = ["--block-device", str(size), "--group-blocks", groups, "--data", self.folder / "data", *STORE]
            subprocess.run([BINARY, "keyspace", "create", device, *words], check=True, capture_output=True)
        self.start()

    def start(self):
        words = [*STORE, "--sync", "everysec", "--nbd", f"unix:{self.socket}", "--nbd-read-only", FROZEN]
        super().__init__(self.folder / "data", words, (), self.folder / "log")
        self.wait_until_it_serves()

    def close(self):
        self.kill()
        self.socket_folder.cleanup()


class DeviceTest(unittest.TestCase):
    """Tests of one server, which outlives whatever they ask of it."""

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.__name__.lower())
        cls.addClassCleanup(cls.server.close)

    def tearDown(self):
        self.assertIsNone(self.server.process.poll(), "the server has ended")
        self.assertEqual(self.opened(FROZEN).pread(512, 0), bytes(512))

    def handle(self, name=DISK, structured=True, contexts=(nbd.CONTEXT_BASE_ALLOCATION,), lax=False):
        """One that is not connected. `lax`: it sends what it knows to be wrong, too."""
        handle = nbd.NBD()
        handle.set_export_name(name)
        handle.set_request_structured_replies(structured)
        for context in contexts:
            handle.add_meta_context(context)
        if lax:
            handle.set_strict_mode(0)
        self.addCleanup(leave, handle)
        return handle

    def opened(self, name=DISK, **how):
        handle = self.handle(name, **how)
        handle.connect_unix(self.server.socket)
        return handle

    def negotiating(self, name=DISK, **how):
        """One whose options are still to be set."""
        handle = self.handle(name, **how)
        handle.set_opt_mode(True)
        handle.connect_unix(self.server.socket)
        return handle

    @contextlib.contextmanager
    def refuses(self, *errors):
        with self.assertRaises(nbd.Error) as caught:
            yield
        self.assertIn(caught.exception.errno, errors, caught.exception)


def leave(handle):
    with contextlib.suppress(nbd.Error):
        if handle.aio_is_negotiating():
            handle.opt_abort()
        elif handle.aio_is_ready():
            handle.shutdown()


def pattern(count, seed=1):
    """Bytes of which no two blocks are the same."""
    words = (seed << 32 | number for number in range((count + 7) // 8))
    return b"".join(word.to_bytes(8, "little") for word in words)[:count]
