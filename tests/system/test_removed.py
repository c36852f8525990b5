"""The file of a store that is deleted, replaced or moved while it is served."""

import os
import re
import shutil

from host import HostTest

SET, GET = "set a 0 0 1\r\nx\r\n", "get a\r\n"
FOUND = "VALUE a 0 1\r\nx\r\nEND\r\n"


class Removed(HostTest):
    def setUp(self):
        super().setUp()
        self.data = self.folder / "data"
        self.server = self.serve(data=self.data)
        self.assertEqual(self.server.ask(SET), "STORED\r\n")

    def loses_nothing(self):
        """Writes are refused in plain words, reads go on, and the log says how to rescue the store, which works."""
        self.server.wait_for_log("was deleted or replaced")
        answer = self.server.ask("set b 0 0 1\r\ny\r\nincr a 1\r\ndelete a\r\n")
        self.assertRegex(answer, r"^SERVER_ERROR \S+ was deleted or replaced while the store was open: writes are refused")
        self.assertNotRegex(answer, "STORED|DELETED")
        self.assertEqual(self.server.ask(GET), FOUND)
        source = re.search(r"cp (/proc/\d+/fd/\d+) SAFE-FILE", self.server.log)[1]
        rescued = self.folder / "rescued"
        shutil.copyfile(source, rescued)
        self.assertEqual(self.server.ask(GET), FOUND)
        self.assertEqual(self.server.stop(), 1)
        os.replace(rescued, self.data / "drive")
        self.assertEqual(self.serve(data=self.data).ask(GET), FOUND)

    def test_a_deleted_file_takes_no_writes(self):
        (self.data / "drive").unlink()
        self.loses_nothing()

    def test_a_file_that_another_replaced_takes_no_writes(self):
        other = self.folder / "other"
        other.write_bytes(b"another")
        os.replace(other, self.data / "drive")
        self.loses_nothing()

    def test_a_file_that_was_moved_is_said_and_written(self):
        os.rename(self.data / "drive", self.data / "elsewhere")
        self.server.wait_for_log("which has another name now")
        self.assertEqual(self.server.ask("set b 0 0 1\r\ny\r\n"), "STORED\r\n")
        os.rename(self.data / "elsewhere", self.data / "drive")
        self.server.wait_for_log("is the file of this store again")
        self.assertEqual(self.server.stop(), 0)
