#!/usr/bin/env python3
"""Sends the same datagrams to memcached and to Tapetum and compares the replies datagram by datagram.

    datagrams.py --tapetum 127.0.0.1:11211 [--memcached HOST:PORT] [--only PATTERN] [--seed N]

Both take UDP at the address where they take TCP, and trust this sender. Without --memcached Debian's is started on a free port
and stopped again. A reply is a list of messages, a message its datagrams; stamps are compared by identity, versions not
at all. Standard library only."""

import random
import re
import socket
import struct
import sys
import time

import rival
import wire
from differential import flush, shown

FRAME = struct.Struct(">HHHH")
FENCE = 0xFFFF
REQUEST_ID = 0x1234
# Tapetum makes a message of the replies to all that is in a datagram.
JOINED = "joined"
SILENT = "silent"

# The differences that are meant: the cases, the reason, and what Tapetum does there.
ALLOWED = [
    (r": several", "memcached begins a new message for every key and every command, all under one request id and each number 0 "
     "of 1, though its protocol.txt has one message for a request: no client can put them in order or know the last; and of several "
     "commands it sometimes answers the first only", JOINED),
    (r"^(text|binary): no request", "a server's ERROR may be answered by another server's, for ever: what is no request is met with "
     "silence", SILENT),
    (r"number 1 of 1$", "there is no datagram number 1 in a message of one", SILENT),
    (r"^text: quit$|quiet and nothing to say$", "memcached sends a frame with nothing in it, which says that it is one of 0", SILENT),
    (r"behind", "memcached forgets what follows a set or an error in a datagram", r"VALUE c 0 1|x81\\n"),
    (r"text: a bad chunk", "what is behind it is no request, so that the whole is met with silence", SILENT),
    (r"after half a set", "memcached waits for the rest of a request in the next datagram, whoever sends it", r"END"),
]


def frame(request_id=REQUEST_ID, number=0, count=1, reserved=0):
    return FRAME.pack(request_id, number, count, reserved)


class Case:
    """Datagrams, sent one after the other; each is a payload, or bytes with their frame. `stored` is put there over TCP."""

    def __init__(self, name, *datagrams, stored=None, framed=False):
        self.name, self.stored, self.framed = name, stored or {}, framed
        self.datagrams = [datagram if framed else frame() + datagram for datagram in datagrams]


def connect(address):
    host, _, port = address.rpartition(":")
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    udp.connect((host, int(port)))
    return udp


def collect(udp, datagrams, done, timeout):
    """Receives until `done(datagrams)`, or for so long."""
    deadline = time.monotonic() + timeout
    while not done(datagrams):
        left = deadline - time.monotonic()
        if left <= 0:
            return False
        udp.settimeout(left)
        try:
            datagrams.append(udp.recv(1 << 16))
        except TimeoutError:
            return False
    return True


def ask(udp, datagram, payload_bytes):
    """What is answered to a datagram: at least so many bytes of payload are waited for, then whatever comes before the answer
    to a request that follows."""
    received = []
    udp.send(datagram)
    collect(udp, received, lambda came: sum(len(one) - FRAME.size for one in came) >= payload_bytes, 0.5)
    fenced = lambda came: any(one[:2] == frame(FENCE)[:2] for one in came)
    # memcached may take the first for the rest of what came before.
    for _ in range(4):
        udp.send(frame(FENCE) + b"version\r\n")
        if collect(udp, received, fenced, 0.3):
            return [one for one in received if one[:2] != frame(FENCE)[:2]]
    sys.exit("a server has gone silent")


def messages(datagrams, normalise):
    """The messages in what came: their datagrams' numbers, counts and lengths, and what they say."""
    out = []
    for datagram in datagrams:
        request_id, number, count, reserved = FRAME.unpack_from(datagram)
        if request_id != REQUEST_ID or reserved != 0:
            sys.exit(f"a reply with the frame {datagram[:8].hex()}")
        if number == 0 or not out:
            out.append(([], bytearray()))
        out[-1][0].append((number, count, len(datagram)))
        out[-1][1].extend(datagram[FRAME.size:])
    return [(frames, normalise(bytes(text))) for frames, text in out]


def replies(address, case, expected):
    flush(address)
    for key, value in case.stored.items():
        script = b"set %s 0 0 %d\r\n%s\r\n" % (key, len(value), value)
        assert wire.exchange(address, script) == b"STORED\r\n", key
    udp, normaliser, out = connect(address), wire.Normaliser(stamps_alike=bool(re.search("touch|gat", case.name))), []
    for at, datagram in enumerate(case.datagrams):
        is_binary = datagram[FRAME.size:FRAME.size + 1] in (b"\x80", b"\x81")
        payload_bytes = sum(len(text) for _, text in expected[at]) if expected else 0
        came = ask(udp, datagram, payload_bytes)
        found = messages(came, normaliser.binary if is_binary else normaliser.text)
        # Where stamps or versions stand, the lengths are each server's own.
        out.append([(len(frames) == frames[-1][1] if b"<stamp" in text or b"<version" in text else frames, text)
                    for frames, text in found])
    udp.close()
    return out


def judge(case, expected, actual):
    """None if they agree, '' if they may differ, else what is wrong."""
    if expected == actual:
        return None
    for pattern, _, rule in ALLOWED:
        if not re.search(pattern, case.name):
            continue
        if rule == JOINED:
            join = lambda reply: b"".join(text for _, text in reply)
            if all(join(other).startswith(join(one)) and len(other) <= 1 for one, other in zip(expected, actual)):
                return pattern
        elif rule == SILENT:
            if all(one == other or other == [] for one, other in zip(expected, actual)):
                return pattern
        elif re.search(rule, repr(actual)):
            return pattern
    return ""


def boundary_cases():
    """Values whose replies fill their last datagram just so."""
    for length in [0, 1, 2, 100, *range(1366, 1378), *range(2755, 2770), 4000, 5544, 8191, 60000]:
        yield Case(f"text: a value of {length} bytes", b"set v 3 0 %d\r\n%s\r\n" % (length, b"x" * length), b"get v\r\n",
                   b"gets v\r\n")
        value = b"y" * length
        yield Case(f"binary: a value of {length} bytes", wire.packet(1, b"v", bytes(8), value), wire.packet(0, b"v"),
                   wire.packet(0x0C, b"v"))
    large = {b"large": bytes(range(256)) * 400}
    yield Case("text: a value of 100 KiB", b"get large\r\n", stored=large)
    yield Case("binary: a value of 100 KiB", wire.packet(0, b"large"), stored=large)


def text_cases():
    have = {b"a": b"abc", b"n": b"41", b"b": b"x" * 5000}
    single = [
        "get a", "get none", "gets a", "bget a", "gat 100 a", "gats 100 a", "gat 100 none", "version", "verbosity 1",
        "verbosity 1 noreply", "delete a", "delete none", "delete a noreply", "incr n 1", "decr n 100", "incr a 1", "incr none 1",
        "incr n 1 noreply", "touch a 100", "touch none 100", "touch a 100 noreply", "flush_all", "flush_all noreply", "quit",
        "get " + "k" * 250, "get " + "k" * 251, "incr n x", "touch a x", "delete a 1", "flush_all x", "gat x a",
    ]
    for line in single:
        yield Case(f"text: {line[:30]}", line.encode() + b"\r\n", b"get a\r\n", b"get n\r\n", stored=have)
    for verb in ("set", "add", "replace", "append", "prepend"):
        for key in ("a", "new"):
            for tail in ("", " noreply"):
                request = f"{verb} {key} 5 0 2{tail}\r\nxy\r\n".encode()
                yield Case(f"text: {verb} {key}{tail}", request, f"gets {key}\r\n".encode(), stored=have)
    yield Case("text: a line feed only", b"get a\n", stored=have)
    yield Case("text: a bad chunk", b"set a 0 0 2\r\nxyz\r\n", stored=have)
    yield Case("text: a bad length", b"set a 0 0 -1\r\n", stored=have)
    yield Case("text: several keys", b"get a b a\r\n", b"get b none a n\r\n", b"gets a n\r\n", stored=have)
    yield Case("text: several keys of which the last is missing", b"get a none\r\n", stored=have)
    yield Case("text: several commands", b"get a\r\nget none\r\ngets n\r\n", b"get b\r\nget b\r\n", stored=have)
    yield Case("text: commands behind a set", b"set c 0 0 1\r\nx\r\nget c\r\nincr n 1\r\n", stored=have)
    yield Case("text: no request: nothing", b"\r\n")
    for line in ["foo", "GET a", "get", "set a", "STORED", "ERROR", "END", "SERVER_ERROR x", "VALUE a 0 3", "\xff"]:
        yield Case(f"text: no request: {line!r}", line.encode() + b"\r\n", b"get a\r\n", stored=have)
    yield Case("text: no request: http", b"GET / HTTP/1.1\r\n", b"get a\r\n", stored=have)
    yield Case("text: no request: no line end", b"get a", b"get a\r\n", stored=have)
    yield Case("text: no request: a long line", b"a" * 3000, b"get a\r\n", stored=have)
    yield Case("text: after half a set", b"set a 0 0 10\r\nabc", b"get z\r\n", stored=have)


def binary_cases():
    have = {b"a": b"abc", b"n": b"41", b"b": b"x" * 5000}
    number = struct.pack(">QQI", 1, 5, 0)
    for name, opcode, extras in [("get", 0, b""), ("getq", 9, b""), ("getk", 12, b""), ("getkq", 13, b""), ("delete", 4, b""),
                                 ("incr", 5, number), ("decr", 6, number), ("touch", 0x1C, bytes(4)),
                                 ("gat", 0x1D, bytes(4)), ("gatk", 0x23, bytes(4)), ("gatq", 0x1E, bytes(4))]:
        for key in (b"n", b"a"):
            yield Case(f"binary: {name} {key.decode()}", wire.packet(opcode, key, extras), wire.packet(0, key), stored=have)
        quiet = ", quiet and nothing to say" if name in ("getq", "getkq", "gatq") else ""
        yield Case(f"binary: {name} absent{quiet}", wire.packet(opcode, b"none", extras), stored=have)
    for name, opcode in [("set", 1), ("add", 2), ("replace", 3)]:
        for key in (b"a", b"new"):
            yield Case(f"binary: {name} {key.decode()}", wire.packet(opcode, key, bytes(8), b"xy"), wire.packet(0, key),
                       stored=have)
    for name, opcode in [("append", 14), ("prepend", 15)]:
        for key in (b"a", b"new"):
            yield Case(f"binary: {name} {key.decode()}", wire.packet(opcode, key, b"", b"xy"), wire.packet(0, key),
                       stored=have)
    yield Case("binary: setq, quiet and nothing to say", wire.packet(0x11, b"a", bytes(8), b"xy"), wire.packet(0, b"a"))
    yield Case("binary: addq that fails", wire.packet(0x12, b"a", bytes(8), b"xy"), stored=have)
    yield Case("binary: replaceq that fails", wire.packet(0x13, b"none", bytes(8), b"xy"), stored=have)
    yield Case("binary: deleteq, quiet and nothing to say", wire.packet(0x14, b"a"), wire.packet(0, b"a"), stored=have)
    for name, opcode in [("noop", 10), ("version", 11), ("flush", 8), ("quit", 7)]:
        yield Case(f"binary: {name}", wire.packet(opcode), wire.packet(0, b"a"), stored=have)
    noop = wire.packet(10)
    yield Case("binary: several", wire.packet(9, b"a") + wire.packet(0, b"n") + noop, stored=have)
    yield Case("binary: several, a quiet miss among them", wire.packet(9, b"none") + wire.packet(9, b"a") + noop, stored=have)
    yield Case("binary: several large", wire.packet(0, b"b") + wire.packet(12, b"b"), stored=have)
    yield Case("binary: a noop behind an error", wire.packet(0, b"none") + noop)
    for name, bad in [("a reply", wire.packet(0, b"a", magic=0x81)), ("unknown", wire.packet(0x55, b"a")),
                      ("extras", wire.packet(0, b"a", b"1234")), ("cut", wire.packet(0, b"a")[:20]),
                      ("no body", wire.packet(0, b"a")[:24]), ("no key", wire.packet(0))]:
        yield Case(f"binary: no request: {name}", bad, wire.packet(0, b"a"), stored=have)


def frame_cases():
    get = b"get a\r\n"
    for number, count, reserved in [(0, 1, 9), (1, 1, 0), (0, 0, 0), (0, 2, 0), (1, 2, 0), (7, 3, 0), (0, 65535, 0)]:
        yield Case(f"frame: number {number} of {count}" + (", reserved" if reserved else ""),
                   frame(number=number, count=count, reserved=reserved) + get, frame() + get, stored={b"a": b"abc"}, framed=True)
    for length in range(9):
        yield Case(f"frame: {length} bytes", (frame() + get)[:length], frame() + get, stored={b"a": b"abc"}, framed=True)


def random_cases(seed, count):
    """Rows of requests that have one reply each, on few keys."""
    for number in range(count):
        draw = random.Random(seed * 1000 + number)
        datagrams = []
        for _ in range(12):
            key = draw.choice([b"a", b"b", b"n"])
            value = draw.choice([b"x" * draw.choice([0, 3, 1380, 3000]), b"%d" % draw.randrange(100)])
            line = draw.choice([b"get %s", b"gets %s", b"delete %s", b"incr %s 7", b"decr %s 7", b"touch %s 0"]) % key
            store = b"%s %s 1 0 %d\r\n%s" % (draw.choice([b"set", b"add", b"replace", b"append", b"prepend"]), key, len(value), value)
            opcode = draw.choice([0, 4, 12])
            datagrams.append(draw.choice([line + b"\r\n", store + b"\r\n", wire.packet(opcode, key),
                                          wire.packet(draw.choice([1, 2, 3]), key, bytes(8), value)]))
        yield Case(f"random: touch {number} of seed {seed}", *datagrams)


def main():
    parser = rival.parser(__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the random cases")
    arguments = parser.parse_args()
    equal, used, failed = 0, [], 0
    with rival.memcached(arguments.memcached, udp=True) as memcached:
        everything = [*boundary_cases(), *text_cases(), *binary_cases(), *frame_cases(), *random_cases(arguments.seed, 100)]
        for case in everything:
            if not re.search(arguments.only, case.name):
                continue
            expected = replies(memcached, case, None)
            actual = replies(arguments.tapetum, case, expected)
            verdict = judge(case, expected, actual)
            if verdict is None:
                equal += 1
            elif verdict:
                used.append(verdict)
            else:
                failed += 1
                print(f"DIFFERENT  {case.name} (memcached, then tapetum)")
                for number, (one, other) in enumerate(zip(expected, actual)):
                    if one != other:
                        print(f"    datagram {number}: {shown(one)}\n            not: {shown(other)}")
    unused = [] if arguments.only else [pattern for pattern, _, _ in ALLOWED if pattern not in used]
    for pattern in unused:
        print(f"UNUSED     the allowed difference {pattern!r} no longer occurs: take it out")
    print(f"over UDP: {equal} equal, {len(used)} allowed to differ, {failed} failed")
    return 1 if failed or unused else 0


if __name__ == "__main__":
    sys.exit(main())
