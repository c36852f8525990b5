"""A user without privileges, and the limit on locked memory (RLIMIT_MEMLOCK), which rings of io_uring are charged to."""

import os
import re
import shutil
import unittest

from host import HostTest, needs_root

ROUND_TRIP = "set a 0 0 1\r\nx\r\nget a\r\n"
FOUND = "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")


@needs_root
@unittest.skipUnless(shutil.which("setpriv"), "setpriv gives privileges up")
class LockedMemory(HostTest):
    def setUp(self):
        super().setUp()
        os.chmod(self.folder, 0o755)

    def test_every_limit_serves(self):
        for kibibytes in (0, 16, 32, 64, 128, 256, 1024):
            with self.subTest(kibibytes=kibibytes):
                data = self.folder / str(kibibytes)
                data.mkdir()
                os.chown(data, 65534, 65534)
                limit = f"--memlock={kibibytes << 10}:{kibibytes << 10}"
                server = self.serve("--threads", "2", data=data, prefix=(*NOBODY, "prlimit", limit))
                self.assertEqual(server.ask(ROUND_TRIP), FOUND)
                if re.search("io_uring (refused|moves)", server.log):
                    self.assertRegex(server.log, rf"RLIMIT_MEMLOCK, which is {kibibytes}KiB here")
                self.assertEqual(server.stop(), 0)
