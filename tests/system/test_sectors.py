"""Drives with other sectors than 512 bytes."""

import shutil
import unittest

from host import HostTest, needs_root

ROUND_TRIP = "set a 0 0 1\r\nx\r\nget a\r\n"
FOUND = "VALUE a 0 1\r\nx\r\nEND\r\n"


@needs_root
class Sectors(HostTest):
    def serves_before_and_after_a_kill(self, data, prefix=()):
        """A new store, and what was acknowledged when it is opened again; the first log."""
        server = self.serve(data=data, prefix=prefix)
        self.assertEqual(server.ask(ROUND_TRIP), "STORED\r\n" + FOUND)
        server.kill()
        again = self.serve(data=data, prefix=prefix)
        self.assertEqual(again.ask("get a\r\n"), FOUND)
        self.assertEqual(again.stop(), 0)
        return server.log

    def test_a_store_on_sectors_of_512_bytes(self):
        log = self.serves_before_and_after_a_kill(self.mount_ext4(300 << 20) / "data")
        self.assertIn("sectors of 512, direct", log)

    def test_a_store_on_sectors_of_4096_bytes(self):
        log = self.serves_before_and_after_a_kill(self.mount_ext4(300 << 20, sector_bytes=4096) / "data")
        self.assertIn("sectors of 4096, direct", log)

    @unittest.skipUnless(shutil.which("strace"), "strace lets an old kernel be played")
    def test_a_store_on_sectors_of_4096_bytes_where_the_kernel_does_not_say_so(self):
        data = self.mount_ext4(300 << 20, sector_bytes=4096) / "data"
        old_kernel = ("strace", "-D", "-f", "-o", "/dev/null", "-e", "trace=statx", "-e", "inject=statx:error=ENOSYS")
        log = self.serves_before_and_after_a_kill(data, prefix=old_kernel)
        self.assertIn("sectors of 4096, direct", log)
