"""The Flight door of one server: its commands, actions and errors. ``docs/FLIGHT.md`` has the protocol.

1. Errors of the server are exceptions of this package, with the server's sentence alone.
2. A door belongs to the process that opened it: gRPC does not survive a fork.
3. Requests are split so that no message is larger than the server takes.
4. A user's password is exchanged for a token, which goes with each call. Where the token has ended, the door logs in once more.

Threads: any.
"""

import base64
import json
import os
import re
import stat
import threading
import time

from tapetum.errors import ClosedError, Error, query_error

#: Keys of one action. The server answers an action as a whole, so a few large values are enough for one.
KEYS_OF_ACTION = 1_000
#: Bytes of keys of one action: as base64 they take a third more, and a message has at most 16 MiB.
KEY_BYTES_OF_ACTION = 8 << 20
#: Bytes of items of one batch of a put.
PUT_BYTES = 4 << 20

# How soon a connection that has gone silent counts as lost.
_KEEPALIVE_MS = 20_000
# How long a login may take: others may be waiting for theirs.
_LOGIN_S = 60
# How often the tickets of an answer that is read are renewed. They are good for 60 seconds.
_RENEW_S = 15
_WRAPPED = re.compile(
    r"(?:Flight|gRPC) (?:returned [\w -]+ error|cancelled call), with message: (.*?)(?:\.? gRPC client debug context: .*|\.? Client context: .*|\.? Detail: (?:Unauthenticated|Unauthorized).*)?", re.DOTALL
)
# What gRPC says itself, beside what the server says.
_LOST = re.compile(r"failed to connect|Socket closed|Connection reset|Broken pipe|GOAWAY|RST_STREAM|recvmsg|Endpoint closing|keepalive")
_UNTRUSTED = re.compile(r"CERTIFICATE_VERIFY_FAILED[^.;]*|Hostname Verification Check failed|Peer name [^ ]+ is not in peer certificate")
_UNTOLD = "Could not finish writing before closing"
_TOO_LARGE = re.compile(r"decoded message length too large: found (\d+) bytes")
_CLAUSE = re.compile(r"(where|select|group by|having|order by), column (\d+)(?:, (.*?))?: .*", re.DOTALL)
_FIELDS = re.compile(r'the fields: (column (\d+)(?:, "(.*?)")?: .*)', re.DOTALL)


def flight():
    """The module ``pyarrow.flight``.

    Raises an ``Error`` where pyarrow is not installed.
    """
    try:
        import pyarrow.flight
    except ImportError as error:
        raise Error(f"served stores are reached through pyarrow, which is not there ({error}): pip install 'tapetum[flight]'") from None
    return pyarrow.flight


def location(address):
    """An address as gRPC has it: ``grpc://HOST:PORT``, ``grpc+tls://HOST:PORT``, or the path of a Unix socket."""
    text = os.fspath(address)
    if isinstance(text, bytes):
        text = os.fsdecode(text)
    if text.startswith("unix:"):
        return "grpc+unix://" + os.path.abspath(text.removeprefix("unix:").removeprefix("//"))
    if "://" in text:
        return text
    try:
        mode = os.stat(text).st_mode
    except OSError as error:
        if os.sep not in text:
            raise Error(f"{text!r} is no address: give grpc://HOST:PORT, or the path of the socket of `tapetum serve --flight unix:PATH`") from None
        raise Error(f"there is no socket {text}: {error.strerror}; start a server with `tapetum serve --flight unix:{text}`") from None
    if stat.S_ISDIR(mode):
        raise Error(f"{text} is a folder: tapetum.open opens a store in this process; connect takes grpc://HOST:PORT, or the path of a socket")
    if not stat.S_ISSOCK(mode):
        raise Error(f"{text} is no socket: give grpc://HOST:PORT, or the path of the socket of `tapetum serve --flight unix:PATH`")
    return "grpc+unix://" + os.path.abspath(text)


def told(error, address):
    """An error of pyarrow as one of this package: the server's sentence, without what gRPC adds."""
    text = str(error)
    wrapped = _WRAPPED.fullmatch(text)
    sentence = wrapped[1].removesuffix(".") if wrapped else text
    if too_large := _TOO_LARGE.search(sentence):
        return Error(f"{address}: a message of {too_large[1]} bytes is too large: key and value together take at most 16 MiB through this door")
    if clause := _CLAUSE.fullmatch(sentence):
        return query_error(sentence, clause[1].replace(" ", "_"), int(clause[2]), clause[3] or "")
    if fields := _FIELDS.fullmatch(sentence):
        return query_error(f"fields, {fields[1]}", "fields", int(fields[2]), fields[3] or "")
    if untrusted := _UNTRUSTED.search(sentence):
        return Error(
            f"the certificate of {address} is not trusted ({untrusted[0]}): give its authority by ca=, and the name or address that is in the certificate"
        )
    if _LOST.search(sentence):
        cause = re.search(r"Connection refused|No such file or directory|[^:]*$", sentence)[0].strip()
        return Error(f"no server answers at {address} ({cause}): start it with `tapetum serve --flight`, or give another address")
    return Error(sentence)


def as_bytes(key):
    """A key or a value as bytes; text is UTF-8."""
    if isinstance(key, bytes):
        return key
    if isinstance(key, str):
        return key.encode()
    try:
        return bytes(memoryview(key))
    except TypeError:
        raise TypeError("keys and values are bytes, str, or a buffer of bytes") from None


def base64_of(key):
    return base64.b64encode(key).decode()


class Login:
    """The user as whom a door logs in, and the authority of the server's certificate: a path, or bytes in PEM."""

    def __init__(self, user=None, password=None, ca=None):
        if (user is None) != (password is None):
            raise Error("user and password are given together")
        self.user = user
        self._password = password.encode() if isinstance(password, str) else password
        if ca is None or isinstance(ca, bytes):
            self.ca = ca
        else:
            try:
                with open(ca, "rb") as file:
                    self.ca = file.read()
            except OSError as error:
                raise Error(f"ca={os.fspath(ca)!r} is not read: {error.strerror}") from None

    @property
    def arguments(self):
        """The arguments of ``connect`` that another process needs for the same: with the password."""
        given = {"user": self.user, "password": self._password, "ca": self.ca}
        return {name: value for name, value in given.items() if value is not None}

    def token(self, client):
        """A header for each call."""
        options = flight().FlightCallOptions(timeout=_LOGIN_S)
        try:
            return client.authenticate_basic_token(self.user.encode(), self._password, options)
        except Exception as error:
            if _UNTOLD in str(error):
                # The connection failed, and another call says why.
                client.list_actions(options)
            raise

    def __repr__(self):
        return f"<Login: {self.user}>"


class Door:
    """A connection to one server."""

    def __init__(self, address, login=None):
        flight_module = flight()
        self.location = location(address)
        self.login = login or Login()
        self._pid = os.getpid()
        self._options, self._options_lock = None, threading.Lock()
        options = [("grpc.keepalive_time_ms", _KEEPALIVE_MS), ("grpc.keepalive_timeout_ms", _KEEPALIVE_MS)]
        if self.location.startswith("grpc+unix:"):
            # gRPC takes the path for the name of the server, and the server's library refuses requests to a name with a slash.
            options.append(("grpc.default_authority", "localhost"))
        trusted = {}
        if self.location.startswith("grpc+tls:"):
            if self.login.ca is None:
                raise Error(f"{self.location} needs ca=: the path of the authority of the server's certificate, in PEM, or its bytes")
            trusted["tls_root_certs"] = self.login.ca
        with self.errors():
            self._client = flight_module.FlightClient(self.location, generic_options=options, **trusted)

    @property
    def closed(self):
        return self._client is None

    @property
    def is_usable(self):
        """Whether it is open, and of this process."""
        return self._client is not None and self._pid == os.getpid()

    def close(self):
        client, self._client = self._client, None
        if client is not None and self._pid == os.getpid():
            client.close()

    def errors(self):
        """A context in which errors of pyarrow become those of this package."""
        return _Errors(self.location)

    def client(self):
        if self._client is None:
            raise ClosedError("the connection was closed: connect again")
        if self._pid != os.getpid():
            raise ClosedError("the connection belongs to another process: connect again in this one")
        return self._client

    def call(self, work):
        """What ``work`` gives, called with a client and the options of its calls. Where a token has ended it is called once more: work that
        the server has refused so was not begun."""
        client, options = self.client(), self._logged_in()
        try:
            return work(client, options)
        except Exception as error:
            if self.login.user is None or not _is_unauthenticated(error):
                raise
        return work(client, self._logged_in(after=options))

    def _logged_in(self, after=None):
        """The options of calls. A token that was refused, that of ``after``, is exchanged for a new one."""
        if self.login.user is None:
            return flight().FlightCallOptions()
        with self._options_lock:
            if self._options is None or self._options is after:
                self._options = flight().FlightCallOptions(headers=[self.login.token(self.client())])
            return self._options

    def action(self, action, /, **body):
        """The results of an action, as bytes."""
        asked = flight().Action(f"tapetum.{action}", json.dumps(body).encode())
        with self.errors():
            return self.call(lambda client, options: [result.body.to_pybytes() for result in client.do_action(asked, options)])

    def asked(self, action, /, **body):
        """The result of an action that has one, from JSON."""
        return json.loads(self.action(action, **body)[0])

    def schema(self, command):
        """The schema of a command's rows. The server looks at the command, and runs nothing."""
        with self.errors():
            return self.call(lambda client, options: client.get_schema(_descriptor(command), options).schema)

    def stream(self, command):
        """A reader of a command's rows, of the moment at which this is called."""
        with self.errors():
            info = self.call(lambda client, options: client.get_flight_info(_descriptor(command), options))
            return _Endpoints(self, info.endpoints)

    def put(self, keyspace, items):
        """Stores triples of key, value and expiry, which is in unix milliseconds or None."""
        import pyarrow

        schema = pyarrow.schema(
            [("key", pyarrow.binary()), ("value", pyarrow.binary()), ("expires", pyarrow.timestamp("ms", tz="UTC"))]
        )

        def work(client, options):
            writer, metadata = client.do_put(_descriptor({"put": {"keyspace": keyspace}}), schema, options)
            # The answer comes with the end of the rows, and so does an error.
            try:
                for part in _parts(items):
                    columns = [pyarrow.array(column, field.type) for column, field in zip(zip(*part, strict=True), schema, strict=True)]
                    writer.write_batch(pyarrow.record_batch(columns, schema=schema))
                writer.done_writing()
                return metadata.read()
            finally:
                writer.close()

        with self.errors():
            answer = self.call(work)
        return json.loads(answer.to_pybytes())["stored"] if answer else 0


class _Endpoints:
    """A reader of all parts of an answer, one after the other: of an ordered keyspace they are ranges, in the order of keys.

    The next ticket is renewed while a part is read, because tickets are good for a minute.
    """

    def __init__(self, door, endpoints):
        self._door, self._left = door, list(endpoints)
        self._renewed = time.monotonic()
        self._reader = self._next()

    def _next(self):
        ticket = self._left.pop(0).ticket
        return self._door.call(lambda client, options: client.do_get(ticket, options))

    def read_chunk(self):
        while True:
            if self._left and time.monotonic() - self._renewed >= _RENEW_S:
                self._renew()
            try:
                return self._reader.read_chunk()
            except StopIteration:
                if not self._left:
                    raise
                self._reader = self._next()

    def cancel(self):
        self._left.clear()
        self._reader.cancel()

    def _renew(self):
        # All parts are of one moment, which one renewal keeps. The request has the endpoint as its field 1.
        endpoint = self._left[0].serialize()
        request = b"\x0a" + _varint(len(endpoint)) + endpoint
        self._door.call(lambda client, options: list(client.do_action(flight().Action("RenewFlightEndpoint", request), options)))
        self._renewed = time.monotonic()


def _is_unauthenticated(error):
    # Some calls of pyarrow have no exception of their own for it.
    return isinstance(error, flight().FlightUnauthenticatedError) or "Flight returned unauthenticated error" in str(error)


def _varint(number):
    parts = []
    while number >= 0x80:
        parts.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*parts, number])


class _Errors:
    """See ``Door.errors``. Not a generator: an error keeps no frames of one."""

    def __init__(self, address):
        self._address = address

    def __enter__(self):
        return self

    def __exit__(self, kind, error, _traceback):
        if error is None or isinstance(error, Error | KeyboardInterrupt | GeneratorExit):
            return
        import pyarrow

        # Most of pyarrow's errors are also errors of Python's, such as KeyError, which would be taken for something else.
        if isinstance(error, pyarrow.ArrowException):
            raise told(error, self._address) from None


def _descriptor(command):
    return flight().FlightDescriptor.for_command(json.dumps(command).encode())


def _parts(items):
    """Lists of items of which each fits into one message, or is one item."""
    part, part_bytes = [], 0
    for item in items:
        item_bytes = len(item[0]) + len(item[1])
        if part and part_bytes + item_bytes > PUT_BYTES:
            yield part
            part, part_bytes = [], 0
        part.append(item)
        part_bytes += item_bytes
    if part:
        yield part


def key_lists(keys):
    """Lists of keys of which each fits into one action."""
    part, part_bytes = [], 0
    for key in keys:
        if part and (len(part) == KEYS_OF_ACTION or part_bytes + len(key) > KEY_BYTES_OF_ACTION):
            yield part
            part, part_bytes = [], 0
        part.append(key)
        part_bytes += len(key)
    if part:
        yield part
