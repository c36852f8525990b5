"""A store over several nodes: served stores that do not know each other. ``docs/MANY-NODES.md`` has what is promised.

1. A key lies at one node, which its hash chooses among the nodes' names: the names, not their order or their addresses, say where it is.
2. Scans and queries ask all nodes, and join the answers. Each node answers from a moment of its own: there is none of all nodes.
3. An error names its node.

Threads: any. A query has a thread for each node while it runs.
"""

import hashlib

from tapetum.door import as_bytes
from tapetum.errors import Error
from tapetum.joining import AtNode, NodesItems, NodesRows, at_once
from tapetum.remote import RemoteStore, listed


def connect_nodes(addresses, login=None):
    """A store over several nodes: of a list of addresses, or of names with their addresses. All nodes have the user of ``login``."""
    if isinstance(addresses, dict):
        named = {str(name): address for name, address in addresses.items()}
    else:
        named = {str(address): address for address in addresses}
        if len(named) != len(addresses):
            raise Error("a node is given twice: give each address once")
    if not named:
        raise Error("no node is given: give the addresses of one or more")
    return NodesStore(named, login)


def node_of(names, key):
    """The name of the node at which a key lies: the one for which the hash of both is the greatest.

    So a node that is added takes over its share from all others, and between these nothing moves.
    """
    return max(names, key=lambda name: (_weight(name, key), name))


def _weight(name, key):
    return hashlib.blake2b(key, digest_size=8, key=hashlib.blake2b(name.encode(), digest_size=32).digest()).digest()


class NodesKeyspace:
    """A keyspace that each of several nodes has, with a part of the items."""

    def __init__(self, parts):
        #: A keyspace for each name of a node.
        self._parts = parts

    @property
    def name(self):
        """The name of the keyspace."""
        return next(iter(self._parts.values())).name

    @property
    def ordered(self):
        """Whether its keys have an order."""
        return next(iter(self._parts.values())).ordered

    @property
    def fields(self):
        """The format of the records, if it was set. It is set at each node."""
        return self._agreed("fields", self._each(lambda part: part.fields))

    @property
    def nodes(self):
        """The keyspace at each node, by the names of the nodes."""
        return dict(self._parts)

    def node_of(self, key):
        """The name of the node at which a key lies."""
        return node_of(self._parts, as_bytes(key))

    def get(self, key):
        """The value of a key; None if the key does not exist."""
        return self._at(key, lambda part: part.get(key))

    def put(self, key, value, *, expiry=0):
        """Stores a value, at the key's node."""
        self._at(key, lambda part: part.put(key, value, expiry=expiry))

    def delete(self, key):
        """Deletes a key. Returns whether it existed."""
        return self._at(key, lambda part: part.delete(key))

    def multi_get(self, keys):
        """Reads several keys at once. The values are in the order of the keys."""
        keys = [as_bytes(key) for key in listed(keys)]
        split = self._split(keys, lambda key: key)
        found = self._each(lambda part, keys: part.multi_get(keys), split)
        values = {key: value for keys, values in zip(split.values(), found, strict=True) for key, value in zip(keys, values, strict=True)}
        return [values[key] for key in keys]

    def batch(self, writes):
        """Writes pairs of key and value. A value of None deletes. It is not atomic, neither at a node nor over several: after an error any of
        the writes may be there, and the same batch may be written again."""
        self._each(lambda part, writes: part.batch(writes), self._split(listed(writes), lambda write: as_bytes(write[0])))

    def scan(
        self,
        prefix=None,
        *,
        start=None,
        end=None,
        reverse=False,
        where=None,
        select=None,
        group_by=None,
        having=None,
        order_by=None,
        limit=None,
        fields=None,
        on_error="raise",
        cursor=None,
    ):
        """As ``scan`` of a served keyspace, of all nodes: items of an ordered keyspace in the order of their keys, and rows of a query that
        each node runs at its drive, over its own records. No moment is common to all nodes."""
        words = {"where": where, "select": select, "group_by": group_by, "having": having, "order_by": order_by, "fields": fields}
        if all(text is None for text in words.values()):
            asked = {"prefix": prefix, "start": start, "end": end, "reverse": reverse, "limit": limit}
            return NodesItems(self._parts, asked, self.ordered, cursor)
        if reverse or cursor is not None:
            raise Error("a query is of all keys, or of a range of an ordered keyspace, and its rows have order_by")
        words = {word: text for word, text in (words | {"limit": limit}).items() if text is not None}
        asked = {"prefix": prefix, "start": start, "end": end, "on_error": on_error}
        return NodesRows(self._parts, words, asked)

    def _at(self, key, work):
        name = self.node_of(key)
        with AtNode(name, f"keyspace {self.name!r}, key {as_bytes(key)!r}"):
            return work(self._parts[name])

    def _split(self, elements, key_of):
        """The elements of each node that has any."""
        split = {}
        for element in elements:
            split.setdefault(node_of(self._parts, key_of(element)), []).append(element)
        return split

    def _each(self, work, arguments=None):
        """What ``work`` gives for each node, or for each that has arguments, at the same time."""
        calls = [(name,) for name in self._parts] if arguments is None else list(arguments.items())

        def call(name, *given):
            with AtNode(name, f"keyspace {self.name!r}"):
                return work(self._parts[name], *given)

        return at_once([lambda given=given: call(*given) for given in calls])

    def _agreed(self, what, values):
        names = list(self._parts)
        for name, value in zip(names, values, strict=True):
            if value != values[0]:
                raise Error(
                    f"the keyspace {self.name!r} differs in {what}: node {names[0]} has {values[0]!r}, and node {name} {value!r}; make them equal"
                )
        return values[0]

    def gets(self, key):
        """As ``gets`` of a served keyspace: its token is of the key's node."""
        return self._at(key, lambda part: part.gets(key))

    def cas(self, key, value, token, *, expiry=0):
        """As ``cas`` of a served keyspace, at the key's node."""
        return self._at(key, lambda part: part.cas(key, value, token, expiry=expiry))

    def increment(self, key, by=1, initial=None):
        """As ``increment`` of a served keyspace, at the key's node."""
        return self._at(key, lambda part: part.increment(key, by, initial))

    def decrement(self, key, by=1, initial=None):
        """As ``decrement`` of a served keyspace, at the key's node."""
        return self._at(key, lambda part: part.decrement(key, by, initial))

    def limits(self):
        """An ``Error``: a server does not tell them."""
        return next(iter(self._parts.values())).limits()

    def __getitem__(self, key):
        return self._at(key, lambda part: part[key])

    def __setitem__(self, key, value):
        self.put(key, value)

    def __delitem__(self, key):
        self._at(key, lambda part: part.__delitem__(key))

    def __contains__(self, key):
        return self.get(key) is not None

    def __len__(self):
        """The number of items, of all nodes together."""
        return sum(self._each(len))

    def __bool__(self):
        return True

    def __repr__(self):
        return f"<tapetum.{type(self).__name__}: {self.name} of {', '.join(self._parts)}>"

    def __reduce__(self):
        return _keyspace_of, ({name: part.address for name, part in self._parts.items()}, self.name, self._login)

    @property
    def _login(self):
        return next(iter(self._parts.values())).login


def _keyspace_of(addresses, name, login=None):
    return connect_nodes(addresses, login).keyspace(name)


class NodesStore(NodesKeyspace):
    """A store over several nodes. It is also its own default keyspace. A copy in another process, by pickle, connects anew."""

    read_only = False

    def __init__(self, addresses, login=None):
        self._stores = {}
        try:
            for name, address in addresses.items():
                with AtNode(name, None):
                    self._stores[name] = RemoteStore(address, login)
        except BaseException:
            self.close()
            raise
        super().__init__(self._stores)

    @property
    def path(self):
        """The addresses of the nodes, by their names."""
        return {name: store.path for name, store in self._stores.items()}

    @property
    def closed(self):
        """Whether the connections were closed."""
        return all(store.closed for store in self._stores.values())

    def close(self):
        """Closes the connections. The servers go on."""
        for store in self._stores.values():
            store.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
        return False

    def keyspaces(self):
        """The names of the keyspaces that all nodes have."""
        first, *others = self._each(lambda store: store.keyspaces())
        return [name for name in first if all(name in other for other in others)]

    def keyspace(self, name, *, create=False, ordered=None, fields=None):
        """The keyspace of a name, which each node has: of the same kind, and with the same format."""
        parts = self._each(lambda store: store.keyspace(name, create=create, ordered=ordered, fields=fields))
        found = NodesKeyspace(dict(zip(self._stores, parts, strict=True)))
        found._agreed("kind", ["ordered" if part.ordered else "hashed" for part in parts])
        found._agreed("fields", [part.fields for part in parts])
        return found

    def freeze(self, seconds=60, *, owner="python", flash=None):
        """An ``Error``: no moment is common to several nodes."""
        raise Error("no moment is common to several nodes: tapetum.connect(node).freeze() freezes one")

    def stats(self):
        """The figures of each node, by the nodes' names."""
        return dict(zip(self._stores, self._each(lambda store: store.stats()), strict=True))

    def drop_keyspace(self, name):
        """An ``Error`` that names who does it."""
        self._each(lambda store: store.drop_keyspace(name))

    def __reduce__(self):
        return connect_nodes, (self.path, self._login)


__all__ = ["NodesItems", "NodesKeyspace", "NodesRows", "NodesStore", "connect_nodes", "node_of"]
