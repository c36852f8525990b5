"""The unit for systemd that is in the repository, and what it and containers forbid a server."""

import ctypes.util
import pathlib
import shutil
import signal
import subprocess
import sys
import unittest

from host import BINARY, HostTest

UNIT = pathlib.Path(__file__).parents[2] / "packaging" / "tapetum.service"
CONFINED = pathlib.Path(__file__).with_name("confined.py")
# `systemd-analyze security` gives 1.5 of 10 (systemd 252): it counts the network, and that root could still be imitated by files.
EXPOSURE_MAX_TENTHS = 16
ROUND_TRIP = "set a 0 0 1\r\nx\r\nget a\r\n"
FOUND = "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n"

has_systemd = unittest.skipUnless(shutil.which("systemd-analyze"), "systemd checks its units")


@has_systemd
class Unit(HostTest):
    def setUp(self):
        super().setUp()
        # The binary must be there: this one is.
        self.unit = self.folder / UNIT.name
        self.unit.write_text(UNIT.read_text().replace("/usr/bin/tapetum", str(BINARY.resolve())))

    def test_systemd_has_nothing_to_say_of_it(self):
        done = subprocess.run(("systemd-analyze", "verify", self.unit), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))

    def test_it_exposes_little(self):
        words = ("systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={EXPOSURE_MAX_TENTHS}", self.unit)
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if "unrecognized option" in done.stderr:
            self.skipTest("systemd before 250 looks at running units alone")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    @unittest.skipUnless(ctypes.util.find_library("seccomp"), "libseccomp makes the filter")
    def test_a_server_needs_no_call_that_the_unit_refuses(self):
        confined = (sys.executable, CONFINED, "--unit", self.unit, "--")
        # The filter is there: without its calls a process ends.
        bare = self.folder / "bare.service"
        bare.write_text("SystemCallFilter=@file-system execve brk mmap\n")
        done = subprocess.run((sys.executable, CONFINED, "--unit", bare, "--", BINARY, "--version"), check=False)
        self.assertEqual(done.returncode, -signal.SIGSYS)
        options = ("--metrics", "127.0.0.1:0", "--udp", "127.0.0.1:0", "--flight", "127.0.0.1:0", "--threads", "2")
        server = self.serve(*options, prefix=confined)
        self.assertEqual(server.ask(ROUND_TRIP), FOUND)
        self.assertNotIn("io_uring refused", server.log)
        data = ("--data", self.folder / "data")
        for command in ("stats", "check"):
            done = self.tapetum(command, *data)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(server.stop(), 0, server.log)
        # The store is recovered under the same filter.
        again = self.serve(*options, prefix=confined)
        self.assertEqual(again.ask("get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n")
        self.assertEqual(again.stop(), 0, again.log)


class WithoutIoUring(HostTest):
    def test_a_server_serves_where_io_uring_is_refused_and_says_why_it_may_be(self):
        for refused, told in [("EPERM", "Docker's seccomp profile"), ("ENOSYS", "Linux before 5.11")]:
            with self.subTest(errno=refused):
                confined = (sys.executable, CONFINED, "--errno", refused, "--")
                server = self.serve("--threads", "2", data=self.folder / refused, prefix=confined)
                self.assertEqual(server.ask(ROUND_TRIP), FOUND)
                self.assertEqual(server.log.count("WARN io_uring refused"), 1, server.log)
                self.assertIn(told, server.log)
                self.assertEqual(server.stop(), 0)
                again = self.serve("--threads", "2", data=self.folder / refused, prefix=confined)
                self.assertEqual(again.ask("get a\r\n"), "VALUE a 0 1\r\nx\r\nEND\r\n")
                self.assertEqual(again.stop(), 0)
