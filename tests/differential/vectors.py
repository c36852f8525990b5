#!/usr/bin/env python3
"""Holds memcached and Tapetum to tests/vectors/binary.txt, so that what the file says is what memcached answers.

    vectors.py --tapetum 127.0.0.1:11211 [--memcached HOST:PORT] [--only PATTERN]

Without --memcached it starts Debian's. Both servers are flushed first. Standard library only."""

import pathlib
import re
import sys

import rival
import wire
from differential import flush

VECTORS = pathlib.Path(__file__).parent.parent / "vectors/binary.txt"
END = wire.packet(0x0A, opaque=0x77777777)
ENDED = wire.HEADER.pack(0x81, 0x0A, 0, 0, 0, 0, 0, 0x77777777, 0)


def vectors():
    """Names, lines that are sent, lines that come back."""
    for block in VECTORS.read_text().split("\n\n")[1:]:
        name, *lines = block.splitlines()
        yield name, [line[2:] for line in lines if line[0] == ">"], [line[2:] for line in lines if line[0] == "<"]


def resolve(line, stamps, received=b""):
    """A line's bytes. Stamps whose letters are new are taken from where they are in `received`, if they may be stamps."""
    out = b""
    for group in line.split():
        if group[0] == "{":
            there = received[len(out):len(out) + 8]
            if group not in stamps and len(there) == 8 and any(there) and there not in stamps.values():
                stamps[group] = there
            out += stamps.get(group, b"no stamp")
        else:
            out += bytes.fromhex(group)
    return out


def ask(connection, script):
    connection.sendall(script + END)
    received = b""
    while not received.endswith(ENDED):
        piece = connection.recv(1 << 16)
        if not piece:
            return received + b" and then the end"
        received += piece
    return received[:-len(ENDED)]


def replay(address):
    """The names of vectors that the server at `address` answers otherwise."""
    flush(address)
    stamps, wrong = {}, []
    with wire.connect(address) as connection:
        for name, sent, back in vectors():
            received = ask(connection, b"".join(resolve(line, stamps) for line in sent))
            expected = b""
            for line in back:
                expected += resolve(line, stamps, received[len(expected):])
            if received != expected:
                wrong.append(name)
                print(f"DIFFERENT  {address}: {name}\n    {expected.hex()}\n    {received.hex()}")
    return wrong


def main():
    only = "nothing is done unless the name \"vectors\" matches this pattern"
    arguments = rival.parser(__doc__, "which is flushed", only).parse_args()
    if not re.search(arguments.only, "vectors"):
        return 0
    with rival.memcached(arguments.memcached) as memcached:
        wrong = [name for address in (memcached, arguments.tapetum) for name in replay(address)]
    print(f"{len(list(vectors()))} vectors, {len(wrong)} answered otherwise")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
