"""A server with block devices, and clients of libnbd on it.

TAPETUM_SERVER names the binary and TAPETUM_SCRATCH a folder for data; `cargo x test-nbd` sets both. The module `nbd` is Debian's
python3-libnbd.
"""

import contextlib
import os
import pathlib
import signal
import subprocess
import tempfile
import time
import unittest

import nbd

BINARY = pathlib.Path(os.environ["TAPETUM_SERVER"])
SCRATCH = pathlib.Path(os.environ.get("TAPETUM_SCRATCH", tempfile.gettempdir()))
BLOCK = 4096
# The longest read or write that the server takes.
REQUEST_MAX = 32 << 20
DISK, GROUPED, LARGE, FROZEN = "disk0", "grouped", "large", "frozen"
SIZES = {DISK: 64 << 20, GROUPED: 64 << 20, LARGE: 4 << 30, FROZEN: 1 << 20}
STORE = ("--capacity", "512MiB", "--memory", "128MiB")


class Server:
    """A new store with a device of each size in SIZES, in a folder of its own."""

    def __init__(self, name, store=STORE):
        self.store = store
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH, prefix=name))
        # The path of a socket is short.
        self.socket_folder = tempfile.TemporaryDirectory(prefix="tapetum-nbd")
        self.socket = f"{self.socket_folder.name}/socket"
        for device, size in SIZES.items():
            groups = "8" if device == GROUPED else "1"
            words = ["--block-device", str(size), "--group-blocks", groups, "--data", self.folder / "data", *store]
            subprocess.run([BINARY, "keyspace", "create", device, *words], check=True, capture_output=True)
        self.process = None
        self.start()

    def start(self):
        words = ["--data", self.folder / "data", *self.store, "--memcached", "127.0.0.1:0", "--sync", "everysec"]
        words += ["--nbd", f"unix:{self.socket}", "--nbd-read-only", FROZEN]
        log = self.folder / "log"
        with open(log, "wb") as file:
            self.process = subprocess.Popen([BINARY, "serve", *words], stdin=subprocess.DEVNULL, stderr=file)
        deadline = time.monotonic() + 60
        while "to memcached clients at" not in log.read_text():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server does not serve:\n{log.read_text()[-2000:]}")
            time.sleep(0.02)

    def terminate(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.socket_folder.cleanup()


class DeviceTest(unittest.TestCase):
    """Tests of one server, which outlives whatever they ask of it."""

    store = STORE

    @classmethod
    def setUpClass(cls):
        cls.server = Server(cls.__name__.lower(), cls.store)
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


def statuses(handle, count, offset, flags=0):
    """What one block status tells: the length and the flags of each extent."""
    found = []

    def take(context, at, entries, error):
        assert (context, at, error.value) == (nbd.CONTEXT_BASE_ALLOCATION, offset, 0)
        found.extend(zip(entries[::2], entries[1::2]))
        return 0

    handle.block_status(count, offset, take, flags)
    return found


def all_statuses(handle, count, offset=0):
    """The extents of a range, those of the same flags put together; each question asks for all that is left."""
    found, end = [], offset + count
    while offset < end:
        for length, flags in statuses(handle, min(end - offset, 0xFFFFF000), offset):
            if found and found[-1][1] == flags:
                found[-1] = (found[-1][0] + length, flags)
            else:
                found.append((length, flags))
            offset += length
    assert offset == end
    return found


def pattern(count, seed=1):
    """Bytes of which no two blocks are the same."""
    words = (seed << 32 | number for number in range((count + 7) // 8))
    return b"".join(word.to_bytes(8, "little") for word in words)[:count]
