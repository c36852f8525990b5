"""A store that a server serves: ``tapetum.connect``. It has what ``tapetum.open`` gives, as far as the Flight door can do it.

Threads: any.
"""

from __future__ import annotations

import base64
import math
import operator
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeVar, overload

from tapetum.answers import RemoteItems, RemoteRows
from tapetum.door import Door, Login, as_bytes, base64_of, key_lists
from tapetum.errors import Error
from tapetum.typing import ByteSize, Key

if TYPE_CHECKING:
    from os import PathLike
    from typing import Self

    from tapetum.nodes import NodesStore

DEFAULT_KEYSPACE = "default"
# As the store has it: behind it an item never expires.
_EXPIRY_MS_END = 2**48 - 1


_Element = TypeVar("_Element")


@overload
def connect(
    address: str | PathLike[str], *, user: str | None = None, password: str | None = None, ca: str | bytes | PathLike[str] | None = None
) -> RemoteStore: ...
@overload
def connect(
    address: list[str] | tuple[str, ...] | dict[str, str],
    *,
    user: str | None = None,
    password: str | None = None,
    ca: str | bytes | PathLike[str] | None = None,
) -> NodesStore: ...
def connect(address: Any, *, user: str | None = None, password: str | None = None, ca: Any = None) -> RemoteStore | NodesStore:
    """A store that `tapetum serve --flight` serves at an address: ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT``, or the path of a Unix socket.

    ``user`` and ``password`` log in where the server has users. ``ca`` is the authority of a TLS server's certificate: a path, or bytes in PEM.

    Of a list of addresses, or names with addresses, it is a store over several nodes, which all have this user; see ``tapetum.nodes``.
    """
    login = Login(user, password, ca)
    if isinstance(address, list | tuple | dict):
        from tapetum.nodes import connect_nodes

        return connect_nodes(address, login)
    return RemoteStore(address, login)


def _connected(address: Any, login: dict[str, Any]) -> RemoteStore | NodesStore:
    return connect(address, **login)


def _keyspace_of(address: Any, name: str, login: dict[str, Any] | None = None) -> Any:
    return connect(address, **(login or {})).keyspace(name)


def _frozen_keyspace_of(address: Any, freeze: int, name: str, login: dict[str, Any] | None = None) -> RemoteFrozenKeyspace:
    return RemoteFreeze(Door(address, Login(**(login or {}))), freeze).keyspace(name)


def _refused(what: str, instead: str) -> Error:
    return Error(f"{what} through the Flight door: {instead}")


def listed(keys: Iterable[_Element]) -> list[_Element]:
    """The elements of any iterable, but for text and bytes, whose elements would be taken for keys."""
    if isinstance(keys, str | bytes):
        raise TypeError("one key is given where several are taken: give a list of them")
    return list(keys)


def expiry_millis(expiry: float) -> int | None:
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


def after_prefix(prefix: bytes) -> bytes | None:
    """The first key behind all keys with a prefix; None if there is none."""
    shorter = prefix.rstrip(b"\xff")
    return shorter[:-1] + bytes([shorter[-1] + 1]) if shorter else None


def range_of(prefix: Key | None, start: Key | None, end: Key | None, reverse: bool, cursor: Key | None) -> dict[str, Any]:
    """The part of an ordered keyspace that a scan covers, as the door takes it."""
    if prefix is not None:
        behind = after_prefix(as_bytes(prefix))
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
    wire: dict[str, Any] = {side: base64_of(key) for side, key in found.items()}
    return wire | {"reverse": True} if reverse else wire


class _Reading:
    """Scans and queries of a keyspace: as it is, or as a freeze has it."""

    #: The id of the freeze that is read.
    _freeze_id: int | None = None

    def __init__(self, door: Door, name: str, is_ordered: bool | None = None) -> None:
        self._door, self._name = door, name
        self._is_ordered = is_ordered

    @property
    def name(self) -> str:
        """The name of the keyspace."""
        return self._name

    @property
    def address(self) -> str:
        """The address of the server."""
        return self._door.location

    @property
    def login(self) -> Login:
        """The user as whom it is asked."""
        return self._door.login

    @property
    def fields(self) -> str | None:
        """The format of the records, if it was set."""
        text: str | None = self._row()["format"]
        return text

    @property
    def ordered(self) -> bool:
        """Whether its keys have an order."""
        if self._is_ordered is None:
            self._is_ordered = bool(self._row()["is_ordered"])
        return self._is_ordered

    def scan(
        self,
        prefix: Key | None = None,
        *,
        start: Key | None = None,
        end: Key | None = None,
        reverse: bool = False,
        where: str | None = None,
        select: str | None = None,
        group_by: str | None = None,
        having: str | None = None,
        order_by: str | None = None,
        limit: int | None = None,
        fields: str | None = None,
        on_error: str = "raise",
        cursor: Key | None = None,
    ) -> Any:
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
        command: dict[str, Any] = {"keyspace": self._name}
        if limit is not None:
            command["limit"] = limit
        if self._freeze_id is not None:
            command["freeze"] = self._freeze_id
        if words:
            return self._query(command | words, prefix, start, end, reverse, cursor, on_error)
        return self._items(command, prefix, start, end, reverse, cursor)

    def _query(
        self,
        command: dict[str, Any],
        prefix: Key | None,
        start: Key | None,
        end: Key | None,
        reverse: bool,
        cursor: Key | None,
        on_error: str,
    ) -> RemoteRows:
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

    def _items(
        self, command: dict[str, Any], prefix: Key | None, start: Key | None, end: Key | None, reverse: bool, cursor: Key | None
    ) -> RemoteItems:
        if start is not None or end is not None or reverse or cursor is not None:
            self._want_order()
        if self.ordered:
            command["range"] = range_of(prefix, start, end, reverse, cursor)
        elif prefix is not None:
            command["prefix"] = base64_of(as_bytes(prefix))
        at = None if cursor is None else as_bytes(cursor)
        return RemoteItems(self._door, {"items": command}, has_cursor=self.ordered, cursor=at)

    def _want_order(self) -> None:
        if not self.ordered:
            raise Error(
                f"the keyspace {self._name!r} has no order of keys: "
                "`tapetum keyspace create NAME --index ordered` on the server's machine makes one that has"
            )

    def _row(self) -> dict[str, Any]:
        """What the server says of the keyspace."""
        rows: list[dict[str, Any]] = self._door.asked("keyspaces", name=self._name, freeze=self._freeze_id)
        for row in rows:
            return row
        raise Error(f"there is no keyspace {self._name!r} in freeze {self._freeze_id}")


class RemoteKeyspace(_Reading):
    """Keys and values of their own, beside other keyspaces of a served store."""

    def get(self, key: Key) -> bytes | None:
        """The value of a key; None if the key does not exist."""
        return self._values([as_bytes(key)])[0]

    def multi_get(self, keys: Iterable[Key]) -> list[bytes | None]:
        """Reads several keys at once. The values are in the order of the keys."""
        return self._values([as_bytes(key) for key in listed(keys)])

    def _values(self, keys: list[bytes]) -> list[bytes | None]:
        values: list[bytes | None] = []
        for part in key_lists(keys):
            # The first byte says whether there is such a key.
            results = self._door.action("get", keyspace=self._name, keys=[base64_of(key) for key in part])
            values += [result[1:] if result[:1] == b"\x01" else None for result in results]
        return values

    def put(self, key: Key, value: Key, *, expiry: float = 0) -> None:
        """Stores a value. ``expiry`` is when it goes, in unix seconds, such as ``time.time() + 60``; 0 is never."""
        self._door.put(self._name, [(as_bytes(key), as_bytes(value), expiry_millis(expiry))])

    def delete(self, key: Key) -> bool:
        """Deletes a key. Returns whether it existed."""
        return self._delete([as_bytes(key)]) > 0

    def _delete(self, keys: list[bytes]) -> int:
        return sum(
            self._door.asked("delete", keyspace=self._name, keys=[base64_of(key) for key in part])["deleted"] for part in key_lists(keys)
        )

    def batch(self, writes: Iterable[tuple[Key, Key | None]]) -> None:
        """Writes pairs of key and value. A value of None deletes.

        It is not atomic, unlike ``batch`` of an embedded store: values are put first, then keys deleted, and others see the one without the
        other. After an error, or when the connection is lost, some writes may be there and others not; the same batch may be written again.
        """
        last: dict[bytes, bytes | None] = {}
        for key, value in listed(writes):
            last[as_bytes(key)] = None if value is None else as_bytes(value)
        puts = [(key, value, None) for key, value in last.items() if value is not None]
        if puts:
            self._door.put(self._name, puts)
        self._delete([key for key, value in last.items() if value is None])

    def gets(self, key: Key) -> tuple[bytes, int] | tuple[None, None]:
        """The value of a key, and a token for ``cas`` that changes with each write of the key. None and None if the key does not exist."""
        found = self._door.asked("gets", keyspace=self._name, key=base64_of(as_bytes(key)))
        return (base64.b64decode(found["value"]), found["token"]) if found else (None, None)

    def cas(self, key: Key, value: Key, token: int | None, *, expiry: float = 0) -> bool:
        """Stores a value if nobody wrote the key since ``gets`` gave this token; with None, if there is no such key. Whether it was stored."""
        if token is not None and not 0 <= operator.index(token) < 2**64:
            raise ValueError(f"token is {token}: give one that gets gave, or None")
        item = {"key": base64_of(as_bytes(key)), "value": base64_of(as_bytes(value)), "expires_unix_ms": expiry_millis(expiry)}
        return bool(self._door.asked("cas", keyspace=self._name, token=token, **item)["stored"])

    def increment(self, key: Key, by: int = 1, initial: int | None = None) -> int:
        """Adds to a value that is a decimal number as text, and returns the sum, in one step. As in memcached, a sum below 0 becomes 0, and a
        sum of 2^64 or more wraps. If the key does not exist, ``initial`` is stored and returned; without it that is a KeyError. A value
        that is no such number is a ValueError."""
        return self._count(key, by, by < 0, initial)

    def decrement(self, key: Key, by: int = 1, initial: int | None = None) -> int:
        """As ``increment``, but subtracts. A difference below 0 becomes 0."""
        return self._count(key, by, by >= 0, initial)

    def _count(self, key: Key, by: int, down: bool, initial: int | None) -> int:
        if abs(operator.index(by)) >= 2**64:
            raise ValueError(f"by is {by}: give -(2^64 - 1) to 2^64 - 1")
        if initial is not None and not 0 <= operator.index(initial) < 2**64:
            raise OverflowError(f"initial is {initial}: give 0 to 2^64 - 1")
        counted = self._door.asked(
            "increment", keyspace=self._name, key=base64_of(as_bytes(key)), by=abs(by), down=down, initial=initial
        )
        if not counted["found"]:
            raise KeyError(_text(key))
        if counted["number"] is None:
            raise ValueError(f"the value of {_text(key)!r} is no decimal number of 0 to 2^64 - 1 as text: put one there first")
        return int(counted["number"])

    def limits(self) -> dict[str, int]:
        """An ``Error``: a server does not tell them."""
        raise _refused("limits are not told", "an error names the limit that something is beyond; docs/PYTHON.md has them")

    @property
    def fields(self) -> str | None:
        """The format of the records, if it was set. It is set on the server's machine."""
        return super().fields

    @fields.setter
    def fields(self, fields: str | None) -> None:
        command = f"`tapetum keyspace format {self._name} --remove`" if fields is None else f"`tapetum keyspace format {self._name} '{fields}'`"
        raise _refused("formats are not set", f"{command} on the server's machine does it, and scan(fields=...) reads records otherwise once")

    def __getitem__(self, key: Key) -> bytes:
        value = self.get(key)
        if value is None:
            raise KeyError(_text(key))
        return value

    def __setitem__(self, key: Key, value: Key) -> None:
        self.put(key, value)

    def __delitem__(self, key: Key) -> None:
        if not self.delete(key):
            raise KeyError(_text(key))

    def __contains__(self, key: Key) -> bool:
        return self.get(key) is not None

    def __len__(self) -> int:
        """The number of items. Items that are not flushed are looked up on flash, so that none counts twice."""
        return int(self._row()["items"])

    def __bool__(self) -> bool:
        return True

    def __repr__(self) -> str:
        return f"<tapetum.{type(self).__name__}: {self._name} of {self._door.location}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _keyspace_of, (self._door.location, self._name, self._door.login.arguments)


class RemoteStore(RemoteKeyspace):
    """A served store. It is also its own default keyspace. A copy in another process, by pickle, connects anew: it has the password with it."""

    #: A served store takes writes, where the user may write.
    read_only = False

    def __init__(self, address: Any, login: Login | None = None) -> None:
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
    def path(self) -> str:
        """The address of the server."""
        return self._door.location

    @property
    def closed(self) -> bool:
        """Whether the connection was closed."""
        return self._door.closed

    def close(self) -> None:
        """Closes the connection. The server goes on."""
        self._door.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> Literal[False]:
        self.close()
        return False

    def keyspaces(self) -> list[str]:
        """The names of the keyspaces."""
        return [row["name"] for row in self._door.asked("keyspaces", name=None, freeze=None)]

    def keyspace(self, name: str, *, create: bool = False, ordered: bool | None = None, fields: str | None = None) -> RemoteKeyspace:
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

    def drop_keyspace(self, name: str) -> NoReturn:
        """An ``Error`` that names who does it."""
        raise _refused("keyspaces are not dropped", f"`tapetum keyspace drop {name}` on the server's machine does it")

    def import_images(self, folder: object, *, keyspace: str = "images", progress: object = None) -> NoReturn:
        """An ``Error`` that names who does it."""
        raise _refused("pictures are not imported", f"`tapetum import images {folder} --keyspace {keyspace}` on the server's machine does it")

    def images(self, keyspace: str = "images") -> NoReturn:
        """An ``Error``: ``tapetum.training.PictureFiles`` has the files of a served set."""
        raise _refused("sets of pictures do not come", "tapetum.open reads them, in a process on the machine that has the store")

    def stages(self) -> NoReturn:
        """An ``Error`` that names who has them."""
        raise _refused("counters of stages do not come", "tapetum.open has them, and `tapetum stats` on the server's machine")

    def applications(self) -> NoReturn:
        """An ``Error`` that names who has them."""
        raise _refused("counters of applications do not come by themselves", "stats() has them, with names such as application_unit_us:default")

    def freeze(self, seconds: float = 60, *, owner: str = "python", flash: ByteSize | None = None) -> RemoteFreeze:
        """Freezes the store: all keyspaces as they are now, for so many seconds unless it is renewed or released. It may keep ``flash``
        bytes of what is written over."""
        body = {"owner": owner, "seconds": _seconds(seconds), "flash_bytes": None if flash is None else _byte_size(flash)}
        return RemoteFreeze(self._door, self._door.asked("freeze", **body)["id"])

    def stats(self) -> dict[str, Any]:
        """The store's figures by name, as numbers; names are those of `tapetum stats`, and end in their unit."""
        figures = self._door.asked("stats")
        return {name: _number(text) for name, text in figures.items()}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _connected, (self._door.location, self._door.login.arguments)


class RemoteFreeze:
    """A served store at one moment: all of its keyspaces. What is read of it is the same each time, whatever is written meanwhile.

    It keeps flash that was overwritten or deleted since. It ends when it is released, when its time is over, or when writers need that flash.
    """

    def __init__(self, door: Door, id: int) -> None:
        self._door, self._id = door, id
        self._is_released = False

    @property
    def id(self) -> int:
        """The id by which others name it."""
        return self._id

    def keyspaces(self) -> list[str]:
        """The names of the keyspaces that there were."""
        return [row["name"] for row in self._door.asked("keyspaces", name=None, freeze=self._held())]

    def keyspace(self, name: str = DEFAULT_KEYSPACE) -> RemoteFrozenKeyspace:
        """The keyspace that had this name, whether it still exists or not."""
        rows = self._door.asked("keyspaces", name=name, freeze=self._held())
        if not rows:
            raise Error(f"there was no keyspace {name!r} at the moment of freeze {self._id}: there were {', '.join(self.keyspaces())}")
        return RemoteFrozenKeyspace(self, rows[0])

    def renew(self, seconds: float) -> None:
        """Lets it last so long from now on."""
        self._door.asked("renew_freeze", id=self._held(), seconds=_seconds(seconds))

    def release(self) -> None:
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

    def stats(self) -> dict[str, Any]:
        """Its figures: seconds since the moment and until it ends, bytes of flash and memory that it keeps."""
        row = next((row for row in self._door.asked("freezes") if row["id"] == self._held()), None)
        if row is None:
            raise Error(f"freeze {self._id} has ended: freeze the store again")
        seconds = {"age_seconds": row["age_us"] / 1e6, "left_seconds": row["left_us"] / 1e6}
        return {"id": row["id"], "owner": row["owner"]} | seconds | {name: row[name] for name in ("keyspaces", "flash_bytes", "memory_bytes")}

    def _held(self) -> int:
        if self._is_released:
            raise Error(f"freeze {self._id} was released: freeze the store again")
        return self._id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> Literal[False]:
        self.release()
        return False


class RemoteFrozenKeyspace(_Reading):
    """A keyspace of a freeze."""

    def __init__(self, freeze: RemoteFreeze, row: dict[str, Any]) -> None:
        super().__init__(freeze._door, row["name"], row["is_ordered"])
        self._freeze, self._fields = freeze, row["format"]

    @property
    def _freeze_id(self) -> int:  # type: ignore[override]
        return self._freeze._held()

    @property
    def fields(self) -> str | None:
        """The format of the records, if it was set."""
        text: str | None = self._fields
        return text

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _frozen_keyspace_of, (self.address, self._freeze.id, self.name, self._door.login.arguments)


def _text(key: Key) -> str:
    return as_bytes(key).decode(errors="replace")


def _words(fields: str) -> str:
    return "".join(fields.split())


def _seconds(seconds: float) -> float:
    if not 0 <= seconds < math.inf:
        raise ValueError(f"seconds is {seconds}: give how long it is to last, such as 60")
    return seconds


def _byte_size(size: ByteSize) -> int:
    if isinstance(size, int) and size >= 0:
        return size
    units = {"": 1, "B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
    text = str(size)
    number = text.rstrip("BKMGTi")
    if number.isdigit() and text[len(number) :] in units:
        return int(number) * units[text[len(number) :]]
    raise ValueError(f"{size!r} is not a size: give bytes, or text such as 16MiB")


def _number(text: str) -> int | str:
    try:
        return int(text)
    except ValueError:
        return text
