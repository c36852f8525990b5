"""A drive that runs by itself, and servers whose stores it has: either may end at any moment."""

import re
import signal
import subprocess
import time

from host import BINARY, SMALL, HostTest

CAPACITY = ("--capacity", "192MiB")


class DriveProcess(HostTest):
    def drive(self, *options, name="drive"):
        """Starts one. Its socket."""
        socket, log = self.folder / f"{name}.sock", self.folder / f"{name}.log"
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
        self.assertEqual(server.stop(), 0)
        restored = self.tapetum("backup", "restore", self.folder / "backups", "--into", place[1])
        self.assertNotEqual(restored.returncode, 0)

    def test_what_cannot_be_is_said(self):
        socket = self.drive()
        absent = self.tapetum("serve", "--drive", self.folder / "none.sock", *SMALL, "--memcached", "127.0.0.1:0").stderr
        self.assertRegex(absent, r"nobody answers at its socket .*: start it \(tapetum drive\), or give its path")
        taken = ("drive", "--file", self.folder / "other.flash", "--capacity", "8MiB", "--socket", socket)
        self.assertIn("is taken: a drive answers there", self.tapetum(*taken).stderr)
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
