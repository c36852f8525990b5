"""SIGTERM and a new start in between: what was stored is there, and means what it meant."""

import time
import unittest

from adapters import ALL, Text
from server import Server, IS_MEMCACHED


@unittest.skipIf(IS_MEMCACHED, "memcached keeps nothing")
class Restart(unittest.TestCase):
    def setUp(self):
        self.server = Server("restart")
        self.addCleanup(self.server.close)

    def client(self, make=Text):
        client = make(self.server.port)
        self.addCleanup(client.close)
        return client

    def test_data_survives_for_every_client(self):
        written = {}  # by client: one may compress its values, which is between it and itself
        for make in ALL:
            client = self.client(make)
            items = {f"{make.name}-{number}": f"{make.name} {number} ".encode() * (number % 97 + 1)
                     for number in range(2000)}
            items[f"{make.name}-large"] = bytes(range(256)) * 4096
            self.assertTrue(client.set_many(items))
            written[make] = items
        for _ in range(2):
            self.server.restart()
            for make in ALL:
                self.assertTrue(self.client(make).get_many(list(written[make])) == written[make], make.name)

    def test_deletes_and_flush_all_survive(self):
        client = self.client()
        client.set("flushed", b"v")
        self.server.restart()
        client = self.client()
        client.flush_all()
        client.set("kept", b"v")
        client.set("deleted", b"v")
        client.delete("deleted")
        self.server.restart()
        client = self.client()
        self.assertEqual(client.get_many(["flushed", "kept", "deleted"]), {"kept": b"v"})

    def test_expiry_counters_and_uniques_survive(self):
        client = self.client()
        client.set("expires", b"v", expire=int(time.time()) + 3600)
        client.set("expired", b"v", expire=int(time.time()) - 3600)
        client.set("counter", b"41")
        client.set("swapped", b"one")
        _, unique = client.gets("swapped")
        self.server.restart()
        client = self.client()
        self.assertEqual(client.get("expires"), b"v")
        self.assertIsNone(client.get("expired"))
        self.assertEqual(client.incr("counter", 1), 42)
        # No unique is given out twice, so one from before the restart still names the same write and only that.
        client.set("other", b"v")
        _, other = client.gets("other")
        self.assertNotEqual(other, unique)
        self.assertTrue(client.cas("swapped", b"two", unique))
        self.assertFalse(client.cas("swapped", b"three", unique))
