"""What every client does, over all three."""

import random
import time
import unittest

from adapters import ALL
from server import Server, IS_MEMCACHED

MEBIBYTE = 1 << 20


class Operations:
    """The test body; a class for each client follows below."""

    make = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(f"operations-{cls.make.name}")
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        self.client = self.make(self.server.port)
        self.addCleanup(self.client.close)
        # Keys of its own, so that no test sees what another left.
        self.prefix = self.id().rsplit(".", 1)[-1] + "-"

    def key(self, name):
        return self.prefix + str(name)

    def needs(self, operation):
        if operation in self.client.lacks:
            self.skipTest(f"{self.client.name} has no {operation}")

    def test_round_trip(self):
        self.assertIsNone(self.client.get(self.key("k")))
        self.assertTrue(self.client.set(self.key("k"), b"one"))
        self.assertEqual(self.client.get(self.key("k")), b"one")
        self.assertTrue(self.client.set(self.key("k"), b"two"))
        self.assertEqual(self.client.get(self.key("k")), b"two")

    def test_every_byte_and_the_empty_value(self):
        for value in (b"", bytes(range(256)), b"\r\n", b"END\r\n", b"VALUE k 0 1\r\nx\r\nEND\r\n"):
            self.assertTrue(self.client.set(self.key("k"), value))
            self.assertEqual(self.client.get(self.key("k")), value)

    def test_longest_key(self):
        key = self.prefix + "x" * (250 - len(self.prefix))
        self.assertTrue(self.client.set(key, b"long"))
        self.assertEqual(self.client.get(key), b"long")

    def test_add_and_replace(self):
        self.assertFalse(self.client.replace(self.key("k"), b"no"))
        self.assertIsNone(self.client.get(self.key("k")))
        self.assertTrue(self.client.add(self.key("k"), b"added"))
        self.assertFalse(self.client.add(self.key("k"), b"again"))
        self.assertEqual(self.client.get(self.key("k")), b"added")
        self.assertTrue(self.client.replace(self.key("k"), b"replaced"))
        self.assertEqual(self.client.get(self.key("k")), b"replaced")

    def test_append_and_prepend(self):
        self.needs("append")
        self.assertFalse(self.client.append(self.key("k"), b"x"))
        self.assertFalse(self.client.prepend(self.key("k"), b"x"))
        self.assertTrue(self.client.set(self.key("k"), b"middle"))
        self.assertTrue(self.client.append(self.key("k"), b" end"))
        self.assertTrue(self.client.prepend(self.key("k"), b"start "))
        self.assertEqual(self.client.get(self.key("k")), b"start middle end")

    def test_delete(self):
        tells = "delete status" not in self.client.lacks
        self.assertNotEqual(self.client.delete(self.key("k")), tells)
        self.client.set(self.key("k"), b"v")
        self.assertTrue(self.client.delete(self.key("k")))
        self.assertIsNone(self.client.get(self.key("k")))
        self.assertNotEqual(self.client.delete(self.key("k")), tells)

    def test_compare_and_swap(self):
        self.client.set(self.key("k"), b"one")
        value, unique = self.client.gets(self.key("k"))
        self.assertEqual(value, b"one")
        self.assertTrue(self.client.cas(self.key("k"), b"two", unique))
        self.assertFalse(self.client.cas(self.key("k"), b"three", unique))
        self.assertEqual(self.client.get(self.key("k")), b"two")
        _, unique = self.client.gets(self.key("k"))
        self.client.set(self.key("k"), b"other")
        self.assertFalse(self.client.cas(self.key("k"), b"four", unique))
        _, unique = self.client.gets(self.key("k"))
        self.client.delete(self.key("k"))
        self.assertFalse(self.client.cas(self.key("k"), b"five", unique))
        self.assertIsNone(self.client.get(self.key("k")))

    def test_increment_and_decrement(self):
        self.client.set(self.key("k"), b"10")
        self.assertEqual(self.client.incr(self.key("k"), 5), 15)
        self.assertEqual(self.client.decr(self.key("k"), 6), 9)
        self.assertEqual(self.client.decr(self.key("k"), 100), 0)
        self.client.set(self.key("k"), str(2**64 - 1).encode())
        self.assertEqual(self.client.incr(self.key("k"), 2), 1)

    def test_expiry(self):
        self.client.set(self.key("short"), b"v", expire=1)
        self.client.set(self.key("long"), b"v", expire=3600)
        self.client.set(self.key("past"), b"v", expire=int(time.time()) - 10)
        self.assertIsNone(self.client.get(self.key("past")))
        deadline = time.monotonic() + 30
        while self.client.get(self.key("short")) is not None:
            self.assertLess(time.monotonic(), deadline, "an item outlived its expiry by far")
            time.sleep(0.1)
        self.assertEqual(self.client.get(self.key("long")), b"v")
        self.assertTrue(self.client.add(self.key("short"), b"free again"))

    def test_touch(self):
        self.needs("touch")
        self.assertFalse(self.client.touch(self.key("k"), 100))
        self.client.set(self.key("k"), b"v", expire=3600)
        self.assertTrue(self.client.touch(self.key("k"), int(time.time()) - 10))
        self.assertIsNone(self.client.get(self.key("k")))

    def test_large_values(self):
        source = random.Random(1)
        sizes = [4095, 4096, 4097, 65_536, 300_000, MEBIBYTE - 1, MEBIBYTE, 4 * MEBIBYTE, 16 * MEBIBYTE]
        for size in sizes:
            for value in (source.randbytes(size), b"squeezable" * (size // 10)):
                self.assertTrue(self.client.set(self.key(size), value), size)
                # No assertEqual: its message would print megabytes.
                self.assertTrue(self.client.get(self.key(size)) == value, size)

    def test_many_keys(self):
        items = {self.key(number): f"value {number} ".encode() * (number % 50 + 1) for number in range(5000)}
        self.assertTrue(self.client.set_many(items))
        found = self.client.get_many([*items, *(self.key(f"absent{number}") for number in range(1000))])
        self.assertEqual(len(found), len(items))
        self.assertTrue(found == items)
        for key in list(items)[::2]:
            self.assertTrue(self.client.delete(key))
        self.assertEqual(len(self.client.get_many(list(items))), len(items) // 2)

    def test_flush_all(self):
        self.client.set(self.key("before"), b"v")
        self.assertTrue(self.client.flush_all())
        self.assertIsNone(self.client.get(self.key("before")))
        self.assertTrue(self.client.set(self.key("after"), b"v"))
        self.assertEqual(self.client.get(self.key("after")), b"v")

    def test_stats(self):
        stats = self.client.stats()
        self.assertIn("version", stats)
        if not IS_MEMCACHED and "other stats" not in self.client.lacks:
            for name in ("index_entries", "index_bytes", "memory_limit_bytes", "memory_used_bytes",
                         "flash_limit_bytes", "flash_used_bytes", "user_write_bytes", "flash_write_bytes",
                         "log_write_bytes", "get_from_flash", "get_flash_reads", "flash_to_local_bytes",
                         "local_to_host_bytes"):
                self.assertGreaterEqual(int(stats[name]), 0, name)


for adapter in ALL:
    globals()[f"Test{adapter.__name__}"] = type(
        f"Test{adapter.__name__}", (Operations, unittest.TestCase), {"make": adapter, "__module__": __name__}
    )
