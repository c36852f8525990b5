"""A store that was restored as a sparse file: its blocks are reserved again before it is opened to be written."""

import os
import shutil
import unittest

from host import HostTest, Server, needs_root

SET, GET = "set a 0 0 1\r\nx\r\n", "get a\r\n"
FOUND = "VALUE a 0 1\r\nx\r\nEND\r\n"
CAPACITY_BYTES = 100 << 20


@needs_root
class Sparse(HostTest):
    def setUp(self):
        super().setUp()
        self.mounted = self.mount_ext4(320 << 20)
        self.data = self.mounted / "data"
        server = self.serve("--capacity", str(CAPACITY_BYTES), "--memory", "64MiB", data=self.data)
        self.assertEqual(server.ask(SET), "STORED\r\n")
        self.assertEqual(server.stop(), 0)
        self.drive = self.data / "drive"
        self.run_quietly("cp", "--sparse=always", self.drive, self.data / "copy")
        os.rename(self.data / "copy", self.drive)
        self.assertLess(self.reserved_bytes(), CAPACITY_BYTES // 2)

    def reserved_bytes(self):
        return self.drive.stat().st_blocks * 512

    def is_refused(self, prefix=()):
        """A start that is refused; its log."""
        server = Server(self.data, ("--capacity", str(CAPACITY_BYTES)), prefix, self.folder / "refused")
        self.addCleanup(server.kill)
        self.assertEqual(server.process.wait(timeout=60), 1)
        return server.log

    def test_where_there_is_room_blocks_are_reserved_again(self):
        server = self.serve(data=self.data)
        self.assertGreater(self.reserved_bytes(), CAPACITY_BYTES * 0.99)
        self.assertIn("blocks are reserved again", server.log)
        self.assertEqual(server.ask(GET), FOUND)

    def test_where_there_is_none_it_says_how_much_is_missing(self):
        filesystem = os.statvfs(self.mounted)
        self.run_quietly("fallocate", "-l", str(filesystem.f_bfree * filesystem.f_frsize - (10 << 20)), self.mounted / "fill")
        before = self.reserved_bytes()
        self.assertRegex(self.is_refused(), r"is sparse: \d+(\.\d)?MiB of its blocks are not reserved.*has \d+(\.\d)?MiB free")
        self.assertEqual(self.reserved_bytes(), before)
        (self.mounted / "fill").unlink()
        self.assertEqual(self.serve(data=self.data).ask(GET), FOUND)

    @unittest.skipUnless(shutil.which("strace"), "strace lets other file systems be played")
    def test_a_quota_refuses_and_a_file_system_without_reservations_warns(self):
        def fallocate(error):
            inject = f"inject=fallocate:error={error}"
            return ("strace", "-D", "-f", "-o", "/dev/null", "-e", "trace=fallocate", "-e", inject)

        self.assertIn("file system or quota has no room", self.is_refused(fallocate("EDQUOT")))
        server = self.serve(data=self.data, prefix=fallocate("EOPNOTSUPP"))
        self.assertIn("its file system does not reserve any", server.log)
        self.assertEqual(server.ask(GET), FOUND)
        server.kill()
