"""The wall clock is set while the server runs: nothing that lasts a time may notice. After a restart it decides again."""

import pathlib
import re
import socket
import time
import unittest

from host import HostTest

LIBRARY = pathlib.Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")
HOUR = 3600


@unittest.skipUnless(LIBRARY.exists(), "needs libfaketime (apt: faketime)")
class ClockTest(HostTest):
    def serve(self, *options, clock=0, **rest):
        """A server whose wall clock is what `set_clock` says; its other clocks are the machine's."""
        self.offset = self.folder / "offset"
        self.set_clock(clock)
        fake = ("env", f"LD_PRELOAD={LIBRARY}", f"FAKETIME_TIMESTAMP_FILE={self.offset}", "FAKETIME_NO_CACHE=1", "FAKETIME_DONT_FAKE_MONOTONIC=1")
        return super().serve(*options, prefix=fake, **rest)

    def set_clock(self, seconds):
        self.offset.write_text(f"{seconds:+}\n")

    def figure(self, server, name):
        return int(re.search(rf"^STAT {name} (\d+)\r$", server.ask("stats\r\n"), re.MULTILINE)[1])

    def gone_within(self, server, key, seconds):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if server.ask(f"get {key}\r\n") == "END\r\n":
                return True
            time.sleep(0.1)
        return False

    def test_a_time_to_live_is_as_long_whichever_way_the_clock_is_set(self):
        server = self.serve()
        for step in (-HOUR, HOUR):
            server.ask("set soon 0 2 1\r\nx\r\nset late 0 900 1\r\nx\r\n")
            self.set_clock(step)
            self.assertIn("VALUE late", server.ask("get late\r\n"), step)
            self.assertTrue(self.gone_within(server, "soon", 20), step)
            self.set_clock(0)

    def test_uptime_and_time_do_not_jump(self):
        server = self.serve()
        before = self.figure(server, "time")
        for step in (-HOUR, HOUR):
            self.set_clock(step)
            self.assertLess(self.figure(server, "uptime"), 300)
            self.assertLess(self.figure(server, "time") - before, 300)
            self.assertGreaterEqual(self.figure(server, "time"), before)

    def test_a_delayed_flush_comes_after_its_delay(self):
        server = self.serve()
        server.ask("set k 0 0 1\r\nx\r\nflush_all 2\r\n")
        self.set_clock(-HOUR)
        self.assertTrue(self.gone_within(server, "k", 20))

    def test_clients_that_go_on_sending_are_not_called_stalled(self):
        server = self.serve()
        # More than the server has memory for: the last ones wait, so that whoever stalls is looked for.
        clients = [socket.create_connection(("127.0.0.1", server.port), timeout=20) for _ in range(24)]
        for client in clients:
            self.addCleanup(client.close)
            client.settimeout(0.2)
            self.send_what_is_taken([client], b"set k 0 0 1000000\r\n" + bytes(400_000))
        self.set_clock(HOUR)
        for _ in range(15):
            self.send_what_is_taken(clients, b"x")
            time.sleep(0.2)
        self.assertNotIn("closed a client", server.log)

    def send_what_is_taken(self, clients, data):
        for client in clients:
            try:
                client.sendall(data)
            except TimeoutError:
                pass

    def test_after_a_restart_the_wall_clock_decides(self):
        server = self.serve()
        server.ask("set k 0 900 1\r\nx\r\nset kept 0 0 1\r\nx\r\n")
        self.assertEqual(server.stop(), 0)
        data = self.folder / "data"
        self.folder = self.folder / "later"
        self.folder.mkdir()
        late = self.serve(data=data, clock=HOUR)
        self.assertEqual(late.ask("get k kept\r\n"), "VALUE kept 0 1\r\nx\r\nEND\r\n")
