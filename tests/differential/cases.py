"""The scripts. A case is a name and parts; each part goes over a connection of its own, text or binary.

A part's script may be a function of a stamp getter, for what needs a current stamp. To every part a harmless last
command is added, whose reply shows whether the server kept the connection."""

import struct

from meta_cases import late_scripts, meta_scripts, scripts_that_differ
from wire import packet

ITEM_BYTES_MAX = 16 << 20  # What both servers are started with.
LONG_KEY = b"k" * 250
TOO_LONG_KEY = b"k" * 251


class Case:
    def __init__(self, name, *parts, binary=False, stats=False):
        self.name, self.parts, self.binary, self.stats = name, parts, binary, stats


def text(name, *parts):
    return Case("text: " + name, *parts)


def binary(name, *parts):
    return Case("binary: " + name, *parts, binary=True)


def storage_cases():
    have = b"set a 7 0 3\r\nabc\r\n"
    look = b"get a\r\nget b\r\n"
    for verb in (b"set", b"add", b"replace", b"append", b"prepend", b"cas"):
        name = verb.decode()
        cas = b" 1" if verb == b"cas" else b""

        def line(key=b"a", flags=b"5", exptime=b"0", length=b"2", tail=b"", verb=verb, cas=cas):
            return b" ".join([verb, key, flags, exptime, length]) + cas + tail + b"\r\n"

        value = b"xy\r\n"
        scripts = {
            "a key that is there": have + line() + value,
            "a key that is not": line() + value,
            "noreply, there": have + line(tail=b" noreply") + value,
            "noreply, not there": line(tail=b" noreply") + value,
            "noreply misspelt": have + line(tail=b" norepl") + value,
            "no value": have + line(length=b"0") + b"\r\n",
            "a value with line ends": have + line(length=b"6") + b"x\r\ny\r\n\r\n",
            "a value with a NUL": have + line(length=b"3") + b"x\0y\r\n",
            "a key of 250 bytes": line(key=LONG_KEY) + value + b"get " + LONG_KEY + b"\r\n",
            "a key of 251 bytes": line(key=TOO_LONG_KEY) + value,
            "a key of 251 bytes, noreply": line(key=TOO_LONG_KEY, tail=b" noreply") + value,
            "a key of 1900 bytes": line(key=b"k" * 1900) + value,
            "flags at the limit": line(flags=b"4294967295") + value,
            "flags negative": line(flags=b"-1") + value,
            "flags no number": line(flags=b"x") + value,
            "flags hexadecimal": line(flags=b"0x10") + value,
            "flags with a plus": line(flags=b"+3") + value,
            "flags and a tab": line(flags=b"1\t2") + value,
            "flags fractional": line(flags=b"1.5") + value,
            "exptime no number": line(exptime=b"x") + value,
            "exptime negative": have + line(exptime=b"-1") + value,
            "exptime least": have + line(exptime=b"-2147483648") + value,
            "exptime long past": have + line(exptime=b"2592001") + value,
            "exptime far": have + line(exptime=b"2147483647") + value,
            "exptime -1 in 32 bits": have + line(exptime=b"4294967295") + value,
            "exptime empty": verb + b" a 5  2" + cas + b"\r\n" + value,
            "length negative": have + line(length=b"-1") + value,
            "length very negative": have + line(length=b"-2147483648") + value,
            "length no number": have + line(length=b"abc") + value,
            "length no number, noreply": have + line(length=b"abc", tail=b" noreply") + value,
            "length near 2^31": have + line(length=b"2147483646") + value,
            "length 2^31-1": have + line(length=b"2147483647") + value,
            "length with a plus": have + line(length=b"+2") + value,
            "value too short": have + line(length=b"6") + value,
            "value too long": have + line(length=b"1") + value,
            "value too long, noreply": have + line(length=b"1", tail=b" noreply") + value,
            "value ended by two line feeds": have + line() + b"xy\n\n",
            "value ended by a line feed": have + line() + b"xy\n",
            "line ended by a line feed": have + line().replace(b"\r\n", b"\n") + value,
            "too few words": have + verb + b" a 0 0\r\nxy\r\n",
            "one word": have + verb + b"\r\n",
            "two words": have + verb + b" a\r\n",
            "too many words": have + line(tail=b" noreply more") + value,
            "spaces between": have + line().replace(b" ", b"   ") + value,
            "spaces around": have + b"  " + line(tail=b"  ") + value,
            "upper case": have + line(verb=verb.upper()) + value,
            "a key with control bytes": line(key=b"a\x01\x7f\tb") + value + b"get a\x01\x7f\tb\r\n",
            "a key of high bytes": line(key=b"\xff\xfe\x80") + value + b"get \xff\xfe\x80\r\n",
            "a key with a carriage return": line(key=b"a\rb") + value + b"get a\rb\r\n",
            "a NUL in the line": line(key=b"a\0b") + value,
            "an item over the limit": have + line(length=b"%d" % (ITEM_BYTES_MAX + 1))
            + b"x" * (ITEM_BYTES_MAX + 1) + b"\r\n",
            "an item over the limit, noreply": have + line(length=b"%d" % (ITEM_BYTES_MAX + 1), tail=b" noreply")
            + b"x" * (ITEM_BYTES_MAX + 1) + b"\r\n",
        }
        for what, script in scripts.items():
            yield text(f"{name}: {what}", script, look)
        yield text(f"{name}: value cut off", have, line(length=b"100") + b"x", look)
    for what, number in {"0": b"0", "negative": b"-1", "no number": b"x", "2^64": b"18446744073709551616"}.items():
        yield text(f"cas: stamp {what}", have + b"cas a 0 0 1 " + number + b"\r\nx\r\n", look)
    for tail in (b"", b" noreply"):
        name = f"cas: the current stamp{tail.decode()}"
        yield text(name, have, lambda stamp, tail=tail: b"cas a 9 0 1 %d%s\r\nx\r\ngets a\r\n" % (stamp(b"a"), tail))
        name = f"cas: an outdated stamp{tail.decode()}"
        yield text(name, have, lambda stamp, tail=tail: b"set a 0 0 1\r\ny\r\ncas a 9 0 1 %d%s\r\nx\r\nget a\r\n"
                   % (stamp(b"a"), tail))
        name = f"cas: a stamp used twice{tail.decode()}"
        yield text(name, have, lambda stamp, tail=tail: (b"cas a 9 0 1 %d%s\r\nx\r\n" % (stamp(b"a"), tail)) * 2)
    for length in (1, 1023, 65536, 1 << 20, 10 << 20):
        yield text(f"set: {length} bytes", b"set a 0 0 %d\r\n" % length + bytes(range(256)) * (length // 256)
                   + b"z" * (length % 256) + b"\r\n", b"gets a\r\n")
    yield text("set: many at once", b"".join(b"set k%d %d 0 4\r\n%04d\r\n" % (i, i, i) for i in range(2000)),
               b"get " + b" ".join(b"k%d" % i for i in range(2000)) + b"\r\n")
    yield text("append: flags and stamp", have, b"gets a\r\nappend a 9 0 1\r\nd\r\ngets a\r\n")
    yield text("append: over the item limit", b"set a 0 0 %d\r\n" % (9 << 20) + b"x" * (9 << 20) + b"\r\n",
               b"append a 0 0 %d\r\n" % (9 << 20) + b"x" * (9 << 20) + b"\r\n", b"incr a 1\r\n")


def retrieval_cases():
    have = b"set a 1 0 1\r\nx\r\nset b 2 0 2\r\nyy\r\nset c 3 0 0\r\n\r\n"
    ten_thousand = b" ".join(b"key%d" % i for i in range(10000))
    scripts = {
        "one": b"get a\r\n", "absent": b"get z\r\n", "several": b"get a z b c\r\n", "the same": b"get a a a\r\n",
        "gets one": b"gets a\r\n", "gets several": b"gets a z b c\r\n", "gets again": b"gets a\r\ngets a\r\n",
        "no key": b"get\r\n", "no key but a space": b"get \r\n", "gets no key": b"gets\r\n", "bget": b"bget a b\r\n",
        "bget no key": b"bget\r\n", "upper case": b"GET a\r\n", "a tab": b"get\ta\r\n", "line feed only": b"get a\n",
        "two carriage returns": b"get a\r\r\n", "a carriage return inside": b"get a\rb\r\n",
        "spaces": b"  get   a   b  \r\n", "300 spaces before": b" " * 300 + b"get a\r\n",
        "1900 spaces after": b"get a" + b" " * 1900 + b"\r\n", "a key of 250 bytes": b"get " + LONG_KEY + b"\r\n",
        "a key of 251 bytes": b"get " + TOO_LONG_KEY + b"\r\n",
        "a long key after a good one": b"get a " + TOO_LONG_KEY + b" b\r\n",
        "a long key after thirty": b"get " + b"a " * 30 + TOO_LONG_KEY + b"\r\n",
        "gets with a long key": b"gets a " + TOO_LONG_KEY + b"\r\n", "control bytes": b"get a\x01 \x02\r\n",
        "thirty keys": b"get " + b" ".join([b"a", b"z", b"b"] * 10) + b"\r\n",
        "ten thousand keys": b"get " + ten_thousand + b"\r\n",
        "ten thousand keys with stamps": b"gets " + ten_thousand + b" a\r\n", "a cut-off line": b"get a",
        "noreply is a key": b"get noreply\r\n",
        "noreply is a key to delete": b"delete noreply\r\n",
        "gat": b"gat 100 a\r\n", "gat several": b"gat 100 a z b\r\n", "gats": b"gats 100 a z b\r\n",
        "gat no key": b"gat 100\r\n", "gat nothing": b"gat\r\n", "gats nothing": b"gats\r\n",
        "gat no number": b"gat x a\r\n", "gat without exptime": b"gat a\r\n", "gat a long key": b"gat 1 a "
        + TOO_LONG_KEY + b"\r\n", "gat into the past": b"gat -1 a\r\nget a\r\n", "gat for ever": b"gat 0 a\r\nget a\r\n",
        "gat -1 in 32 bits": b"gat 4294967295 a\r\nget a\r\n", "touch -1 in 32 bits": b"touch a 4294967295\r\nget a\r\n",
        "flush_all -1 in 32 bits": b"flush_all 4294967295\r\nget a\r\n",
        "gats no number": b"gats x a\r\n",
    }
    for name, script in scripts.items():
        yield text("get: " + name, have, script)


def arithmetic_cases():
    for verb in (b"incr", b"decr"):
        name = verb.decode()
        for value in (b"0", b"1", b"10", b"99", b"100", b"18446744073709551615", b"18446744073709551616", b"-1", b"-0",
                      b"+5", b" 12", b"12 ", b"12 abc", b"12a", b"abc", b"", b"0x1", b"1.5", b"007", b"12\r\n",
                      b"00000000000000000001", b"000000000000000000001", b"0" * 30 + b"7", b"9" * 30, b"12\0", b"\t3"):
            script = b"set n 4 0 %d\r\n%s\r\n%s n 1\r\nget n\r\n%s n 95\r\nget n\r\n" % (len(value), value, verb, verb)
            yield text(f"{name}: of {value!r}", script)
        for delta in (b"0", b"1", b"18446744073709551615", b"18446744073709551616", b"-1", b"+1", b"x", b"1x", b"0x1",
                      b"1.5", b"\t1", b"-0"):
            yield text(f"{name}: by {delta!r}", b"set n 4 0 2\r\n50\r\n" + verb + b" n " + delta + b"\r\nget n\r\n")
        scripts = {
            "absent": verb + b" z 1\r\n", "absent, noreply": verb + b" z 1 noreply\r\n",
            "noreply": verb + b" n 1 noreply\r\nget n\r\n", "another word": verb + b" n 1 more\r\nget n\r\n",
            "too many words": verb + b" n 1 noreply more\r\n", "no delta": verb + b" n\r\n", "nothing": verb + b"\r\n",
            "a long key": verb + b" " + TOO_LONG_KEY + b" 1\r\n",
            "a long key, noreply": verb + b" " + TOO_LONG_KEY + b" 1 noreply\r\n",
            "bad delta, noreply": verb + b" n x noreply\r\n", "stamps": b"gets n\r\n" + verb + b" n 1\r\ngets n\r\n",
        }
        for what, script in scripts.items():
            yield text(f"{name}: {what}", b"set n 4 0 2\r\n50\r\n" + script)
    yield text("incr: a large value", b"set n 0 0 600000\r\n" + b"1" * 600000 + b"\r\nincr n 1\r\n")


def other_text_cases():
    have = b"set a 1 0 1\r\nx\r\n"
    lines = [
        b"delete a", b"delete z", b"delete a 0", b"delete a 1", b"delete a noreply", b"delete a 0 noreply",
        b"delete a 1 noreply", b"delete a x noreply", b"delete a x", b"delete", b"delete a 0 noreply x",
        b"delete " + TOO_LONG_KEY, b"delete " + TOO_LONG_KEY + b" noreply", b"delete " + TOO_LONG_KEY + b" 1",
        b"touch a 100", b"touch z 100", b"touch a -1", b"touch a 0", b"touch a x", b"touch a x noreply",
        b"touch a 100 noreply", b"touch a 100 more", b"touch a", b"touch", b"touch a 1 noreply x",
        b"touch " + TOO_LONG_KEY + b" 1", b"touch " + TOO_LONG_KEY + b" x", b"flush_all", b"flush_all 0",
        b"flush_all noreply", b"flush_all 0 noreply", b"flush_all x", b"flush_all x noreply", b"flush_all -1",
        b"flush_all 1 2 3", b"flush_all noreply 0", b"flush_all noreply noreply", b"flush_all 1.5", b"verbosity",
        b"verbosity 0", b"verbosity 1\r\nverbosity 0", b"verbosity noreply", b"verbosity 0 noreply", b"verbosity x",
        b"verbosity x y", b"verbosity 0 1", b"verbosity 0 1 2", b"verbosity -1", b"version", b"version x",
        b"version noreply", b"versio", b"quit", b"quit x", b"get a\r\nquit\r\nget a", b"stats x", b"stats noreply",
        b"stats reset", b"stats reset x", b"stats  reset", b"stat", b"", b" ", b"   ", b"\r", b"x",
        b"stats detail off", b"stats detail", b"stats detail foo", b"stats cachedump 1", b"stats cachedump a b",
        b"stats cachedump 99 1", b"lru_crawler", b"lru_crawler foo", b"lru_crawler metadump", b"lru_crawler metadump 99",
        b"lru_crawler metadump foo", b"watch foo", b"watch fetchers foo",
        b"cache_memlimit", b"cache_memlimit 1024", b"cache_memlimit 1024 noreply", b"cache_memlimit 1024 x",
        b"cache_memlimit 1024 x noreply", b"cache_memlimit x", b"cache_memlimit -1", b"cache_memlimit 0",
        b"cache_memlimit 7", b"cache_memlimit 7 noreply", b"cache_memlimit 1000000001",
        b"get", b"g", b"s", b"foo bar", b"foo bar baz 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25",
        b"quitx", b"statsx", b"getx a", b"\x81\x82", b"\xff" * 100, b"\x01", b"x" * 1000, b"x" * 2046,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", b"POST / HTTP/1.0\r\nContent-Length: 3\r\n\r\nabc",
        b"HEAD / HTTP/1.1", b"GET / HTTP/1.1 x", b"x / HTTP/1.1", b"GET /", b"get HTTP/1.1", b"get a HTTP/1.1",
        b"extstore", b"debug", b"misbehave",
    ]
    for line in lines:
        shown = repr(line if len(line) < 60 else line[:20] + b"..." + line[-10:])[1:]
        yield text(f"{shown} ({len(line)})", have, line + b"\r\n", b"get a\r\n")
    yield text("a megabyte without a line end", b"x" * (1 << 20), b"version\r\n")
    yield text("a line of 100000 bytes", b"x" * 100000 + b"\r\n", b"version\r\n")
    yield text("half a command and silence", have, b"set a 0 0 10\r\nabc", b"get a\r\n")
    yield text("a pipeline", have + b"get a\r\nset a 0 0 1 noreply\r\ny\r\nget a\r\nincr a 1\r\ndelete a noreply\r\n"
               b"get a\r\nadd a 0 0 1\r\n5\r\nincr a 1\r\nfoo\r\ngets a\r\nflush_all\r\nget a\r\n")
    yield text("flush_all between others", have + b"get a\r\nflush_all\r\nget a\r\nset a 0 0 1\r\ny\r\nget a\r\n")
    yield text("binary after text", b"get a\r\n" + packet(0x0A) + b"\r\n", b"version\r\n")
    counted = (b"cmd_get", b"cmd_set", b"cmd_flush", b"cmd_touch", b"get_hits", b"get_misses", b"delete_hits",
               b"delete_misses", b"incr_hits", b"incr_misses", b"decr_hits", b"decr_misses", b"cas_hits", b"cas_misses",
               b"cas_badval", b"touch_hits", b"touch_misses", b"store_too_large")
    case = text("stats: the counters of a session", b"stats reset\r\n" + have + b"get a\r\nget z\r\nget a z a\r\n"
                b"set b 0 0 1\r\n5\r\nadd b 0 0 1\r\n6\r\nincr b 1\r\nincr z 1\r\nincr a 1\r\ndecr b 1\r\ndecr z 1\r\n"
                b"delete z\r\ndelete b\r\ncas z 0 0 1 5\r\nx\r\ncas a 0 0 1 0\r\nx\r\ntouch a 100\r\ntouch z 100\r\n"
                b"gat 100 a z\r\nappend a 0 0 1\r\nx\r\nreplace z 0 0 1\r\nx\r\nflush_all\r\nstats\r\n")
    case.stats = counted
    yield case
    case = text("stats settings: what both know", b"stats settings\r\n")
    # Not udpport: of the two only ours has UDP on, for the datagrams that are compared later.
    case.stats = (b"maxconns", b"inter", b"verbosity", b"domain_socket", b"umask",
                  b"cas_enabled", b"binding_protocol", b"auth_enabled_sasl", b"auth_enabled_ascii", b"item_size_max",
                  b"maxconns_fast", b"flush_enabled")
    yield case


def u32(*values):
    return struct.pack(f">{len(values)}I", *values)


def counter(delta, initial=0, exptime=0):
    return struct.pack(">QQI", delta, initial, exptime)


NOOP = packet(0x0A)


def binary_cases():
    have = packet(0x01, b"a", u32(5, 0), b"val") + packet(0x01, b"n", u32(6, 0), b"10")
    look = packet(0x0C, b"a") + packet(0x0C, b"b") + packet(0x0C, b"n")
    extras = {"set": u32(9, 0), "add": u32(9, 0), "replace": u32(9, 0), "append": b"", "prepend": b""}
    codes = {"set": (0x01, 0x11), "add": (0x02, 0x12), "replace": (0x03, 0x13), "append": (0x0E, 0x19),
             "prepend": (0x0F, 0x1A)}
    for name, both in codes.items():
        for code, quiet in zip(both, ("", "q")):
            ext = extras[name]
            scripts = {
                "there": packet(code, b"a", ext, b"xy"), "absent": packet(code, b"b", ext, b"xy"),
                "no value": packet(code, b"a", ext), "no value, absent": packet(code, b"b", ext),
                "a wrong stamp": packet(code, b"a", ext, b"xy", stamp=1 << 60),
                "a wrong stamp, absent": packet(code, b"b", ext, b"xy", stamp=1 << 60),
                "no key": packet(code, b"", ext, b"xy"), "too few extras": packet(code, b"a", ext[:4] or b"x", b"xy"),
                "a key of 250 bytes": packet(code, LONG_KEY, ext, b"xy") + packet(0, LONG_KEY),
                "a key of 251 bytes": packet(code, TOO_LONG_KEY, ext, b"xy"),
                "another data type": packet(code, b"a", ext, b"xy", data_type=1),
                "twice": packet(code, b"b", ext, b"1") + packet(code, b"b", ext, b"2"),
                "over the limit": packet(code, b"a", ext, b"x" * (ITEM_BYTES_MAX + 1)),
                "a body of 4 GiB": packet(code, b"a", ext, b"xy", body_bytes=0xFFFFFFFF),
                "value cut off": packet(code, b"a", ext, b"xy", body_bytes=1000),
                "the current stamp": lambda stamp, code=code, ext=ext:
                    packet(code, b"a", ext, b"xy", stamp=stamp(b"a")) + packet(0, b"a"),
            }
            for what, script in scripts.items():
                yield binary(f"{name}{quiet}: {what}", have, script, look)
    for name, code, ext in (("get", 0x00, b""), ("getq", 0x09, b""), ("getk", 0x0C, b""), ("getkq", 0x0D, b""),
                            ("touch", 0x1C, u32(100)), ("gat", 0x1D, u32(100)), ("gatq", 0x1E, u32(100)),
                            ("gatk", 0x23, u32(100)), ("gatkq", 0x24, u32(100)), ("delete", 0x04, b""),
                            ("deleteq", 0x14, b"")):
        scripts = {
            "there": packet(code, b"a", ext), "absent": packet(code, b"b", ext), "no key": packet(code, b"", ext),
            "a key of 250 bytes": packet(code, LONG_KEY, ext), "a key of 251 bytes": packet(code, TOO_LONG_KEY, ext),
            "extras too short": packet(code, b"a", ext[:2]), "extras too long": packet(code, b"a", ext + b"x"),
            "another opaque": packet(code, b"a", ext, opaque=1), "several": packet(code, b"a", ext)
            + packet(code, b"b", ext) + packet(code, b"n", ext), "a key with a NUL": packet(code, b"\0", ext),
            "a wrong stamp": packet(code, b"a", ext, stamp=1 << 60),
        }
        if not ext:
            scripts["with a value"] = packet(code, b"a", ext, b"xy")
        for what, script in scripts.items():
            yield binary(f"{name}: {what}", have, script, look)
    yield binary("delete: the current stamp", have, lambda stamp: packet(0x04, b"a", stamp=stamp(b"a")), look)
    for name, code in (("set", 0x01), ("add", 0x02), ("replace", 0x03), ("setq", 0x11)):
        for key in (b"a", b"b"):
            yield binary(f"{name}: all ones, {key.decode()}", have, packet(code, key, u32(9, 0xFFFFFFFF), b"xy"), look)
    for name, code in (("touch", 0x1C), ("gat", 0x1D), ("gatk", 0x23)):
        yield binary(f"{name}: into the past", have, packet(code, b"a", u32(2592001)), look)
        yield binary(f"{name}: all ones", have, packet(code, b"a", u32(0xFFFFFFFF)), look)
    for name, code in (("increment", 0x05), ("decrement", 0x06), ("incrementq", 0x15), ("decrementq", 0x16)):
        scripts = {
            "there": packet(code, b"n", counter(3)), "absent": packet(code, b"b", counter(3, 77)),
            "absent, then there": packet(code, b"b", counter(3, 77)) + packet(code, b"b", counter(3, 77)),
            "absent, not to be made": packet(code, b"b", counter(3, 77, 0xFFFFFFFF)),
            "no number": packet(code, b"a", counter(1)), "by the largest": packet(code, b"n", counter(2 ** 64 - 1)),
            "by nothing": packet(code, b"n", counter(0)), "a large initial": packet(code, b"b", counter(1, 2 ** 64 - 1)),
            "too few extras": packet(code, b"n", b"\0" * 8), "no extras": packet(code, b"n"),
            "with a value": packet(code, b"n", counter(1), b"x"), "no key": packet(code, b"", counter(1)),
            "a key of 251 bytes": packet(code, TOO_LONG_KEY, counter(1)),
            "a wrong stamp": packet(code, b"n", counter(1), stamp=1 << 60),
            "a stamp, absent": packet(code, b"b", counter(1, 5), stamp=1 << 60),
            "the current stamp": lambda stamp, code=code: packet(code, b"n", counter(1), stamp=stamp(b"n")),
            "initial long past": packet(code, b"b", counter(1, 5, 2592001)),
        }
        for what, script in scripts.items():
            yield binary(f"{name}: {what}", have, script, look)
    bare = {"noop": 0x0A, "version": 0x0B, "quit": 0x07, "quitq": 0x17, "flush": 0x08, "flushq": 0x18,
            "sasl list": 0x20}
    for name, code in bare.items():
        yield binary(f"{name}", have, packet(code), look)
        yield binary(f"{name}: with a key", have, packet(code, b"a"), look)
        yield binary(f"{name}: with a value", have, packet(code, value=b"v"), look)
        yield binary(f"{name}: with extras", have, packet(code, extras=b"e"), look)
    for name, code in (("flush", 0x08), ("flushq", 0x18)):
        yield binary(f"{name}: delay 0", have, packet(code, extras=u32(0)), look)
        yield binary(f"{name}: 8 bytes of extras", have, packet(code, extras=u32(0, 0)), look)
    yield binary("sasl auth", have, packet(0x21, b"PLAIN", value=b"\0a\0b"), look)
    yield binary("sasl auth: no key", have, packet(0x21, value=b"x"), look)
    yield binary("sasl auth: with extras", have, packet(0x21, b"PLAIN", b"e", b"x"), look)
    yield binary("sasl step", have, packet(0x22, b"PLAIN"), look)
    for argument in (b"reset", b"foo", b"noreply"):
        yield binary(f"stat {argument.decode()}", have, packet(0x10, argument), look)
    yield binary("stat: detail", packet(0x10, b"reset") + packet(0x10, b"detail on")
                 + packet(0x01, b"p:a", u32(0, 0), b"v") + packet(0x00, b"p:a") + packet(0x00, b"p:b") + packet(0x04, b"p:a"),
                 packet(0x10, b"detail dump") + packet(0x10, b"detail off") + packet(0x10, b"detail foo"))
    yield binary("stat: with extras", have, packet(0x10, b"reset", b"e"), look)
    for code in (0x1B, 0x1F, 0x25, 0x30, 0x3D, 0x50, 0x7F, 0xFF):
        yield binary(f"unknown {code:#04x}", packet(code), look)
        yield binary(f"unknown {code:#04x} with a value", packet(code, value=b"hello"), look)
    lies = {
        "key longer than body": packet(0x00, b"a" * 50, body_bytes=1),
        "extras longer than body": packet(0x01, b"a" * 9, u32(0, 0), body_bytes=9),
        "key and extras longer than body": packet(0x01, b"a", u32(0, 0), body_bytes=8),
        "no body for a key": packet(0x00, b"a", body_bytes=0),
        "key of 65535 bytes": packet(0x00, b"a" * 65535),
        "extras of 255 bytes": packet(0x00, b"a", b"e" * 255),
        "header cut off": packet(0x00, b"a")[:20],
        "another magic after a good one": packet(0x0A) + packet(0x0A, magic=0x81),
        "text after binary": packet(0x0A) + b"get a\r\n" + b" " * 17,
        "text after binary, short": packet(0x0A) + b"get a\r\n",
    }
    for name, script in lies.items():
        yield binary(name, have, script, look)
    yield binary("quiet gets and a noop", have, packet(0x09, b"a") + packet(0x09, b"b") + packet(0x0D, b"n")
                 + packet(0x0D, b"b") + NOOP)
    yield binary("many quiet sets", b"".join(packet(0x11, b"k%d" % i, u32(i, 0), b"%04d" % i) for i in range(2000)) + NOOP,
                 b"".join(packet(0x0D, b"k%d" % i) for i in range(2001)) + NOOP)
    for length in (65536, 1 << 20, 10 << 20):
        yield binary(f"set: {length} bytes", packet(0x01, b"a", u32(1, 0), b"\x80" * length), look)
    yield binary("append: over the item limit", packet(0x01, b"a", u32(1, 0), b"x" * (9 << 20)),
                 packet(0x0E, b"a", value=b"x" * (9 << 20)), packet(0x05, b"a", counter(1)))


def cases_that_differ():
    """What is known to differ, so that both sides stay pinned."""
    have = b"set a 1 0 1\r\nx\r\n"
    look = b"get a\r\n"
    value = b"\r\nxy\r\n"
    yield text("differs: flags of 33 bits", have, b"set a 4294967296 0 2" + value, look)
    yield text("differs: exptime of 33 bits", have, b"set a 0 4294967296 2" + value, look)
    yield text("differs: exptime under 32 bits", have, b"set a 0 -2147483649 2" + value, look)
    yield text("differs: exptime after 2038", have, b"set a 0 2147483648 2" + value, look)
    yield text("differs: length of 40 bits", have, b"set a 0 0 1099511627778" + value, look)
    yield text("differs: length of 70 digits", have, b"set a 0 0 " + b"9" * 70 + value, look)
    yield text("differs: a NUL in a get", have, b"get a\0b\r\n")
    yield text("differs: a line of 10000 bytes", have, b"x" * 10000 + b"\r\n")
    yield text("differs: gat of ten thousand keys", b"gat 0 " + b" ".join(b"key%d" % i for i in range(10000)) + b"\r\n")
    yield text("differs: replies before a hang-up", have + b"GET / HTTP/1.1\r\n")
    for line in (b"stats items", b"stats slabs",
                 b"stats sizes", b"slabs automove 1", b"lru mode flat", b"lru_crawler crawl 1",
                 b"shutdown", b"refresh_certs"):
        yield text(f"differs: {line.decode().split(chr(13))[0]}", have, line + b"\r\n")
    for name, parts in scripts_that_differ():
        yield Case("meta differs: " + name, *parts)
    have = packet(0x01, b"a", u32(5, 0), b"val")
    for name, code in (("touch", 0x1C), ("gat", 0x1D), ("gatkq", 0x24)):
        yield binary(f"differs: {name} with a value", have, packet(code, b"a", u32(0), b"xy" * 20))
    yield binary("differs: stat with a value", have, packet(0x10, b"reset", value=b"xy" * 20))
    yield binary("differs: unknown with a key", have, packet(0x50, b"key", b"", b"value"))
    yield binary("differs: unknown with a key too long", have, packet(0x50, TOO_LONG_KEY))


def late_cases():
    """First parts, then, after the wait, the last: what time does to items. All run together."""
    def late(name, first, last=None, binary=False):
        return Case("late: " + name, first, last or b"get %s\r\n", binary=binary)

    yield late("a second", b"set %s 0 1 1\r\nx\r\nget %s\r\n")
    yield late("an hour", b"set %s 0 3600 1\r\nx\r\n")
    yield late("touched down", b"set %s 0 3600 1\r\nx\r\ntouch %s 1\r\nget %s\r\n")
    yield late("touched up", b"set %s 0 1 1\r\nx\r\ntouch %s 3600\r\nget %s\r\n")
    yield late("gat down", b"set %s 0 0 1\r\nx\r\ngat 1 %s\r\n")
    yield late("gat up", b"set %s 0 1 1\r\nx\r\ngat 0 %s\r\n")
    yield late("add after expiry", b"set %s 0 1 1\r\nx\r\n", b"add %s 0 0 1\r\ny\r\nget %s\r\n")
    yield late("replace after expiry", b"set %s 0 1 1\r\nx\r\n", b"replace %s 0 0 1\r\ny\r\nget %s\r\n")
    yield late("append after expiry", b"set %s 0 1 1\r\nx\r\n", b"append %s 0 0 1\r\ny\r\nget %s\r\n")
    yield late("incr after expiry", b"set %s 0 1 1\r\n5\r\n", b"incr %s 1\r\nget %s\r\n")
    yield late("delete after expiry", b"set %s 0 1 1\r\n5\r\n", b"delete %s\r\n")
    yield late("cas after expiry", b"set %s 0 1 1\r\n5\r\n", b"cas %s 0 0 1 1\r\nx\r\n")
    yield late("touch after expiry", b"set %s 0 1 1\r\n5\r\n", b"touch %s 0\r\nget %s\r\n")
    yield late("incr keeps the expiry", b"set %s 0 1 1\r\n5\r\nincr %s 1\r\n")
    yield late("append keeps the expiry", b"set %s 0 1 1\r\n5\r\nappend %s 0 0 1\r\n6\r\n")
    for name, first, last in late_scripts():
        yield late("meta: " + name, first, last)
    yield late("cas sets another", b"set %s 0 1 1\r\n5\r\nset %s 0 0 1\r\n6\r\n")


def meta_cases():
    for name, parts in meta_scripts():
        yield Case("meta: " + name, *parts)
    counted = (b"cmd_get", b"cmd_set", b"cmd_touch", b"cmd_meta", b"get_hits", b"get_misses", b"delete_hits", b"delete_misses",
               b"incr_hits", b"incr_misses", b"decr_hits", b"decr_misses", b"cas_hits", b"cas_misses", b"cas_badval", b"touch_hits",
               b"touch_misses", b"store_too_large")
    case = Case("meta: stats: the counters of a session", b"stats reset\r\nms a 1\r\nx\r\nms n 1\r\n5\r\nms a 1 C5\r\nx\r\n"
                b"ms z 1 C5\r\nx\r\nms a 1 ME\r\nx\r\nms z 1 MA\r\nx\r\nms a 1 X\r\nx\r\nms a 1 I C1\r\nx\r\nmg a v\r\nmg z q\r\n"
                b"mg a T30\r\nmg z T30\r\nmg y N30\r\nmg y N30 q\r\nmg a X\r\nmd y\r\nmd y\r\nmd a I\r\nmd z I\r\nmd a C5\r\nma n\r\n"
                b"ma n MD\r\nma z\r\nma z MD\r\nma x N0\r\nma x C5\r\nma a\r\nme a\r\nme z\r\nmn\r\nstats\r\n")
    case.stats = counted
    yield case


def all_cases():
    for cases in (storage_cases, retrieval_cases, arithmetic_cases, other_text_cases, meta_cases, binary_cases, cases_that_differ):
        yield from cases()
