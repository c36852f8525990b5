"""The meta commands, as meta-memcache speaks them: binary keys, leases, stale items, arithmetic, and all of it after a restart."""

import unittest
import warnings

from meta_memcache import CacheClient, Key, ServerAddress, SetMode
from meta_memcache.configuration import LeasePolicy, RecachePolicy, StalePolicy, connection_pool_factory_builder
from meta_memcache.protocol import RequestFlags

from server import Server, IS_MEMCACHED

LEASE = LeasePolicy(ttl=30, miss_retries=2, miss_retry_wait=0)
STALE = StalePolicy(mark_stale_on_deletion_ttl=300, mark_stale_on_cas_mismatch=True)


def client_of(server):
    pools = connection_pool_factory_builder(connection_timeout=30, recv_timeout=30)
    return CacheClient.cache_client_from_servers([ServerAddress("127.0.0.1", server.port)], pools)


class Meta(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # The client has nothing that closes its connections.
        warnings.simplefilter("ignore", ResourceWarning)
        cls.server = Server("meta")
        cls.addClassCleanup(cls.server.close)

    def setUp(self):
        self.client, self.other = client_of(self.server), client_of(self.server)
        self.prefix = self.id().rsplit(".", 1)[-1] + "-"

    def key(self, name="k"):
        return self.prefix + str(name)

    def again(self):
        """New clients after a restart, where there is one: what follows must hold all the same."""
        if not IS_MEMCACHED:
            self.server.restart()
            self.client, self.other = client_of(self.server), client_of(self.server)

    def test_round_trips(self):
        values = [b"", b"\r\n", b"VA 3\r\nabc\r\n", bytes(range(256)) * 4096, "text", 42, {"a": [1, 2]}]
        for value in values:
            self.assertTrue(self.client.set(self.key(), value, ttl=300))
            self.assertEqual(self.client.get(self.key()), value)
        self.assertIsNone(self.client.get(self.key("absent")))

    def test_keys_that_no_text_holds(self):
        keys = [Key("schlüssel"), Key("with a space"), Key("line\r\nend"), Key("nul\0"), Key("k" * 300)]
        for number, key in enumerate(keys):
            self.assertTrue(self.client.set(key, number, ttl=300))
        self.assertEqual(self.client.multi_get(keys), {key: number for number, key in enumerate(keys)})
        self.again()
        self.assertEqual(self.client.multi_get(keys), {key: number for number, key in enumerate(keys)})
        self.assertTrue(all(self.client.delete(key) for key in keys))

    def test_many_keys_and_no_replies(self):
        keys = [Key(self.key(number)) for number in range(1000)]
        for number, key in enumerate(keys):
            self.client.set(key, number, ttl=0, no_reply=True)
        for key in keys[::2]:
            self.client.delete(key, no_reply=True)
        found = self.client.multi_get(keys)
        self.assertEqual([found[key] for key in keys], [number if number % 2 else None for number in range(1000)])

    def test_modes(self):
        self.assertFalse(self.client.set(self.key(), b"no", ttl=0, set_mode=SetMode.REPLACE))
        self.assertFalse(self.client.set(self.key(), b"no", ttl=0, set_mode=SetMode.APPEND))
        self.assertTrue(self.client.refill(self.key(), b"middle", ttl=0))
        self.assertFalse(self.client.refill(self.key(), b"again", ttl=0))
        self.assertTrue(self.client.set(self.key(), b" end", ttl=0, set_mode=SetMode.APPEND))
        self.assertTrue(self.client.set(self.key(), b"start ", ttl=0, set_mode=SetMode.PREPEND))
        self.assertEqual(self.client.get(self.key()), b"start middle end")

    def test_compare_and_swap(self):
        stamp = self.client.set_cas(self.key(), b"one", ttl=0)
        self.assertEqual(self.client.get_cas(self.key()), (b"one", stamp))
        self.again()
        self.assertTrue(self.client.set(self.key(), b"two", ttl=0, cas_token=stamp))
        self.assertFalse(self.client.set(self.key(), b"three", ttl=0, cas_token=stamp))
        self.assertFalse(self.client.delete(self.key(), cas_token=stamp))
        self.assertEqual(self.client.get(self.key()), b"two")

    def test_touch(self):
        self.assertFalse(self.client.touch(self.key(), ttl=100))
        self.client.set(self.key(), b"v", ttl=300)
        self.assertTrue(self.client.touch(self.key(), ttl=5000))
        self.again()
        found = self.client.meta_get(Key(self.key()), flags=RequestFlags(return_ttl=True))
        self.assertTrue(4000 < found.flags.ttl <= 5000)
        self.assertEqual(self.client.get(self.key(), touch_ttl=300), b"v")
        self.assertTrue(self.client.touch(self.key(), ttl=2_592_001))  # in 1970
        self.assertIsNone(self.client.get(self.key()))

    def test_one_client_gets_the_lease_on_a_miss(self):
        value, stamp = self.client.get_or_lease_cas(self.key(), LEASE)
        self.assertIsNone(value)
        self.again()
        lost = self.other.meta_get(Key(self.key()), flags=RequestFlags(return_value=True))
        self.assertEqual((lost.flags.win, lost.size), (False, 0))
        self.assertTrue(self.client.set(self.key(), b"made", ttl=300, cas_token=stamp))
        self.assertEqual(self.other.get_or_lease(self.key(), LEASE), b"made")

    def test_one_client_gets_the_lease_before_expiry(self):
        self.client.set(self.key(), b"old", ttl=60)
        soon = RecachePolicy(ttl=100)
        self.assertIsNone(self.client.get(self.key(), recache_policy=soon))
        self.assertEqual(self.other.get(self.key(), recache_policy=soon), b"old")
        self.again()
        self.assertEqual(self.other.get(self.key(), recache_policy=soon), b"old")
        self.client.set(self.key(), b"new", ttl=300)
        self.assertEqual(self.other.get(self.key(), recache_policy=soon), b"new")

    def test_one_client_makes_a_stale_item_anew(self):
        self.client.set(self.key(), b"old", ttl=0)
        self.assertTrue(self.client.delete(self.key(), stale_policy=STALE))
        self.again()
        value, stamp = self.client.get_cas(self.key())
        self.assertIsNone(value, "it has won, and is to make the value anew")
        self.assertEqual(self.other.get(self.key()), b"old")
        self.again()
        self.assertEqual(self.other.get(self.key()), b"old", "the lease is given out once, a restart or not")
        self.assertTrue(self.client.set(self.key(), b"new", ttl=300, cas_token=stamp))
        self.assertEqual(self.other.get(self.key()), b"new")

    def test_a_value_made_before_it_was_invalidated_is_stale(self):
        stamp = self.client.set_cas(self.key(), b"one", ttl=0)
        self.other.invalidate(self.key(), stale_policy=STALE)
        self.assertFalse(self.client.set(self.key(), b"two", ttl=300, cas_token=stamp))
        self.assertTrue(self.client.set(self.key(), b"two", ttl=300, cas_token=stamp, stale_policy=STALE))
        self.again()
        found = self.client.meta_get(Key(self.key()))
        self.assertTrue(found.flags.stale)
        self.assertEqual(self.other.get(self.key()), b"two")

    def test_arithmetic(self):
        self.assertFalse(self.client.delta(self.key(), 5))
        self.assertTrue(self.client.delta_initialize(self.key(), 5, initial_value=10, initial_ttl=300))
        self.assertEqual(self.client.delta_and_get(self.key(), 5), 15)
        self.again()
        self.assertEqual(self.client.delta_and_get(self.key(), -6), 9)
        self.assertEqual(self.client.delta_and_get(self.key(), -100), 0)
        self.assertEqual(self.client.delta_initialize_and_get(self.key("other"), 1, initial_value=7, initial_ttl=300), 7)
