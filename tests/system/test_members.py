"""A store on several files: served, killed, opened again; and members that make no set."""

import signal
import unittest

from host import HostTest


class Members(HostTest):
    def members(self, *names):
        return [word for name in names for word in ("--drive", self.folder / name)]

    def refused(self, *names):
        done = self.tapetum("get", *self.members(*names), "k1")
        self.assertEqual(done.returncode, 1, done.stdout)
        return done.stderr

    def test_a_store_on_three_files_is_served_killed_and_served_again(self):
        server = self.serve(*self.members("a", "b", "c"), "--capacity", "192MiB")
        self.assertIn("member 3 is", server.log)
        value = "v" * 100_000
        for number in range(60):
            self.assertEqual(server.ask(f"set k{number} 0 0 {len(value)}\r\n{value}\r\n"), "STORED\r\n")
        # A command finds the server, in whatever order the members are given.
        done = self.tapetum("get", *self.members("c", "a", "b"), "k7")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, value), done.stderr)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        server = self.serve(*self.members("b", "c", "a"))
        for number in range(60):
            self.assertEqual(server.ask(f"get k{number}\r\n"), f"VALUE k{number} 0 {len(value)}\r\n{value}\r\nEND\r\n")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(), 0)
        for name in ("a", "b", "c"):
            # Together no more than --capacity.
            self.assertIn((self.folder / name).stat().st_size, range(63 << 20, (64 << 20) + 1))
        done = self.tapetum("check", *self.members("a", "b", "c"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_a_store_of_three_goes_on_without_one_and_leaves_it_out_when_it_is_back(self):
        server = self.serve(*self.members("a", "b", "c"), "--capacity", "192MiB", "--redundancy", "raid5")
        value = "v" * 100_000
        keys = range(60)
        for number in keys:
            self.assertEqual(server.ask(f"set k{number} 0 0 {len(value)}\r\n{value}\r\n"), "STORED\r\n")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        (self.folder / "b").rename(self.folder / "away")
        server = self.serve(*self.members("a", "b", "c"))
        self.assertIn("goes on without member 2, and bears no other loss: it is missing", server.log)
        self.assertIn("STAT members_lost 1\r\n", server.ask("stats\r\n"))
        other = "w" * 100_000
        for number in keys:
            self.assertEqual(server.ask(f"get k{number}\r\n"), f"VALUE k{number} 0 {len(value)}\r\n{value}\r\nEND\r\n")
            self.assertEqual(server.ask(f"set k{number} 0 0 {len(other)}\r\n{other}\r\n"), "STORED\r\n")
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        (self.folder / "away").rename(self.folder / "b")
        done = self.tapetum("get", *self.members("a", "b", "c"), "k7")
        self.assertEqual((done.returncode, done.stdout.strip()), (0, other), done.stderr)
        done = self.tapetum("check", *self.members("c", "a"))
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        server = self.serve(*self.members("c", "b", "a"))
        self.assertIn("b was away while the set changed, and is left out", server.log)
        for number in keys:
            self.assertEqual(server.ask(f"get k{number}\r\n"), f"VALUE k{number} 0 {len(other)}\r\n{other}\r\nEND\r\n")
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(), 0)
        self.assertIn("number 1, 2 are missing or were away", self.refused("c", "b"))
        self.assertIn("cannot be repaired in place yet", self.tapetum("repair", *self.members("a", "c")).stderr)

    def test_what_makes_no_set_is_said(self):
        server = self.serve(*self.members("a", "b"), "--capacity", "128MiB")
        self.assertIn("in use", self.tapetum("repair", *self.members("b", "a")).stderr)
        server.process.send_signal(signal.SIGTERM)
        self.assertEqual(server.process.wait(), 0)
        self.assertIn("one of the 2 members of a set: give them all", self.refused("a"))
        self.assertIn("number 2 is missing", self.refused("a", "c"))
        self.assertIn("is the same as", self.refused("a", "a"))
        (self.folder / "c").write_bytes(b"mine" * 4096)
        self.assertIn("holds something that is no member", self.refused("a", "b", "c"))
        self.assertEqual((self.folder / "c").read_bytes(), b"mine" * 4096)
        done = self.tapetum("resize", *self.members("a", "b"), "--capacity", "256MiB")
        self.assertIn("keeps its size", done.stderr)


if __name__ == "__main__":
    unittest.main()
