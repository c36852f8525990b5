#!/usr/bin/env python3
"""Sends the same bytes to memcached and to Tapetum and compares the replies byte for byte.

    differential.py --tapetum 127.0.0.1:11211 [--memcached HOST:PORT] [--only PATTERN] [--pieces]

Without --memcached it starts Debian's on a free port of the loopback interface and stops it again. Both servers are
flushed before every case. Standard library only."""

import re
import sys
import time

import cases
import rival
import wire
from allowed import ALLOWED, STAMPS_ALIKE

# Replies of these show seconds, which may pass between the two servers: a difference must show again.
SECONDS = r"^meta"
TRIES = 3
# Long scripts are not sent byte by byte.
PIECES_BYTES_MAX = 4096


def sentinel(case):
    """A last command whose reply shows that the connection is still good."""
    return cases.NOOP if case.binary else b"version\r\n"


def replies(address, case, parts, piece_bytes=None):
    """The normalised replies of each part."""
    normaliser = wire.Normaliser(stamps_alike=re.search(STAMPS_ALIKE, case.name) is not None)
    normalise = normaliser.binary if case.binary else normaliser.text
    out = []
    for part in parts:
        script = part(lambda key: wire.stamp_of(address, key)) if callable(part) else part
        reply = normalise(wire.exchange(address, script + sentinel(case), piece_bytes))
        if case.stats:
            lines = reply.split(b"\r\n")
            reply = b"\r\n".join(sorted(line for line in lines if line.split(b" ")[1:2][:1] and
                                        line.split(b" ")[1] in case.stats))
        out.append(reply)
    return out


def flush(address):
    reply = wire.exchange(address, b"flush_all\r\n")
    if reply != b"OK\r\n":
        sys.exit(f"{address} does not flush: {reply!r}")


def shown(reply, limit=300):
    text = repr(reply)
    return text if len(text) <= limit else f"{text[:limit // 2]} ... {len(reply)} bytes ... {text[-limit // 2:]}"


class Tally:
    def __init__(self):
        self.equal, self.allowed, self.failed, self.used = 0, 0, [], set()

    def judge(self, case, expected, actual, what):
        if expected == actual:
            self.equal += 1
            return
        for at, (pattern, reason, reply) in enumerate(ALLOWED):
            if re.search(pattern, case.name) and re.search(reply, repr(b"|".join(actual)), re.DOTALL):
                self.allowed += 1
                self.used.add(at)
                return
        self.failed.append(case.name)
        print(f"DIFFERENT  {case.name} ({what})")
        for number, (one, other) in enumerate(zip(expected, actual)):
            if one != other:
                print(f"    part {number}: {shown(one)}\n       not: {shown(other)}")


def run_cases(chosen, memcached, tapetum, tally, pieces):
    for case in chosen:
        for _ in range(TRIES if re.search(SECONDS, case.name) else 1):
            flush(memcached)
            flush(tapetum)
            expected = replies(memcached, case, case.parts)
            actual = replies(tapetum, case, case.parts)
            if expected == actual:
                break
        tally.judge(case, expected, actual, "memcached, then tapetum")
        length = sum(len(part) for part in case.parts if not callable(part))
        if pieces and length <= PIECES_BYTES_MAX and not case.stats:
            for _ in range(TRIES if re.search(SECONDS, case.name) else 1):
                flush(tapetum)
                split = replies(tapetum, case, case.parts, piece_bytes=1)
                if split == actual:
                    break
            if split != actual:
                tally.failed.append(case.name)
                print(f"DIFFERENT  {case.name} (whole, then byte by byte)\n    {actual}\n    {split}")


def run_late(memcached, tapetum, tally, chosen):
    """Cases that need time to pass: all first parts, one wait, all last parts."""
    both = (memcached, tapetum)
    for address in both:
        flush(address)
    keyed = [(case, [part.replace(b"%s", b"late%d" % at) for part in case.parts]) for at, case in enumerate(chosen)]
    first = [[replies(address, case, parts[:1]) for case, parts in keyed] for address in both]
    time.sleep(3.2)
    last = [[replies(address, case, parts[1:]) for case, parts in keyed] for address in both]
    for at, (case, _) in enumerate(keyed):
        tally.judge(case, first[0][at] + last[0][at], first[1][at] + last[1][at], "memcached, then tapetum")


def run_delayed_flush(memcached, tapetum, tally):
    """A flush with a delay leaves what is there until its time, and takes it then."""
    for name, script, is_binary in (("text", b"flush_all 2\r\n", False), ("binary", wire.packet(8, extras=cases.u32(2)), True)):
        case = cases.Case(f"delayed flush: {name}", binary=is_binary)
        plain = cases.Case(case.name)
        seen = []
        for address in (memcached, tapetum):
            flush(address)
            replies(address, plain, [b"set a 0 0 1\r\nx\r\n"])
            seen.append(replies(address, case, [script]) + replies(address, plain, [b"get a\r\n"]))
        time.sleep(3.2)
        for replies_seen, address in zip(seen, (memcached, tapetum)):
            replies_seen += replies(address, plain, [b"get a\r\nset a 0 0 1\r\ny\r\nget a\r\n"])
        tally.judge(case, seen[0], seen[1], "memcached, then tapetum")


def main():
    parser = rival.parser(__doc__)
    parser.add_argument("--pieces", action="store_true", help="send every short script byte by byte as well")
    arguments = parser.parse_args()
    tally = Tally()
    with rival.memcached(arguments.memcached) as memcached:
        chosen = [case for case in cases.all_cases() if re.search(arguments.only, case.name)]
        run_cases(chosen, memcached, arguments.tapetum, tally, arguments.pieces)
        late = [case for case in cases.late_cases() if re.search(arguments.only, case.name)]
        if late:
            run_late(memcached, arguments.tapetum, tally, late)
        if re.search(arguments.only, "delayed flush"):
            run_delayed_flush(memcached, arguments.tapetum, tally)
    everything = not arguments.only
    unused = [row[0] for at, row in enumerate(ALLOWED) if everything and at not in tally.used]
    for pattern in unused:
        print(f"UNUSED     the allowed difference {pattern!r} no longer occurs: take it out")
    print(f"{tally.equal} equal, {tally.allowed} allowed to differ, {len(tally.failed)} failed")
    return 1 if tally.failed or unused else 0


if __name__ == "__main__":
    sys.exit(main())
