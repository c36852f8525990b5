"""Talking to a memcached server: scripts of bytes in, replies out, and replies with what must differ taken out."""

import re
import socket
import struct

HEADER = struct.Struct(">BBHBBHIIQ")
OPAQUE = 0xDEADBEEF


def connect(address):
    """A connected socket. `address` is HOST:PORT or unix:PATH."""
    if address.startswith("unix:"):
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        connection.connect(address[len("unix:"):])
        return connection
    host, _, port = address.rpartition(":")
    connection = socket.create_connection((host, int(port)), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def exchange(address, script, piece_bytes=None):
    """Sends `script` whole or in pieces, says that no more comes, and returns everything that came back."""
    connection = connect(address)
    received = bytearray()
    try:
        try:
            if piece_bytes is None:
                connection.sendall(script)
            else:
                for at in range(0, len(script), piece_bytes):
                    connection.sendall(script[at:at + piece_bytes])
            connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The server has hung up already; what it said can still be read.
        while True:
            try:
                piece = connection.recv(1 << 16)
            except ConnectionError:
                break
            if not piece:
                break
            received += piece
    finally:
        connection.close()
    return bytes(received)


def stamp_of(address, key):
    """The stamp (CAS unique) of `key`, 0 where it is absent."""
    reply = exchange(address, b"gets " + key + b"\r\n")
    match = re.match(rb"VALUE \S+ \d+ \d+ (\d+)\r\n", reply)
    return int(match.group(1)) if match else 0


def packet(opcode, key=b"", extras=b"", value=b"", stamp=0, magic=0x80, key_bytes=None, extra_bytes=None,
           body_bytes=None, opaque=OPAQUE, data_type=0):
    """A binary request; the lengths can be made to lie."""
    body = extras + key + value
    return HEADER.pack(
        magic, opcode,
        len(key) if key_bytes is None else key_bytes,
        len(extras) if extra_bytes is None else extra_bytes,
        data_type, 0,
        len(body) if body_bytes is None else body_bytes,
        opaque, stamp) + body


class Normaliser:
    """Replaces stamps by the order in which they first appeared in a case, or by 1 where `stamps_alike`; and versions, and
    how many seconds ago something was, where it is some seconds: each server counts from its own tick."""

    def __init__(self, stamps_alike=False):
        self.stamps, self.stamps_alike = {0: 0}, stamps_alike

    def stamp(self, value):
        if self.stamps_alike:
            return min(value, 1)
        return self.stamps.setdefault(value, len(self.stamps))

    def meta_stamp(self, match):
        return b" c<stamp %d>" % self.stamp(int(match.group(1)))

    def text(self, reply):
        out, at = [], 0
        while at < len(reply):
            end = reply.find(b"\n", at)
            if end < 0:
                out.append(reply[at:])
                break
            line, at = reply[at:end + 1], end + 1
            match = re.match(rb"VALUE (\S+) (\d+) (\d+)(?: (\d+))?\r\n", line)
            if match:
                value_end = at + int(match.group(3)) + 2
                if match.group(4):
                    line = b"VALUE %s %s %s <stamp %d>\r\n" % (*match.group(1, 2, 3), self.stamp(int(match.group(4))))
                out.append(line + reply[at:value_end])
                at = value_end
            elif match := re.match(rb"(?:VA (\d+)|HD|EN|NS|EX|NF)(?= |\r\n)", line):
                value_end = at + int(match.group(1)) + 2 if match.group(1) else at
                line = re.sub(rb" l[2-5](?= |\r\n)", b" l<some seconds>", line)
                out.append(re.sub(rb" c(\d+)(?= |\r\n)", self.meta_stamp, line) + reply[at:value_end])
                at = value_end
            elif line.startswith(b"ME "):
                line = re.sub(rb" cas=(\d+) ", lambda match: b" cas=<stamp %d> " % self.stamp(int(match.group(1))), line)
                line = re.sub(rb" la=[2-5] ", b" la=<some seconds> ", line)
                out.append(re.sub(rb" cls=\d+ size=\d+", b"", line))
            elif line.startswith(b"VERSION "):
                out.append(b"VERSION <version>\r\n")
            else:
                out.append(line)
        return b"".join(out)

    def binary(self, reply):
        out, at = [], 0
        while at + HEADER.size <= len(reply):
            fields = list(HEADER.unpack_from(reply, at))
            end = at + HEADER.size + fields[6]
            body = reply[at + HEADER.size:end]
            if fields[1] == 0x0B and fields[5] == 0:
                body, fields[6] = b"<version>", 9
            fields[8] = self.stamp(fields[8])
            out.append(HEADER.pack(*fields) + body)
            at = end
        return b"".join(out) + reply[at:]
