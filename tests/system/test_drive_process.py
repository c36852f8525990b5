"""A drive that runs by itself, and servers whose stores it has: either may end at any moment."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

from host import BINARY, SMALL, HostTest

CAPACITY = ("--capacity", "192MiB")


class DriveProcess(HostTest):
    def drive(self, *options, name="drive", folder=None):
        """Starts one, with its socket in a folder that others may need to reach. The socket."""
        socket, log = (folder or self.folder) / f"{name}.sock", self.folder / f"{name}.log"
        words = (BINARY, "drive", "--file", self.folder / f"{name}.flash", "--socket", socket, *CAPACITY, *options)
        with open(log, "wb") as file:
            process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        deadline = time.monotonic() + 60
        while "stores find the drive at" not in log.read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the drive does not serve: {log.read_text()}")
            time.sleep(0.02)
        self.process = process
        return socket

    def done(self, *words):
        done = self.tapetum(*words)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def wait_for_answer(self, server, request, answer):
        deadline = time.monotonic() + 30
        while (came := server.ask(request)) != answer:
            if time.monotonic() > deadline:
                raise AssertionError(f"{request!r} is answered {came!r}:\n{server.log[-2000:]}")
            time.sleep(0.05)

    def test_a_server_outlives_its_drive_and_has_its_store_again(self):
        socket = self.drive()
        server = self.serve("--drive", socket)
        self.assertEqual(server.ask("set a 0 0 1\r\nA\r\n"), "STORED\r\n")
        self.process.kill()
        self.process.wait()
        server.wait_for_log("is away: nothing is served until it is back")
        self.assertIn("SERVER_ERROR", server.ask("set b 0 0 1\r\nB\r\n"))
        self.drive()
        server.wait_for_log("is back: the store is open again")
        self.wait_for_answer(server, "get a\r\n", "VALUE a 0 1\r\nA\r\nEND\r\n")
        self.assertEqual(server.ask("set b 0 0 1\r\nB\r\n"), "STORED\r\n")
        # An orderly end is no different.
        self.process.send_signal(signal.SIGTERM)
        self.assertEqual(self.process.wait(timeout=60), 0)
        self.assertFalse(socket.exists())
        self.drive()
        deadline = time.monotonic() + 30
        while server.log.count("is back: the store is open again") < 2:
            self.assertLess(time.monotonic(), deadline, server.log[-2000:])
            time.sleep(0.02)
        self.wait_for_answer(server, "get b\r\n", "VALUE b 0 1\r\nB\r\nEND\r\n")
        self.assertEqual(server.stop(), 0)

    def test_a_server_that_was_killed_leaves_its_partition(self):
        socket = self.drive()
        server = self.serve("--drive", socket)
        self.assertEqual(server.ask("set a 0 0 1\r\nA\r\n"), "STORED\r\n")
        server.kill()
        server = self.serve("--drive", socket)
        self.assertEqual(server.ask("get a\r\n"), "VALUE a 0 1\r\nA\r\nEND\r\n")

    def test_a_server_that_is_stopped_keeps_its_partition_until_it_is_taken_over(self):
        socket = self.drive()
        first = self.serve("--drive", socket)
        self.assertEqual(first.ask("set a 0 0 1\r\nA\r\n"), "STORED\r\n")
        first.process.send_signal(signal.SIGSTOP)
        refused = self.tapetum("serve", "--drive", socket, *SMALL, "--memcached", "127.0.0.1:0")
        self.assertIn(f"in use by process {first.process.pid}: stop that, or take it over (--take-over)", refused.stderr)
        second = self.serve("--drive", socket, "--take-over")
        self.assertEqual(second.ask("get a\r\nset a 0 0 1\r\nB\r\n"), "VALUE a 0 1\r\nA\r\nEND\r\nSTORED\r\n")
        first.process.send_signal(signal.SIGCONT)
        first.wait_for_log("is away")
        self.assertIn("SERVER_ERROR", first.ask("set a 0 0 1\r\nC\r\n"))
        self.assertEqual(second.ask("get a\r\n"), "VALUE a 0 1\r\nB\r\nEND\r\n")
        # Its epoch is over, even when nobody has the partition any more.
        self.assertEqual(second.stop(), 0)
        time.sleep(1.5)
        self.assertIn("SERVER_ERROR", first.ask("set a 0 0 1\r\nC\r\n"))
        third = self.serve("--drive", socket)
        self.assertEqual(third.ask("get a\r\n"), "VALUE a 0 1\r\nB\r\nEND\r\n")

    def test_two_stores_share_a_drive_and_one_of_them_ends(self):
        socket = self.drive()
        one, other = (self.serve("--drive", socket / name) for name in ("one", "other"))
        self.assertEqual(one.ask("set a 0 0 3\r\none\r\n"), "STORED\r\n")
        self.assertEqual(other.ask("get a\r\nset a 0 0 5\r\nother\r\n"), "END\r\nSTORED\r\n")
        one.process.send_signal(signal.SIGSTOP)
        self.assertEqual(other.ask("get a\r\n"), "VALUE a 0 5\r\nother\r\nEND\r\n")
        one.kill()
        self.assertEqual(other.ask("set b 0 0 1\r\nB\r\n"), "STORED\r\n")
        one = self.serve("--drive", socket / "one")
        self.assertEqual(one.ask("get a\r\nget b\r\n"), "VALUE a 0 3\r\none\r\nEND\r\nEND\r\n")

    def test_tools_look_at_a_partition_that_nobody_serves(self):
        place = ("--drive", self.drive() / "papers")
        self.done("put", "a", "A", "--create", "--capacity", "64MiB", *place)
        self.done("keyspace", "create", "sorted", "--index", "ordered", *place)
        lines = "".join(f"key{number:05}\tvalue {number}\n" for number in range(5000))
        (self.folder / "items.tsv").write_text(lines)
        self.done("load", self.folder / "items.tsv", "--keyspace", "sorted", *place)
        self.assertEqual(self.done("get", "key00042", "--keyspace", "sorted", *place), "value 42")
        self.assertEqual(self.done("dump", "--format", "tsv", "--keyspace", "sorted", *place), lines)
        self.assertIn("no damage found", self.done("check", *place))
        self.done("inspect", *place)
        server = self.serve(*place)
        self.assertEqual(self.done("get", "a", *place), "A")
        self.assertEqual(self.done("scan", "sorted", "--fields", "key: name string; value: text string", "--select", "count(*)", *place).split()[-1], "5000")
        stats = dict(line.split() for line in self.done("stats", *place).splitlines())
        self.assertGreater(int(stats["drive_process_cpu_us"]), 0)
        self.assertGreater(int(stats["drive_process_resident_bytes"]), 1 << 20)
        self.assertGreater(int(stats["local_to_host_bytes"]), 0)
        self.assertRegex(server.ask("stats\r\n"), "STAT drive_scan_commands [1-9]")
        self.assertGreater(int(stats["drive_wakes"]) + int(stats["host_wakes"]), 0)
        self.assertEqual(server.stop(), 0)
        self.done("backup", "create", self.folder / "backups", *place)
        twice = self.tapetum("backup", "restore", self.folder / "backups", "--into", place[1])
        self.assertIn("there is something at", twice.stderr)

    def test_a_backup_is_restored_into_a_partition(self):
        socket = self.drive()
        self.done("put", "a", "A", "--create", "--capacity", "64MiB", "--data", self.folder / "data")
        self.done("backup", "create", self.folder / "backups", "--data", self.folder / "data")
        away = self.tapetum("backup", "restore", self.folder / "backups", "--into", self.folder / "away.sock" / "restored")
        self.assertIn("nobody answers at its socket", away.stderr)
        self.done("backup", "restore", self.folder / "backups", "--into", socket)
        self.assertEqual(self.done("get", "a", "--drive", socket / "default"), "A")
        self.done("backup", "restore", self.folder / "backups", "--into", socket / "restored")
        self.assertIn("no damage found", self.done("check", "--drive", socket / "restored"))
        server = self.serve("--drive", socket / "restored")
        self.assertEqual(server.ask("get a\r\n"), "VALUE a 0 1\r\nA\r\nEND\r\n")

    def test_repair_works_on_a_partition(self):
        place = ("--drive", self.drive() / "papers")
        self.done("put", "a", "A", "--create", "--capacity", "64MiB", *place)
        self.assertEqual(self.tapetum("repair", *place).returncode, 0)
        self.assertEqual(self.done("get", "a", *place), "A")

    def test_graphs_are_analysed_at_the_drive(self):
        words = ("graph", "bc", "--edges", "from references where year >= 1990", "--top", "3")
        folder = ("--data", self.folder / "data")
        self.done("put", "a", "A", "--create", "--capacity", "64MiB", *folder)
        self.done("generate", "papers", "--scale", "0.001", "--into", folder[1])
        self.done("backup", "create", self.folder / "backups", *folder)
        place = ("--drive", self.drive() / "papers")
        self.done("backup", "restore", self.folder / "backups", "--into", place[1])
        self.assertEqual(self.done(*words, *place), self.done(*words, *folder))
        self.serve(*place)
        served = self.tapetum(*words, "--explain", *place)
        self.assertEqual(served.stdout, self.done(*words, *folder))
        cpu = re.search(r"([0-9.]+) s of the CPU was the drive's own", served.stderr)
        self.assertGreater(float(cpu[1]), 0, served.stderr)

    def test_results_are_copied_to_stores_of_other_users(self):
        if os.geteuid() != 0:
            self.skipTest("other users are root's to be")
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(dir="/tmp")))
        folder.chmod(0o755)
        socket = self.drive("--any-user", folder=folder)

        def as_user(user, *words):
            return subprocess.run((BINARY, *words), capture_output=True, text=True, user=user, group=user, extra_groups=[], cwd="/")

        place = ("--drive", socket / "theirs")
        made = as_user(65534, "put", "a", "A", "--create", "--capacity", "64MiB", *place)
        self.assertEqual(made.returncode, 0, made.stderr)
        found = as_user(65534, "scan", "default", "--fields", "key: name string; value: text string", *place)
        self.assertIn("A", found.stdout, found.stderr)
        self.assertIn("is of user 65534, and this is user 65533", as_user(65533, "get", "a", *place).stderr)
        own = self.drive(name="own", folder=folder)
        refused = as_user(65534, "put", "a", "A", "--create", "--drive", own)
        self.assertIn("this user may not use its socket", refused.stderr)

    def test_a_drive_that_copies_all_results_serves(self):
        server = self.serve("--drive", self.drive("--copy-results", "--weight", "default=3,other=2", "--commands", "16"))
        self.assertEqual(server.ask("set a 0 0 1\r\nA\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\nA\r\nEND\r\n")
        weightless = self.tapetum("drive", "--file", self.folder / "x", "--socket", self.folder / "x.sock", "--weight", "a=0")
        self.assertIn("give 1 to 1024", weightless.stderr)

    def test_thousands_of_connections_stop_nobody(self):
        path = self.drive()
        server = self.serve("--drive", path)
        self.assertEqual(server.ask("set a 0 0 1\r\nA\r\n"), "STORED\r\n")

        def connected():
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            made.connect(str(path))
            return made

        for _ in range(10_000):
            connected().close()
        with contextlib.ExitStack() as held:
            for _ in range(300):
                held.enter_context(connected())
            self.assertEqual(server.ask("get a\r\nset b 0 0 1\r\nB\r\n"), "VALUE a 0 1\r\nA\r\nEND\r\nSTORED\r\n")
        other = self.serve("--drive", path / "other")
        self.assertEqual(other.ask("get b\r\n"), "END\r\n")

    def test_what_cannot_be_is_said(self):
        socket = self.drive()
        absent = self.tapetum("serve", "--drive", self.folder / "none.sock", *SMALL, "--memcached", "127.0.0.1:0").stderr
        self.assertRegex(absent, r"nobody answers at its socket .*: start it \(tapetum drive\), or give its path")
        taken = ("drive", "--file", self.folder / "other.flash", "--capacity", "8MiB", "--socket", socket)
        self.assertIn("is taken: a drive answers there", self.tapetum(*taken).stderr)
        a_file = ("drive", "--file", self.folder / "other.flash", "--capacity", "8MiB", "--socket", self.folder / "drive.flash")
        self.assertIn("is something else than a socket", self.tapetum(*a_file).stderr)
        self.assertTrue((self.folder / "drive.flash").exists())
        long = ("drive", "--file", self.folder / "other.flash", "--capacity", "8MiB", "--socket", self.folder / ("s" * 110))
        self.assertIn("is too long for a socket's path: give one of at most 107 bytes", self.tapetum(*long).stderr)
        twice = ("drive", "--file", self.folder / "drive.flash", "--socket", self.folder / "other.sock")
        self.assertIn("is in use", self.tapetum(*twice).stderr)
        missing = ("drive", "--file", self.folder / "missing.flash", "--socket", self.folder / "other.sock")
        self.assertIn("is not there: give --capacity, and it is made", self.tapetum(*missing).stderr)
        self.done("put", "a", "A", "--create", "--capacity", "64MiB", "--data", self.folder / "data")
        foreign = ("drive", "--file", self.folder / "data" / "drive", "--socket", self.folder / "other.sock")
        self.assertIn("it holds something else: give a new file, or an empty device", self.tapetum(*foreign).stderr)
        large = ("put", "a", "A", "--create", "--capacity", "1GiB", "--drive", socket)
        self.assertRegex(self.tapetum(*large).stderr, "no room|needs .* in one piece")
        threads = ("serve", "--drive", socket, *SMALL, "--memcached", "127.0.0.1:0", "--drive-threads", "2")
        self.assertIn("are the drive's, which is another process", self.tapetum(*threads).stderr)
        self.assertTrue(re.search("nobody|no store", self.tapetum("get", "a", "--drive", socket / "nothing").stderr))
