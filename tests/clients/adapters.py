"""One face for three clients, so that one test body runs over all of them.

Values are bytes in and bytes out. `gets` gives (value, unique); a missing key is None; stores say True or False. What
a client cannot do it says in `lacks`.
"""

import bmemcached
import pylibmc
import pymemcache


class Client:
    """Calls the library as it is, for what all of them call alike."""

    def __getattr__(self, operation):
        return getattr(self.client, operation)

    def another(self):
        return type(self)(self.port)


class Text(Client):
    """pymemcache: the text protocol."""

    name = "pymemcache"
    lacks = frozenset()

    def __init__(self, port):
        self.port = port
        self.client = pymemcache.Client(("127.0.0.1", port), default_noreply=False, no_delay=True, timeout=60)

    def set(self, key, value, expire=0):
        return self.client.set(key, value, expire=expire)

    def cas(self, key, value, unique):
        return bool(self.client.cas(key, value, unique))

    def set_many(self, items):
        return not self.client.set_many(items)

    def stats(self):
        return {name.decode(): value for name, value in self.client.stats().items()}


class Binary(Client):
    """python-binary-memcached: the binary protocol, quiet forms included (its multi operations)."""

    name = "bmemcached"
    # Its delete says True for a missing key, too.
    lacks = frozenset({"append", "touch", "delete status"})

    def __init__(self, port):
        self.port = port
        self.client = bmemcached.Client((f"127.0.0.1:{port}",), socket_timeout=60)

    def close(self):
        self.client.disconnect_all()

    def set(self, key, value, expire=0):
        return self.client.set(key, value, time=expire, compress_level=0)

    def get_many(self, keys):
        return self.client.get_multi(keys)

    def set_many(self, items):
        return not self.client.set_multi(items, time=0)

    def stats(self):
        return self.client.stats()[f"127.0.0.1:{self.port}"]


class Libmemcached(Client):
    """pylibmc: the binary protocol as libmemcached speaks it."""

    name = "pylibmc"
    # libmemcached waits out its poll timeout after a touch that succeeds, against memcached too; and it shows only the
    # statistics that it knows by name.
    lacks = frozenset({"touch", "other stats"})

    def __init__(self, port):
        self.port = port
        # Timeouts in milliseconds: libmemcached's own are short for a machine with busy cores.
        behaviors = {"cas": True, "tcp_nodelay": True, "connect_timeout": 60_000, "_poll_timeout": 60_000}
        self.client = pylibmc.Client([f"127.0.0.1:{port}"], binary=True, behaviors=behaviors)

    def close(self):
        self.client.disconnect_all()

    def set(self, key, value, expire=0):
        return self.client.set(key, value, time=expire)

    def replace(self, key, value):
        try:
            return self.client.replace(key, value)
        except pylibmc.NotFound:
            return False

    def append(self, key, value):
        try:
            return self.client.append(key, value)
        except pylibmc.Error:
            return False

    def prepend(self, key, value):
        try:
            return self.client.prepend(key, value)
        except pylibmc.Error:
            return False

    def gets(self, key):
        # As bytes: pylibmc 1.6.3 lets go of its own copy of a text key before it has sent it, and with threads about
        # it then asks for another.
        return self.client.gets(key.encode())

    def cas(self, key, value, unique):
        try:
            return self.client.cas(key, value, unique)
        except pylibmc.NotFound:
            return None

    def get_many(self, keys):
        return self.client.get_multi(keys)

    def set_many(self, items):
        return not self.client.set_multi(items)

    def stats(self):
        (_, stats), = self.client.get_stats()
        return {name.decode() if isinstance(name, bytes) else name: value for name, value in stats.items()}


ALL = (Text, Binary, Libmemcached)
