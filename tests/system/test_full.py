"""A file system that is full under a running server: blocks of the data that were reserved are taken away, and used up by somebody
else."""

import os
import socket
import time

from host import HostTest, needs_root

MIB = 1 << 20
CAPACITY = 64 * MIB
# Superblocks, manifest and log come before; an empty store has nothing behind.
PUNCHED_FROM = 16 * MIB
ITEM_BYTES = 32 << 10


class Client:
    """One connection, which is to stay."""

    def __init__(self, test, server):
        self.socket = socket.create_connection(("127.0.0.1", server.port), timeout=60)
        test.addCleanup(self.socket.close)
        self.lines = self.socket.makefile("rb")
        test.addCleanup(self.lines.close)

    def set(self, key, value):
        self.socket.sendall(b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value))
        return self.lines.readline().decode().strip()

    def get(self, key):
        """The value, `None` where there is none, or a line that says why it cannot be told."""
        self.socket.sendall(b"get %s\r\n" % key)
        head = self.lines.readline()
        if not head.startswith(b"VALUE"):
            return None if head == b"END\r\n" else head.decode().strip()
        value = self.lines.read(int(head.split()[3]) + 2)[:-2]
        self.lines.readline()
        return value


def fill(folder, left_bytes):
    """Takes what the file system has, but for so much; the file that does."""
    room = os.statvfs(folder)
    path = folder / "filler"
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, room.f_bavail * room.f_bsize - left_bytes)
    return path


@needs_root
class FullFileSystem(HostTest):
    def serve_full(self, *options):
        """A server whose file system has room for a few more MiB of what the server reserved."""
        folder = self.mount_ext4(112 * MIB)
        options = ("--capacity", "64MiB", "--memory", "64MiB", "--write-buffer", "1MiB", *options)
        data = folder / "data"
        server = self.serve(*options, data=data)
        length = str(CAPACITY - PUNCHED_FROM - MIB)
        self.run_quietly("fallocate", "--punch-hole", "--offset", str(PUNCHED_FROM), "--length", length, data / "drive")
        return server, data, options, fill(folder, 3 * MIB)

    def write_until_refused(self, client, prefix, stored, most=2000):
        for number in range(most):
            key, value = b"%s%d" % (prefix, number), os.urandom(ITEM_BYTES)
            said = client.set(key, value)
            if said != "STORED":
                return said
            stored[key] = value
        return None

    def set_until_stored(self, client, key, value):
        said, deadline = None, time.monotonic() + 60
        while said != "STORED" and time.monotonic() < deadline:
            said = client.set(key, value)
            time.sleep(0.05)
        self.assertEqual(said, "STORED")

    def test_writes_are_refused_while_it_is_full_and_taken_again_when_there_is_room(self):
        server, data, options, filler = self.serve_full()
        client, stored = Client(self, server), {}
        said = self.write_until_refused(client, b"before", stored)
        self.assertRegex(said, f"^SERVER_ERROR no space left on the file system of {data}/drive")
        server.wait_for_log("opened again when there is room")
        # The server knows of all that was stored, and answers.
        self.assertEqual([key for key, value in stored.items() if client.get(key) != value], [])
        self.assertIn("no space left", client.set(b"more", b"x"))
        self.assertIn("STAT curr_items", server.ask("stats\r\n"))
        filler.unlink()
        self.set_until_stored(client, b"again", b"x")
        stored[b"again"] = b"x"
        self.assertIsNone(self.write_until_refused(client, b"after", stored, most=50))
        self.assertEqual([key for key, value in stored.items() if client.get(key) != value], [])
        server.kill()
        server = self.serve(*options, data=data)
        client = Client(self, server)
        self.assertEqual([key for key, value in stored.items() if client.get(key) != value], [])
        self.assertEqual(server.stop(), 0)

    def test_a_server_that_finds_no_room_stops_when_it_is_told_to(self):
        server, data, options, filler = self.serve_full()
        client, stored = Client(self, server), {}
        self.assertIn("no space left", self.write_until_refused(client, b"key", stored))
        self.assertEqual(server.stop(), 0)
        self.assertIn("nothing is lost that was acknowledged", server.log)
        filler.unlink()
        server = self.serve(*options, data=data)
        client = Client(self, server)
        self.assertEqual([key for key, value in stored.items() if client.get(key) != value], [])
        self.assertEqual(server.stop(), 0)
