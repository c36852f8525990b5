"""A store that a server serves: ``tapetum.connect``. It has what ``tapetum.open`` gives, as far as the Flight door can do it.

Threads: any.
"""

import math
import time

from tapetum.answers import RemoteItems, RemoteRows
from tapetum.door import Door, Login, as_bytes, base64_of, key_lists
from tapetum.errors import Error

DEFAULT_KEYSPACE = "default"
# As the store has it: behind it an item never expires.
_EXPIRY_MS_END = 2**48 - 1


def connect(address, *, user=None, password=None, ca=None):
    """A store that `tapetum serve --flight` serves at an address: ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT``, or the path of a Unix socket.

    ``user`` and ``password`` log in where the server has users. ``ca`` is the authority of a TLS server's certificate: a path, or bytes in PEM.

    Of a list of addresses, or names with addresses, it is a store over several nodes, which all have this user; see ``tapetum.nodes``.
    """
    login = Login(user, password, ca)
    if isinstance(address, list | tuple | dict):
        from tapetum.nodes import connect_nodes

        return connect_nodes(address, login)
    return RemoteStore(address, login)


def _connected(address, login):
    return connect(address, **login)


def _keyspace_of(address, name, login=None):
    return connect(address, **(login or {})).keyspace(name)


def _frozen_keyspace_of(address, freeze, name, login=None):
    return RemoteFreeze(Door(address, Login(**(login or {}))), freeze).keyspace(name)


def _refused(what, instead):
    return Error(f"{what} through the Flight door: {instead}")


def listed(keys):
    """The elements of any iterable, but for text and bytes, whose elements would be taken for keys."""
    if isinstance(keys, str | bytes):
        raise TypeError("one key is given where several are taken: give a list of them")
    return list(keys)


def expiry_millis(expiry):
    """When an item goes, in unix milliseconds; None is never."""
    if isinstance(expiry, bool) or not isinstance(expiry, int | float):
        raise TypeError("expiry is a unix time, such as time.time() + 60")
    if expiry == 0:
        return None
    millis = math.ceil(expiry * 1000) if math.isfinite(expiry) else 0
    if expiry == math.inf or millis >= _EXPIRY_MS_END:
        why = "after the year 10889"
    elif millis <= time.time() * 1000:
        why = "past"
    else:
        return millis
    raise ValueError(f"expiry={expiry} is {why}: it is the unix time when the item goes, so give time.time() + seconds")


def after_prefix(prefix):
    """The first key behind all keys with a prefix; None if there is none."""
    shorter = prefix.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1]) if shorter else None


def range_of(prefix, start, end, reverse, cursor):
    """The part of an ordered keyspace that a scan covers, as the door takes it."""
    if prefix is not None:
        prefix = as_bytes(prefix)
        behind = after_prefix(prefix)
        start = prefix if start is None else start
        end = behind if end is None else end
    found = {}
    if start is not None:
        found["from"] = as_bytes(start)
    if end is not None:
        found["before"] = as_bytes(end)
    if cursor is not None:
        cursor = as_bytes(cursor)
        if reverse and not found.get("before", cursor) < cursor:
            found["before"] = cursor
        elif not reverse and not found.get("from", cursor) > cursor:
            found.pop("from", None)
            found["after"] = cursor
    wire = {side: base64_of(key) for side, key in found.items()}
    return wire | {"reverse": True} if reverse else wire


class _Reading:
    """Scans and queries of a keyspace: as it is, or as a freeze has it."""

    #: The id of the freeze that is read.
    _freeze_id = None

    def __init__(self, door, name, is_ordered=None):
        self._door, self._name = door, name
        self._is_ordered = is_ordered

    @property
    def name(self):
        return self._name

    @property
    def address(self):
        """The address of the server."""
        return self._door.location

    @property
    def login(self):
        """The user as whom it is asked."""
        return self._door.login

    @property
    def fields(self):
        """The format of the records, if it was set."""
        return self._row()["format"]

    @property
    def ordered(self):
        """Whether its keys have an order."""
        if self._is_ordered is None:
            self._is_ordered = self._row()["is_ordered"]
        return self._is_ordered

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
        """Items as pairs of key and value: those whose keys have a prefix or, in an ordered keyspace and in the order of their keys, those
        from ``start`` up to but without ``end``. With ``where``, ``select``, ``group_by``, ``having``, ``order_by`` or ``fields`` it is a
        query over their fields, which runs at the server's drive and gives ``RemoteRows``, a table for libraries that read Arrow.

        ``cursor`` is that of items of an ordered keyspace: the scan goes on behind it.
        """
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error is {on_error!r}: say raise or skip")
        if limit is not None and not 0 <= limit < 2**64:
            raise ValueError(f"limit is {limit}: give how many there are to be at the most")
        words = {"where": where, "select": select, "group_by": group_by, "having": having, "order_by": order_by, "fields": fields}
        words = {word: text for word, text in words.items() if text is not None}
        command = {"keyspace": self._name}
        if limit is not None:
            command["limit"] = limit
        if self._freeze_id is not None:
            command["freeze"] = self._freeze_id
        if words:
            return self._query(command | words, prefix, start, end, reverse, cursor, on_error)
        return self._items(command, prefix, start, end, reverse, cursor)

    def _query(self, command, prefix, start, end, reverse, cursor, on_error):
        if reverse or cursor is not None:
            raise Error("a query is of all keys, or of a range of an ordered keyspace, and its rows have order_by")
        if prefix is not None or start is not None or end is not None:
            self._want_order()
            command["range"] = range_of(prefix, start, end, False, None)
        if on_error == "skip":
            command["skip_misfits"] = True
        if "fields" not in command and self.fields is None:
            raise Error(
                f"the format of the records is not known: give fields; `tapetum keyspace format {self._name} …` on the server's machine keeps one"
            )
        return RemoteRows(self._door, {"query": command})

    def _items(self, command, prefix, start, end, reverse, cursor):
        if start is not None or end is not None or reverse or cursor is not None:
            self._want_order()
        if self.ordered:
            command["range"] = range_of(prefix, start, end, reverse, cursor)
        elif prefix is not None:
            command["prefix"] = base64_of(as_bytes(prefix))
        cursor = None if cursor is None else as_bytes(cursor)
        return RemoteItems(self._door, {"items": command}, has_cursor=self.ordered, cursor=cursor)

    def _want_order(self):
        if not self.ordered:
            raise Error(
                f"the keyspace {self._name!r} has no order of keys: "
                "`tapetum keyspace create NAME --index ordered` on the server's machine makes one that has"
            )

    def _row(self):
        """What the server says of the keyspace."""
        for row in self._door.asked("keyspaces", name=self._name, freeze=self._freeze_id):
            return row
        raise Error(f"there is no keyspace {self._name!r} in freeze {self._freeze_id}")


class RemoteKeyspace(_Reading):
    """Keys and values of their own, beside other keyspaces of a served store."""

    def get(self, key):
        """The value of a key; None if the key does not exist."""
        return self._values([as_bytes(key)])[0]

    def multi_get(self, keys):
        """Reads several keys at once. The values are in the order of the keys."""
        return self._values([as_bytes(key) for key in listed(keys)])

    def _values(self, keys):
        values = []
        for part in key_lists(keys):
            # The first byte says whether there is such a key.
            results = self._door.action("get", keyspace=self._name, keys=[base64_of(key) for key in part])
            values += [result[1:] if result[:1] == b"\x01" else None for result in results]
        return values

    def put(self, key, value, *, expiry=0):
        """Stores a value. ``expiry`` is when it goes, in unix seconds, such as ``time.time() + 60``; 0 is never."""
        self._door.put(self._name, [(as_bytes(key), as_bytes(value), expiry_millis(expiry))])

    def delete(self, key):
        """Deletes a key. Returns whether it existed."""
        return self._delete([as_bytes(key)]) > 0

    def _delete(self, keys):
        return sum(
            self._door.asked("delete", keyspace=self._name, keys=[base64_of(key) for key in part])["deleted"] for part in key_lists(keys)
        )

    def batch(self, writes):
        """Writes pairs of key and value. A value of None deletes.

        It is not atomic, unlike ``batch`` of an embedded store: values are put first, then keys deleted, and others see the one without the
        other. After an error, or when the connection is lost, some writes may be there and others not; the same batch may be written again.
        """
        last = {}
        for key, value in listed(writes):
            last[as_bytes(key)] = None if value is None else as_bytes(value)
        puts = [(key, value, None) for key, value in last.items() if value is not None]
        if puts:
            self._door.put(self._name, puts)
        self._delete([key for key, value in last.items() if value is None])

    def gets(self, key):
        raise _refused("gets and cas do not come", "memcached's gets and cas do, or a store that is opened in this process")

    def cas(self, key, value, token, *, expiry=0):
        raise _refused("gets and cas do not come", "memcached's gets and cas do, or a store that is opened in this process")

    def increment(self, key, by=1, initial=None):
        raise _refused("increment does not come", "memcached's incr and decr do, or a store that is opened in this process")

    def limits(self):
        raise _refused("limits are not told", "an error names the limit that something is beyond; docs/PYTHON.md has them")

    @property
    def fields(self):
        """The format of the records, if it was set. It is set on the server's machine."""
        return super().fields

    @fields.setter
    def fields(self, fields):
        command = f"`tapetum keyspace format {self._name} --remove`" if fields is None else f"`tapetum keyspace format {self._name} '{fields}'`"
        raise _refused("formats are not set", f"{command} on the server's machine does it, and scan(fields=...) reads records otherwise once")

    def __getitem__(self, key):
        value = self.get(key)
        if value is None:
            raise KeyError(_text(key))
        return value

    def __setitem__(self, key, value):
        self.put(key, value)

    def __delitem__(self, key):
        if not self.delete(key):
            raise KeyError(_text(key))

    def __contains__(self, key):
        return self.get(key) is not None

    def __len__(self):
        """The number of items. Items that are not flushed are looked up on flash, so that none counts twice."""
        return self._row()["items"]

    def __bool__(self):
        return True

    def __repr__(self):
        return f"<tapetum.{type(self).__name__}: {self._name} of {self._door.location}>"

    def __reduce__(self):
        return _keyspace_of, (self._door.location, self._name, self._door.login.arguments)


class RemoteStore(RemoteKeyspace):
    """A served store. It is also its own default keyspace. A copy in another process, by pickle, connects anew: it has the password with it."""

    read_only = False

    def __init__(self, address, login=None):
        door = Door(address, login)
        super().__init__(door, DEFAULT_KEYSPACE)
        try:
            # A wrong address is an error here, not at the first request.
            rows = door.asked("keyspaces", name=None, freeze=None)
        except BaseException:
            door.close()
            raise
        self._is_ordered = next((row["is_ordered"] for row in rows if row["name"] == DEFAULT_KEYSPACE), None)

    @property
    def path(self):
        """The address of the server."""
        return self._door.location

    @property
    def closed(self):
        return self._door.closed

    def close(self):
        """Closes the connection. The server goes on."""
        self._door.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
        return False

    def keyspaces(self):
        """The names of the keyspaces."""
        return [row["name"] for row in self._door.asked("keyspaces", name=None, freeze=None)]

    def keyspace(self, name, *, create=False, ordered=None, fields=None):
        """The keyspace of a name. With ``ordered`` or ``fields`` it must be of that kind, and of that format. Keyspaces are created on the
        server's machine: ``create=True`` takes one that is there."""
        row = next((row for row in self._door.asked("keyspaces", name=None, freeze=None) if row["name"] == name), None)
        kind = " --index ordered" if ordered else ""
        if row is None:
            told = f"there is no keyspace {name!r} at {self.path}"
            if create:
                raise _refused(f"{told}, and keyspaces are not created", f"`tapetum keyspace create {name}{kind}` on the server's machine does it")
            raise Error(f"{told}: there are {', '.join(self.keyspaces())}; `tapetum keyspace create {name}` on the server's machine makes one")
        if ordered is not None and ordered != row["is_ordered"]:
            is_kind, not_kind = ("ordered", "hashed") if row["is_ordered"] else ("hashed", "ordered")
            raise Error(f"the keyspace {name!r} is {is_kind}, not {not_kind}: leave ordered= out, or give another name")
        if fields is not None and _words(fields) != _words(row["format"] or ""):
            is_format = f"records of the keyspace {name!r} are {row['format']}" if row["format"] else f"the keyspace {name!r} has no format"
            raise Error(f"{is_format}: leave fields out; scan(fields=...) reads them otherwise once, and `tapetum keyspace format` changes it")
        return RemoteKeyspace(self._door, name, row["is_ordered"])

    def drop_keyspace(self, name):
        raise _refused("keyspaces are not dropped", f"`tapetum keyspace drop {name}` on the server's machine does it")

    def import_images(self, folder, *, keyspace="images", progress=None):
        raise _refused("pictures are not imported", f"`tapetum import images {folder} --keyspace {keyspace}` on the server's machine does it")

    def images(self, keyspace="images"):
        raise _refused("sets of pictures do not come", "tapetum.open reads them, in a process on the machine that has the store")

    def stages(self):
        raise _refused("counters of stages do not come", "tapetum.open has them, and `tapetum stats` on the server's machine")

    def applications(self):
        raise _refused("counters of applications do not come by themselves", "stats() has them, with names such as application_unit_us:default")

    def freeze(self, seconds=60, *, owner="python", flash=None):
        """Freezes the store: all keyspaces as they are now, for so many seconds unless it is renewed or released. It may keep ``flash``
        bytes of what is written over."""
        body = {"owner": owner, "seconds": _seconds(seconds), "flash_bytes": None if flash is None else _byte_size(flash)}
        return RemoteFreeze(self._door, self._door.asked("freeze", **body)["id"])

    def stats(self):
        """The store's figures, under the names of `tapetum stats`."""
        figures = self._door.asked("stats")
        return {name: _number(text) for name, text in figures.items()}

    def __reduce__(self):
        return _connected, (self._door.location, self._door.login.arguments)


class RemoteFreeze:
    """A served store at one moment: all of its keyspaces. What is read of it is the same each time, whatever is written meanwhile.

    It keeps flash that was overwritten or deleted since. It ends when it is released, when its time is over, or when writers need that flash.
    """

    def __init__(self, door, id):
        self._door, self._id = door, id
        self._is_released = False

    @property
    def id(self):
        """The id by which others name it."""
        return self._id

    def keyspaces(self):
        """The names of the keyspaces that there were."""
        return [row["name"] for row in self._door.asked("keyspaces", name=None, freeze=self._held())]

    def keyspace(self, name=DEFAULT_KEYSPACE):
        """The keyspace that had this name, whether it still exists or not."""
        rows = self._door.asked("keyspaces", name=name, freeze=self._held())
        if not rows:
            raise Error(f"there was no keyspace {name!r} at the moment of freeze {self._id}: there were {', '.join(self.keyspaces())}")
        return RemoteFrozenKeyspace(self, rows[0])

    def renew(self, seconds):
        """Lets it last so long from now on."""
        self._door.asked("renew_freeze", id=self._held(), seconds=_seconds(seconds))

    def release(self):
        """Ends it: the flash that it kept is free."""
        if self._is_released:
            return
        self._is_released = True
        try:
            self._door.asked("release_freeze", id=self._id)
        except Error as error:
            # It may have ended by itself.
            if f"freeze {self._id}" not in str(error):
                raise

    def stats(self):
        """Its figures: seconds since the moment and until it ends, bytes of flash and memory that it keeps."""
        row = next((row for row in self._door.asked("freezes") if row["id"] == self._held()), None)
        if row is None:
            raise Error(f"freeze {self._id} has ended: freeze the store again")
        seconds = {"age_seconds": row["age_us"] / 1e6, "left_seconds": row["left_us"] / 1e6}
        return {"id": row["id"], "owner": row["owner"]} | seconds | {name: row[name] for name in ("keyspaces", "flash_bytes", "memory_bytes")}

    def _held(self):
        if self._is_released:
            raise Error(f"freeze {self._id} was released: freeze the store again")
        return self._id

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.release()
        return False


class RemoteFrozenKeyspace(_Reading):
    """A keyspace of a freeze."""

    def __init__(self, freeze, row):
        super().__init__(freeze._door, row["name"], row["is_ordered"])
        self._freeze, self._fields = freeze, row["format"]

    @property
    def _freeze_id(self):
        return self._freeze._held()

    @property
    def fields(self):
        """The format of the records, if it was set."""
        return self._fields

    def __reduce__(self):
        return _frozen_keyspace_of, (self.address, self._freeze.id, self.name, self._door.login.arguments)


def _text(key):
    return as_bytes(key).decode(errors="replace")


def _words(fields):
    return "".join(fields.split())


def _seconds(seconds):
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds is {seconds}: give how long it is to last, such as 60")
    return seconds


def _byte_size(size):
    if isinstance(size, int) and size >= 0:
        return size
    units = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    text = str(size)
    number = text.rstrip("BKMGTi")
    if number.isdigit() and text[len(number) :] in units:
        return int(number) * units[text[len(number) :]]
    raise ValueError(f"{size!r} is not a size: give bytes, or text such as 16MiB")


def _number(text):
    try:
        return int(text)
    except ValueError:
        return text
