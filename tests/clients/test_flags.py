"""Flags: what a client notes beside a value comes back with it, for itself and for others."""

import unittest

import bmemcached
import pylibmc
import pymemcache

from server import Server


class RawFlags:
    """Hands (value, flags) through, both ways."""

    def serialize(self, key, value):
        return value

    def deserialize(self, key, value, flags):
        return value, flags


class Flags(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("flags")
        cls.addClassCleanup(cls.server.close)

    def text(self, **options):
        client = pymemcache.Client(("127.0.0.1", self.server.port), default_noreply=False, **options)
        self.addCleanup(client.close)
        return client

    def test_all_32_bits(self):
        client = self.text(serde=RawFlags())
        for flags in (0, 1, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF):
            self.assertTrue(client.set("flags", (b"value", flags)))
            self.assertEqual(client.get("flags"), (b"value", flags))

    def test_types_come_back(self):
        values = ["text", "zwölf", b"bytes", 42, -7, 2**80, {"nested": [1, 2.5, None]}]
        binary = bmemcached.Client((f"127.0.0.1:{self.server.port}",))
        libmemcached = pylibmc.Client([f"127.0.0.1:{self.server.port}"], binary=True)
        for client in (self.text(serde=pymemcache.serde.pickle_serde), binary, libmemcached):
            for position, value in enumerate(values):
                client.set(f"typed{position}", value)
                found = client.get(f"typed{position}")
                self.assertEqual((type(found), found), (type(value), value), client)
        binary.disconnect_all()
        libmemcached.disconnect_all()

    def test_append_and_increment_keep_flags(self):
        client = self.text(serde=RawFlags())
        client.set("kept", (b"1", 77))
        client.append("kept", (b"0", 5))
        client.incr("kept", 5)
        self.assertEqual(client.get("kept"), (b"15", 77))

    def test_one_protocol_reads_what_the_other_wrote(self):
        binary = bmemcached.Client((f"127.0.0.1:{self.server.port}",), raw_data=True)
        text = self.text()
        binary.set("shared", b"from binary")
        self.assertEqual(text.get("shared"), b"from binary")
        text.set("shared", b"from text")
        self.assertEqual(binary.get("shared"), b"from text")
        _, unique = binary.gets("shared")
        self.assertTrue(text.cas("shared", b"swapped", str(unique)))
        self.assertEqual(binary.get("shared"), b"swapped")
        binary.disconnect_all()
