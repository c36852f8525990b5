"""A log that nobody reads."""

import fcntl
import os
import re
import resource
import socket
import subprocess

from host import BINARY, SMALL, HostTest


class Log(HostTest):
    def serve_unread(self):
        """A server whose standard error and standard output are one pipe, full of what nobody reads; it, and its port."""
        reader, writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
        words = [BINARY, "serve", "--data", self.folder / "data", *SMALL, "--threads", "1", "--memcached", "127.0.0.1:0"]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=writer, stderr=writer)
        for end in (reader, writer):
            self.addCleanup(os.close, end)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        log = b""
        while not (serves := re.search(rb"clients at 127.0.0.1:(\d+)\n", log)):
            log += os.read(reader, 4096)
        os.set_blocking(writer, False)
        try:
            while True:
                os.write(writer, b"x")
        except BlockingIOError:
            os.set_blocking(writer, True)
        return process, int(serves[1])

    def test_a_server_stops_all_the_same(self):
        process, _ = self.serve_unread()
        process.terminate()
        self.assertEqual(process.wait(timeout=60), 0)

    def test_clients_are_served_all_the_same(self):
        process, port = self.serve_unread()
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"version\r\n")
            self.assertTrue(client.recv(100))
            # So that there is something to warn of, again and again.
            files = len(os.listdir(f"/proc/{process.pid}/fd")) + 1
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (files, files))
            crowd = [socket.create_connection(("127.0.0.1", port)) for _ in range(8)]
            paused = 0
            while paused < 2:
                client.sendall(b"stats\r\n")
                figures = b""
                while not figures.endswith(b"END\r\n"):
                    figures += client.recv(1 << 16)
                paused = int(re.search(rb"listen_disabled_num (\d+)", figures)[1])
            for one in crowd:
                one.close()
        process.terminate()
        self.assertEqual(process.wait(timeout=60), 0)
