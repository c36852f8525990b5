"""Two first starts on one place: one makes the store, and nothing that either acknowledged is lost. strace holds one of them up
in the middle of a decision."""

import shutil
import socket
import time
import unittest

from host import HostTest, Server, needs_root

SET, GET = "set a 0 0 1\r\nA\r\n", "get a\r\n"
FOUND = "VALUE a 0 1\r\nA\r\nEND\r\n"


def held_up(path, opening):
    """A prefix that holds a process up before it opens `path` for the nth time."""
    inject = f"inject=openat:delay_enter=1500000:when={opening}"
    return ("strace", "-D", "-f", "-o", "/dev/null", "-P", path, "-e", "trace=openat", "-e", inject)


@unittest.skipUnless(shutil.which("strace"), "strace holds a process up")
class FirstStart(HostTest):
    def start(self, name, *options, prefix=(), data=None):
        """A server that may not come to serve."""
        server = Server(data or self.folder / "data", options, prefix, self.folder / name)
        self.addCleanup(server.kill)
        return server

    def test_of_two_that_make_a_store_one_serves(self):
        data = self.folder / "data"
        data.mkdir()
        late = self.start("late", prefix=held_up(data / "drive.unfinished", 1))
        early = self.serve(data=data)
        self.assertEqual(early.ask(SET), "STORED\r\n")
        self.assertEqual(late.process.wait(timeout=60), 1)
        self.assertIn("in use", late.log)
        self.assertEqual([path.name for path in data.glob("drive*")], ["drive"])
        self.assertEqual(early.stop(), 0)
        self.assertEqual(self.serve(data=data).ask(GET), FOUND)

    def test_what_an_early_one_left_is_served_by_the_late_one(self):
        data = self.folder / "data"
        data.mkdir()
        late = self.start("late", prefix=held_up(data / "drive.unfinished", 1))
        done = self.tapetum("put", "a", "A", "--data", data, "--create", "--capacity", "64MiB", "--memory", "64MiB")
        self.assertEqual(done.returncode, 0, done.stderr)
        late.wait_until_it_serves()
        self.assertEqual(late.ask(GET), FOUND)

    @needs_root
    def test_a_blank_device_is_made_a_store_once(self):
        device = self.loop_device(64 << 20)
        late = self.start("late", "--drive", device, prefix=held_up(device, 3))
        late.wait_for_log("flash opened")
        done = self.tapetum("put", "a", "A", "--create", "--drive", device, "--memory", "64MiB")
        late.wait_until_it_serves()
        self.assertEqual(late.ask(GET), FOUND if done.returncode == 0 else "END\r\n")
        late.kill()

    def test_of_two_that_find_a_stale_socket_one_serves_there(self):
        path = self.folder / "socket"
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
        at_path = ("--memcached", f"unix:{path}")
        held_up = ("strace", "-D", "-f", "-o", "/dev/null", "-e", "trace=unlink", "-P", path)
        held_up += ("-e", "inject=unlink:delay_enter=1500000:when=1")
        first = self.start("first", *at_path, prefix=held_up, data=self.folder / "a")
        time.sleep(0.5)
        second = self.start("second", *at_path, data=self.folder / "b")
        self.assertEqual(second.process.wait(timeout=60), 1)
        self.assertIn("cannot listen", second.log)
        first.wait_until_it_serves()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
            client.sendall(b"mn\r\n")
            self.assertEqual(client.recv(100), b"MN\r\n")

    def test_a_link_to_nothing_is_not_replaced(self):
        data = self.folder / "data"
        data.mkdir()
        (data / "drive").symlink_to("elsewhere")
        server = self.start("log")
        self.assertEqual(server.process.wait(timeout=60), 1)
        self.assertIn("is a dangling link", server.log)
        self.assertEqual([path.name for path in data.iterdir()], ["drive"])
