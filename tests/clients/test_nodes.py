"""Several servers as one cache, as clients and twemproxy spread keys over them: each is killed in turn, and the others go on."""

import contextlib
import shutil
import subprocess
import time
import unittest

import pylibmc
import pymemcache

from server import SCRATCH, Server, free_port

KEYS = [f"key-{number}" for number in range(300)]
# A client tries a server that is away again after so long.
RETRY_SECONDS = 1


class TestNodes(unittest.TestCase):
    def setUp(self):
        self.servers = [Server(f"node-{number}") for number in range(3)]
        for server in self.servers:
            self.addCleanup(server.close)

    def kept(self, get):
        """How many keys are there; those of a server that is away are not."""
        found = 0
        for key in KEYS:
            with contextlib.suppress(Exception):
                found += get(key) is not None
        return found

    def each_killed_in_turn(self, set_, get):
        for key in KEYS:
            set_(key, b"value of " + key.encode())
        self.assertEqual(self.kept(get), len(KEYS))
        for server in self.servers:
            server.process.kill()
            server.process.wait()
            kept = self.kept(get)
            self.assertGreater(kept, len(KEYS) / 10)
            self.assertLess(kept, len(KEYS))
            # It comes back with what it had: acknowledged writes outlive a kill.
            server.start()
            deadline = time.monotonic() + 30
            while self.kept(get) < len(KEYS):
                self.assertLess(time.monotonic(), deadline, "its keys come back with it")
                time.sleep(0.2)

    def test_ketama_of_libmemcached(self):
        client = pylibmc.Client([f"127.0.0.1:{server.port}" for server in self.servers], binary=False, behaviors={
            "ketama": True, "connect_timeout": 500, "retry_timeout": RETRY_SECONDS})
        self.each_killed_in_turn(client.set, client.get)

    def test_rendezvous_hashing_of_pymemcache(self):
        client = pymemcache.HashClient([("127.0.0.1", server.port) for server in self.servers], timeout=5, connect_timeout=1,
                                       retry_timeout=RETRY_SECONDS, dead_timeout=RETRY_SECONDS, ignore_exc=True, default_noreply=False)
        self.addCleanup(client.close)
        self.each_killed_in_turn(client.set, client.get)

    def test_twemproxy(self):
        port, stats = free_port(), free_port()
        settings = SCRATCH / f"nutcracker-{port}.yml"
        settings.write_text(f"""
alpha:
  listen: 127.0.0.1:{port}
  hash: md5
  distribution: ketama
  auto_eject_hosts: false
  timeout: 1000
  server_retry_timeout: {1000 * RETRY_SECONDS}
  servers:
""" + "".join(f"  - 127.0.0.1:{server.port}:1 node-{number}\n" for number, server in enumerate(self.servers)))
        proxy = subprocess.Popen([shutil.which("nutcracker") or "/usr/sbin/nutcracker", "-c", settings, "-s", str(stats), "-a", "127.0.0.1"],
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(proxy.wait)
        self.addCleanup(proxy.terminate)

        def client():
            return pymemcache.Client(("127.0.0.1", port), timeout=5, connect_timeout=5, default_noreply=False)

        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(Exception), contextlib.closing(client()) as connection:
                if connection.set("first", b"1"):
                    break
            self.assertLess(time.monotonic(), deadline, "twemproxy listens")
            time.sleep(0.1)

        def get(key):
            # An error of one server's key must not spoil the next answer.
            with contextlib.closing(client()) as connection:
                return connection.get(key)

        setting = client()
        self.addCleanup(setting.close)
        self.each_killed_in_turn(setting.set, get)


if __name__ == "__main__":
    unittest.main()
