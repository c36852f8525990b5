"""Where the server listens: names, families of addresses, ports that are taken, and clients who come too early."""

import concurrent.futures
import errno
import os
import pathlib
import re
import signal
import socket
import subprocess
import time
import unittest
import urllib.request

from host import BINARY, SMALL, HostTest, needs_root

# TEST-NET-1: no machine has it.
NOWHERE = "192.0.2.1:11211"
ANSWER = "VERSION"


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def answers(host, port):
    with socket.create_connection((host, port), timeout=20) as connection:
        connection.sendall(b"version\r\n")
        return connection.recv(100).decode().startswith(ANSWER)


def answers_over_udp(host, port):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as peer:
        peer.settimeout(20)
        peer.sendto(b"\0\1\0\0\0\1\0\0version\r\n", (host, port))
        return peer.recv(100)[8:].decode().startswith(ANSWER)


class Listening(HostTest):
    def test_an_address_that_cannot_be_had_leaves_no_store_behind(self):
        data = self.folder / "data"
        with socket.create_server(("127.0.0.1", 0)) as taken:
            here = f"127.0.0.1:{taken.getsockname()[1]}"
            for options, option, advice in [
                (["--memcached", NOWHERE], "--memcached", "no such address"),
                (["--memcached", here], "--memcached", "stop what is there"),
                (["--memcached", "no-such-name.invalid:1"], "--memcached", "look up"),
                (["--memcached", f"unix:{self.folder}/none/socket"], "--memcached", "No such file"),
                (["--memcached", "127.0.0.1:0", "--metrics", NOWHERE], "--metrics", "no such address"),
                (["--memcached", "127.0.0.1:0", "--metrics", here], "--metrics", "stop what is there"),
                (["--memcached", "127.0.0.1:0", "--udp", NOWHERE], "--udp", "no such address"),
            ]:
                with self.subTest(options=options):
                    done = self.tapetum("serve", "--data", data, *SMALL, *options)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn("cannot listen at", done.stderr)
                    self.assertIn(advice, done.stderr)
                    self.assertIn(f"give {'another ' if 'stop' in advice or 'file' in advice else ''}{option}", done.stderr)
                    self.assertFalse(data.exists())

    @needs_root
    def test_a_name_is_all_of_its_addresses(self):
        hosts, wrapper = self.folder / "hosts", self.folder / "with-hosts"
        # The third is one that this machine lacks.
        hosts.write_text("127.0.0.1 localhost\n::1 localhost ip6-localhost\n192.0.2.1 localhost\n")
        wrapper.write_text(f'#!/bin/sh\nmount --bind {hosts} /etc/hosts && exec "$@"\n')
        wrapper.chmod(0o755)
        server = self.serve(
            "--memcached", "localhost:0", "--udp", "localhost:0", "--metrics", "localhost:0", prefix=("unshare", "-m", wrapper)
        )
        # What is said last of where it listens.
        server.wait_for_log("/metrics")
        time.sleep(0.2)
        log = server.log
        udp = int(re.search(r"over UDP at \S*:(\d+)", log)[1])
        metrics = int(re.search(r"http://\S*:(\d+)/metrics", log)[1])
        self.assertIn("localhost:0 is 192.0.2.1:0 too", log)
        for host in ("127.0.0.1", "::1"):
            self.assertTrue(answers(host, server.port), host)
            self.assertTrue(answers_over_udp(host, udp), host)
            url = f"http://{'[::1]' if ':' in host else host}:{metrics}/metrics"
            self.assertEqual(urllib.request.urlopen(url, timeout=20).status, 200)
        self.assertEqual(server.stop(), 0)

    def test_all_addresses_of_both_families_go_side_by_side(self):
        port, udp = free_port(), free_port()
        server = self.serve(
            "--memcached", f"0.0.0.0:{port}", "--memcached", f"[::]:{port}", "--udp", f"[::]:{udp}", "--udp-allow", "::1", "--insecure"
        )
        for host in ("127.0.0.1", "::1"):
            self.assertTrue(answers(host, port), host)
        self.assertTrue(answers_over_udp("::1", udp))
        # [::] is IPv6 alone: IPv4 of that port is for another.
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
            other.bind(("127.0.0.1", udp))
        self.assertEqual(server.stop(), 0)

    def test_clients_are_refused_until_the_store_is_open(self):
        first = self.serve()
        port, path = free_port(), self.folder / "socket"
        # The second waits some seconds for the first to let go of the data.
        words = [BINARY, "serve", "--data", self.folder / "data", *SMALL]
        addresses = ["--memcached", f"127.0.0.1:{port}", "--memcached", f"unix:{path}"]
        second = subprocess.Popen([*words, *addresses], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        refused = 0
        while second.poll() is None:
            with socket.socket() as client, socket.socket(socket.AF_UNIX) as local:
                self.assertEqual(client.connect_ex(("127.0.0.1", port)), errno.ECONNREFUSED)
                if path.exists():
                    self.assertIn(local.connect_ex(str(path)), (errno.ECONNREFUSED, errno.ENOENT))
                    refused += 1
            # Its address is kept from others meanwhile.
            if refused == 1:
                done = self.tapetum("serve", "--data", self.folder / "other", *SMALL, *addresses[:2])
                self.assertIn("stop what is there", done.stderr)
                done = self.tapetum("serve", "--data", self.folder / "other", *SMALL, *addresses[2:])
                self.assertIn("stop what is there", done.stderr)
            time.sleep(0.02)
        self.assertGreater(refused, 1)
        with second.stderr as log:
            self.assertIn(b"is in use", log.read())
        self.assertFalse(path.exists())
        self.assertEqual(first.stop(), 0)

    @unittest.skipIf(int(open("/proc/sys/net/core/somaxconn").read()) < 300, "net.core.somaxconn is small")
    def test_as_many_clients_wait_as_backlog_says(self):
        for options, expected in [(("--backlog", "20"), range(20, 30)), ((), range(290, 301))]:
            server = self.serve(*options)
            os.kill(server.process.pid, signal.SIGSTOP)
            while any(" T " not in (task / "stat").read_text() for task in pathlib.Path(f"/proc/{server.process.pid}/task").iterdir()):
                time.sleep(0.01)
            clients = [socket.socket() for _ in range(300)]
            for client in clients:
                client.setblocking(False)
                client.connect_ex(("127.0.0.1", server.port))
            time.sleep(0.3)
            states = [client.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] for client in clients]
            self.assertIn(states.count(1), expected)
            os.kill(server.process.pid, signal.SIGCONT)
            for client in clients:
                client.close()
            self.assertEqual(server.stop(), 0)

    def test_a_restart_takes_the_port_of_connections_that_linger(self):
        server = self.serve("--memcached", f"127.0.0.1:{free_port()}")
        port = server.port
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            # The server closes first, and is left with the lingering ends.
            self.assertTrue(all(ANSWER in answer for answer in pool.map(lambda _: server.ask("version\r\n"), range(40))))
        self.assertEqual(server.stop(), 0)
        again = self.serve("--memcached", f"127.0.0.1:{port}")
        self.assertTrue(answers("127.0.0.1", port))
        self.assertEqual(again.stop(), 0)

