"""The scripts of the meta commands, as `cases.py` has those of the others. Where a case shows stamps after the item was
touched or leased, its name says so: see STAMPS_ALIKE in `allowed.py`."""

import random

LONG_KEY = b"k" * 250
TOO_LONG_KEY = b"k" * 251
LONG_OPAQUE = b"O" + b"o" * 31
TOO_LONG_OPAQUE = b"O" + b"o" * 32
HAVE = b"set a 7 100 2\r\nhi\r\nset n 3 0 2\r\n50\r\n"
# Every flag that any command knows, with a token where it takes one.
FLAGS = (b"b", b"c", b"f", b"h", b"k", b"l", b"s", b"t", b"u", b"v", b"q", b"I", b"Oopaque", b"Ppath", b"Llocal", b"C1",
         b"C%d" % (1 << 60), b"D5", b"F5", b"J5", b"MS", b"MI", b"MD", b"N30", b"R30", b"T30")
BAD_FLAGS = (b"a", b"A", b"S2", b"K", b"!", b"0", b"-", b"\x01", b"\x7f", b"\xff", b"noreply", b"v v", b"q q", b"Oa Ob",
             b"P P", b"T5 T6", b"N", b"Nx", b"N1x", b"R", b"Rx", b"T", b"Tx", b"T1x", b"C", b"Cx", b"C-1", b"F", b"Fx", b"F-1",
             b"J", b"Jx", b"J-1", b"J18446744073709551616", b"D", b"Dx", b"D-1", b"D18446744073709551616", b"M", b"MX",
             b"MXX", b"Me", b"Tx Jx", b"Jx Tx", b"Jx Fx", b"Fx Tx", b"Tx v v", b"Tx a", b"Tx MX", TOO_LONG_OPAQUE + b" MX",
             b"MX " + TOO_LONG_OPAQUE)
BASE64_KEYS = (b"Zm9v", b"aaaa", b"aaa=", b"aa==", b"a===", b"====", b"a", b"aa", b"aaa", b"aaaaa", b"aa!a!a", b"a!aaa",
               b"aaaaaaa=", b"aaa=aaaa", b"aaaa====", b"aa=a", b"ab=c", b"a-_a", b"AAAA", b"IAoN", b"A" * 248, b"A" * 250,
               b"A" * 252)


def meta_scripts():
    """Names and parts."""
    yield from syntax()
    yield from gets()
    yield from sets()
    yield from deletes()
    yield from arithmetic()
    yield from leases()
    yield from keys_in_base64()
    yield from others()
    for seed in range(120):
        yield f"a random sequence, touched or leased: {seed}", (sequence(random.Random(seed)),)


def line(verb, flags, key=b"a"):
    """A command with its value, if it is a set."""
    return (b"ms %s 2 %s\r\nxy\r\n" if verb == b"ms" else verb + b" %s %s\r\n") % (key, flags)


def syntax():
    look = b"mg a v t f\r\nmg n v\r\n"
    for verb in (b"mg", b"ms", b"md", b"ma", b"me"):
        name = verb.decode()
        for flag in FLAGS:
            for key in (b"a", b"n", b"z"):
                yield f"{name}: {flag.decode()} of {key.decode()}, touched or leased", (HAVE, line(verb, flag, key), look)
        for flag in BAD_FLAGS:
            yield f"{name}: {flag!r}", (HAVE, line(verb, flag), look)
            yield f"{name}: {flag!r}, absent", (line(verb, flag, b"z"), look)
        words = b" ".join(flag[:1] for flag in FLAGS if flag[:1] not in b"bCDFJMNRT")
        for count in (14, 15, 16, 17, 18, 19, 22, 23, 24, 25, 40):
            flags = (words.split(b" ") + [b"D1", b"J1", b"F1", b"T0", b"N0", b"C1"] + [b"z"] * 40)[:count]
            yield f"{name}: {count} flags, touched or leased", (HAVE, line(verb, b" ".join(flags)), look)
        for key, what in ((LONG_KEY, "250 bytes"), (TOO_LONG_KEY, "251 bytes"), (b"k" * 1900, "1900 bytes"),
                          (b"a\x01\x7f\tb", "control bytes"), (b"\xff\xfe", "high bytes"), (b"a\rb", "a carriage return")):
            yield f"{name}: a key of {what}", (line(verb, b"k", key), line(verb, b"k v", key))
            yield f"{name}: a key of {what}, a bad flag", (line(verb, b"X", key),)
        for opaque in (b"O", LONG_OPAQUE, TOO_LONG_OPAQUE, b"O\x01\xff"):
            yield f"{name}: opaque {opaque!r}, absent", (line(verb, opaque + b" k", b"z"),)
            yield f"{name}: opaque {opaque!r}, quiet", (line(verb, b"q k " + opaque, b"z"), b"mn\r\n")
        for what, script in {"alone": verb, "with a space": verb + b" ", "upper case": verb.upper() + b" a",
                             "three letters": verb + b"x a", "a tab": verb + b"\ta", "spaces before": b"   " + verb + b" a k",
                             "spaces between": verb + b"   a    k    ", "a tab in a flag": verb + b" a k\tv",
                             "a carriage return in a flag": verb + b" a v\rk", "two carriage returns": verb + b" a v\r",
                             "a number": verb + b" a 2 k"}.items():
            yield f"{name}: {what}", (HAVE, script + b"\r\n", b"mn\r\n")
        yield f"{name}: line feed only", (HAVE, line(verb, b"k").replace(b"\r\n", b"\n", 1))
        yield f"{name}: a line of 2040 bytes", (HAVE, line(verb, b"k P" + b"p" * (2040 - 12)))


def gets():
    for flags in (b"", b"v", b"k", b"v k q", b"s v t f c h l k Oq", b"h l t", b"v t T0", b"t T50", b"T50 t", b"t T50 v",
                  b"T0 t", b"T50 h", b"h T50", b"u h", b"kfoo vbar tx s1 c1 h1 l1 f1 qx ux", b"C5 F5 I J5 D5 k", b"T+30 t",
                  b"T\t30 t", b"T30\t5 t", b"T2592000 t", b"T2592001"):
        name = flags.decode()
        marked = "touched: " if b"T" in flags else ""
        yield f"mg: {marked}{name}", (HAVE, b"mg a %s\r\n" % flags * 2 + b"mg a t h v\r\n")
        yield f"mg: {marked}{name}, absent", (b"mg z %s\r\n" % flags * 2 + b"mg z t h v\r\n",)
    yield "mg: expired by T", (HAVE, b"mg a T-1\r\nmg a\r\n")
    for command in (b"ms a 2 T%s\r\nxy", b"mg a T%s", b"mg z N%s v", b"mg a R%s v", b"md a I T%s", b"ma z N%s", b"ma a T%s"):
        name, script = command.split(b"%")[0].decode(), command % b"4294967295" + b"\r\n"
        yield f"-1 in 32 bits: {name}", (HAVE, script, b"mg a v\r\nmg z v\r\n")
    yield "mg: no value", (b"ms a 0\r\n\r\nmg a v s\r\n",)
    yield "mg: 1 MiB", (b"ms a %d\r\n" % (1 << 20) + bytes(range(256)) * 4096 + b"\r\n", b"mg a v s\r\n")
    for name, before in {"nothing": b"", "mg": b"mg a\r\n", "mg u": b"mg a u\r\n", "get": b"get a\r\n", "gats": b"gat 0 a\r\n",
                         "touch": b"touch a 0\r\n", "me": b"me a\r\n", "md I": b"md a I\r\n", "mg, md I": b"mg a\r\nmd a I\r\n",
                         "add": b"add a 0 0 1\r\nx\r\n", "append": b"append a 0 0 1\r\nx\r\n", "set": b"set a 0 0 1\r\nx\r\n",
                         "mg, append": b"mg a\r\nappend a 0 0 1\r\nx\r\n", "mg, set": b"mg a\r\nset a 0 0 1\r\nx\r\n"}.items():
        yield f"mg h: after {name}", (HAVE, before, b"mg a h\r\nmg a h\r\n")


def sets():
    look = b"mg a v t f c\r\n"
    for flags in (b"", b"c", b"k c Oq", b"Oq k c", b"q", b"q c", b"F5", b"F5 T30", b"T0", b"T-1", b"T2592001", b"T+30", b"F+3",
                  b"I", b"ME", b"MA", b"MP", b"MR", b"MS", b"ME q", b"MA q k", b"MR c", b"MA F9 T5", b"MA N30", b"MP N30", b"C5",
                  b"C5 c k Ox", b"C0", b"C0 I", b"C0 ME", b"C0 MA", b"C0 MP", b"C0 MR", b"C5 MA", b"C5 ME", b"C5 MR", b"C5 q",
                  b"s t f h l v u", b"N30 R30 J5 D5"):
        for key in (b"a", b"z"):
            command = b"ms %s 2 %s\r\nxy\r\n" % (key, flags)
            yield f"ms: {flags.decode()} of {key.decode()}", (HAVE, command, look.replace(b" a ", b" %s " % key))
    for flags in (b"C%d", b"C%d c", b"C%d I c", b"C%d ME", b"C%d MA c", b"C%d MP", b"C%d MR c", b"C%d q c"):
        for what, change in (("current", 0), ("older", -1), ("newer", 1 << 40)):
            def part(stamp, flags=flags, change=change):
                return b"ms a 2 " + flags % (stamp(b"a") + change) + b"\r\nxy\r\n"
            yield f"ms: {flags.decode()}, the {what} stamp, leased", (HAVE, part, b"mg a v c\r\n", b"mg a v\r\n")
    for what, length in {"negative": b"-1", "none": b"", "no number": b"x", "a plus": b"+2", "hexadecimal": b"0x2",
                         "with a letter": b"2x", "2^31-2": b"2147483646", "2^31-1": b"2147483647", "short": b"1",
                         "shorter by 2": b"0", "long": b"3"}.items():
        yield f"ms: length {what}", (HAVE, b"ms a %s c\r\nxy\r\n" % length, look)
        yield f"ms: length {what}, a bad flag", (HAVE, b"ms a %s X\r\nxy\r\n" % length, look)
        yield f"ms: length {what}, quiet", (HAVE, b"ms a %s q\r\nxy\r\n" % length, look)
    yield "ms: value cut off", (HAVE, b"ms a 100\r\nx", look)
    yield "ms: a bad flag and line ends in the value", (HAVE, b"ms a 10 X\r\nmn\r\nmn\r\nmn\r\n", look)
    over = (16 << 20) + 1
    for flags in (b"", b"q", b"ME", b"MR", b"C5"):
        yield f"ms: over the item limit {flags.decode()}", (HAVE, b"ms a %d %s\r\n" % (over, flags) + b"x" * over + b"\r\n", look)
    yield "ms: many quiet, and a no-op", (b"".join(b"ms k%d 4 q\r\n%04d\r\n" % (i, i) for i in range(1000)) + b"mn\r\n",
                                          b"".join(b"mg k%d v q k O%d\r\n" % (i, i) for i in range(1100)) + b"mn\r\n")


def deletes():
    look = b"mg a v t\r\nmg a v t\r\n"
    for flags in (b"", b"q", b"k Ox", b"q k Ox", b"I", b"I q", b"I k Ox", b"I T30", b"T30", b"I T0", b"I T-1", b"C5", b"C5 I",
                  b"C5 q k", b"C0", b"C0 I", b"c s t f v h l u"):
        name = flags.decode()
        yield f"md: {name}", (HAVE, b"md a %s\r\n" % flags, look)
        yield f"md: {name}, twice", (HAVE, b"md a %s\r\nmd a %s\r\nmn\r\n" % (flags, flags), look)
        yield f"md: {name}, absent", (b"md z %s\r\nmn\r\n" % flags, b"mg z\r\n")
    for flags in (b"C%d", b"C%d I", b"C%d I T30 k"):
        def part(stamp, flags=flags):
            return b"md a " + flags % stamp(b"a") + b"\r\n"
        yield f"md: {flags.decode()}, the current stamp", (HAVE, part, look)
    yield "md: I gives another stamp", (HAVE, b"mg a c\r\nmd a I\r\n", b"gets a\r\ngets a\r\n")


def arithmetic():
    look = b"mg n v t\r\nmg z v t\r\n"
    for flags in (b"", b"v", b"v k Ox", b"q", b"q v", b"t", b"t v c", b"D5 v", b"D0 v", b"MI v", b"M+ v", b"MD v", b"M- v D100",
                  b"Mi", b"Md", b"D18446744073709551615 v", b"N0", b"N30 t v", b"t N30", b"N0 J100 v", b"N30 T60 t", b"T60 N30 t",
                  b"T60 t v", b"t T60 v", b"T0 t", b"N0 q", b"N30 J18446744073709551615 v", b"C0 v", b"C5 v k Ox", b"C5 q",
                  b"C5 N0 v", b"s f h l u I v", b"T-1 v"):
        name = flags.decode()
        yield f"ma: touched: {name}", (HAVE, b"ma n %s\r\n" % flags, look)
        yield f"ma: touched: {name}, absent", (b"ma z %s\r\nma z %s\r\nmn\r\n" % (flags, flags), look)
        yield f"ma: {name}, no number", (HAVE, b"ma a %s\r\n" % flags, b"mg a v\r\n")
    for flags in (b"C%d v c", b"C%d MD t", b"C%d q"):
        def part(stamp, flags=flags):
            return b"ma n " + flags % stamp(b"n") + b"\r\n"
        yield f"ma: {flags.decode()}, the current stamp", (HAVE, part, look)
    for value in (b"0", b"9", b"99", b"18446744073709551615", b"18446744073709551616", b"-1", b" 12", b"12 ", b"abc", b"", b"007"):
        yield f"ma: of {value!r}", (b"ms n %d\r\n%s\r\nma n v\r\n" % (len(value), value), b"mg n v\r\n", b"ma n v MD D95\r\n", b"mg n v\r\n")


def leases():
    yield "lease: vivified, won by one", (b"mg a N30 v t h k c\r\n" * 3, b"mg a v t\r\nmg a\r\nget a\r\nms a 2\r\nhi\r\nmg a v\r\n")
    yield "lease: vivified in the past", (b"mg a N-1\r\nmg a\r\n",)
    yield "lease: vivified for ever", (b"mg a N0 t v\r\nmg a N0 t R50\r\n",)
    for flags in (b"t N30", b"N30 t", b"N30 T60 t", b"T60 N30 t", b"N30 R50 t", b"R50 N30", b"N30 q", b"N30 q k Ox u h", b"N30 C5"):
        yield f"lease: {flags.decode()}", (b"mg a %s\r\n" % flags * 3 + b"mg a t h\r\n",)
        yield f"lease: {flags.decode()}, there", (HAVE, b"mg a %s\r\n" % flags * 3 + b"mg a t h\r\n")
    for flags in (b"R0", b"R-1", b"R50", b"R500", b"R500 T1000 t", b"T1000 R500 t", b"T50 R500 t", b"R50 T50 t", b"R2147483647",
                  b"R500 u h", b"R500 N30"):
        yield f"lease: {flags.decode()}", (HAVE, b"mg a v %s\r\n" % flags * 3, b"mg a v\r\nmg n v %s\r\n" % flags)
    yield "lease: stale, won by one", (HAVE, b"md a I\r\n", b"mg a v h\r\n" * 3, b"md a I\r\n", b"mg a v h\r\n" * 3)
    yield "lease: stale, not won by a debug or a get", (HAVE, b"md a I\r\nme a\r\nget a\r\n", b"mg a v\r\n")
    yield "lease: invalidated while leased", (b"mg a N30\r\nmg a N30\r\nmd a I T50\r\n", b"mg a t\r\nmg a t\r\n")
    ends = {"set": b"set a 0 0 1\r\nx\r\n", "ms": b"ms a 1\r\nx\r\n", "append": b"append a 0 0 1\r\nx\r\n", "ms MA": b"ms a 1 MA\r\nx\r\n",
            "ms ME": b"ms a 1 ME\r\nx\r\n", "replace": b"replace a 0 0 1\r\nx\r\n", "md": b"md a\r\n", "delete": b"delete a\r\n",
            "touch": b"touch a 100\r\n", "gat": b"gat 100 a\r\n", "mg T": b"mg a T100\r\n", "flush_all": b"flush_all\r\n"}
    for name, end in ends.items():
        yield f"lease: {name} on a stale item", (HAVE, b"md a I\r\n" + end, b"mg a v\r\nmg a v\r\n")
        yield f"lease: {name} on a leased item", (b"mg a N100\r\n" + end, b"mg a v\r\nmg a v R500\r\nmg a v R500\r\n")
        yield f"lease: {name} on one both stale and leased", (HAVE, b"md a I\r\nmg a\r\n" + end, b"mg a v\r\nmg a v\r\n")

    def again(flags, change=0):
        return lambda stamp: b"ms a 2 " + flags % (stamp(b"a") + change) + b"\r\nxy\r\n"
    yield "lease: set under the winner's stamp", (b"mg a N30\r\n", again(b"C%d c"), b"mg a v\r\n")
    yield "lease: set under an older stamp", (b"mg a N30\r\nmd a I\r\n", again(b"C%d I T500", -1), b"mg a v t\r\nmg a v t\r\n")
    yield "lease: set under an older stamp, leased", (HAVE, b"md a I\r\nmg a\r\n", again(b"C%d I T500", -1), b"mg a v t\r\n" * 2,
                                                     again(b"C%d T500"), b"mg a v t\r\n" * 2)


def keys_in_base64():
    for key in BASE64_KEYS:
        yield f"base64: {key!r}", (b"ms %s 1 b k c\r\nx\r\n" % key, b"mg %s b k v\r\n" % key, b"ma %s k b N0 v\r\n" % key,
                                   b"me %s b\r\n" % key, b"md %s q k b\r\nmd %s k b\r\n" % (key, key), b"mg %s k b q\r\nmn\r\n" % key)
    yield "base64: the same key as text", (b"ms Zm9v 1 b\r\nx\r\n", b"get foo\r\nmg foo v\r\nmg Zm9v v\r\ndelete foo\r\nmg Zm9v b\r\n")
    yield "base64: over the item limit", (b"ms Zm9v 1 b\r\nx\r\nms Zm9v %d b\r\n" % ((16 << 20) + 1) + b"x" * ((16 << 20) + 1)
                                          + b"\r\nmg Zm9v b\r\n",)


def others():
    yield "mn", (b"mn\r\nmn x\r\nmn k v O1 q q X\r\n mn \r\nmn\nmnx\r\nmx\r\nm\r\n",)
    yield "mn: between others", (HAVE, b"get a\r\nmn\r\nmg z q\r\nmn\r\nget z a\r\nmn\r\n")
    for script in (b"me a", b"me z", b"me n", b"me a k O1 q", b"me a X Y Z", b"me a b", b"me Zm9v X b", b"me", b"me " + LONG_KEY,
                   b"mg a\r\nme a", b"get a\r\nme a", b"mg a u\r\nme a", b"me a\r\nmg a h"):
        yield f"me: {script[:20]!r}", (HAVE, script + b"\r\n")
    yield "me: expired", (b"ms a 1 T-1\r\nx\r\nme a\r\n",)
    yield "a pipeline of text and meta", (HAVE + b"mg a v\r\nset a 0 0 1 noreply\r\ny\r\nmg a v k\r\nincr n 1\r\nma n v\r\nmd a q\r\n"
                                          b"get a\r\nmg a v\r\nadd a 0 0 1\r\n5\r\nma a v\r\nfoo\r\nmg a v X\r\nmn\r\n",)


def sequence(source):
    """Forty commands. Numbers have keys of their own, on which there are no leases: whether arithmetic on a leased item ends
    the lease depends, in memcached, on whether a reply with the item is still on its way."""
    out = [b"ms w 1 q\r\nx\r\n" * 5]
    for _ in range(40):
        flags = [flag for flag in (b"c", b"f", b"s", b"t", b"k", b"v", b"q", b"Oo%d" % source.randrange(9), b"Pp") if source.random() < .3]
        key = source.choice((b"a", b"b", b"c"))
        seconds = (b"T0", b"T100", b"T1000", b"T5000")
        kind = source.choice((b"mg", b"mg", b"mg", b"ms", b"md", b"ma", b"text"))
        if kind == b"mg":
            more = [b"N%d" % source.choice((0, 100, 1000)), b"R%d" % source.choice((50, 500, 3000)), source.choice(seconds), b"u", b"h"]
            flags += [flag for flag in more if source.random() < .25]
        elif kind == b"ms":
            more = [source.choice(seconds), b"F%d" % source.randrange(1 << 32), b"M" + source.choice((b"S", b"E", b"A", b"P", b"R")),
                    source.choice((b"C1", b"C%d" % (1 << 60))), b"I"]
            flags += [flag for flag in more if source.random() < .3]
        elif kind == b"md":
            flags += [flag for flag in (b"I", b"I", source.choice(seconds), b"C1") if source.random() < .4]
            flags = list(dict.fromkeys(flags))
        elif kind == b"ma":
            key = source.choice((b"n", b"m"))
            more = [b"N100", b"J%d" % source.randrange(1000), b"D%d" % source.randrange(1000), b"MD", b"C1"]
            flags += [flag for flag in more if source.random() < .3]
        if kind == b"text":
            out.append(source.choice((b"get %s\r\n", b"touch %s 100\r\n", b"gat 1000 %s\r\n", b"set %s 1 0 1\r\ns\r\n",
                                      b"delete %s\r\n", b"append %s 0 0 1\r\na\r\n", b"add %s 0 0 1\r\nd\r\n")) % key)
            continue
        source.shuffle(flags)
        out.append(line(kind, b" ".join(flags), key))
    return b"".join(out)


def scripts_that_differ():
    """What is known to differ, so that both sides stay pinned."""
    value = b"\r\nxy\r\n"
    for flag, show in ((b"F4294967296", b"f"), (b"T4294967296", b"t"), (b"T2147483648", b"f"), (b"T-2147483649", b"t")):
        yield f"ms {flag.decode()}", (b"ms a 2 " + flag + value, b"mg a v " + show + b"\r\n")
    yield "ms length of 40 bits", (HAVE, b"ms a 1099511627778" + value, b"mg a v\r\n")
    yield "a NUL in an mg", (HAVE, b"mg a\0b v\r\n")
    yield "t after a T in the past", (HAVE, b"mg a T-1 t\r\n")
    yield "an opaque too long", (HAVE, b"mg a T30 " + TOO_LONG_OPAQUE + b"\r\n", b"mg a t\r\n")
    yield "an opaque too long, ma", (HAVE, b"ma n v " + TOO_LONG_OPAQUE + b"\r\n", b"mg n v\r\n")
    yield "a key set in base64 and shown as text", (b"ms Zm9v 1 b\r\nx\r\n", b"mg foo k\r\n")
    yield "a key set as text and shown in base64", (b"ms foo 1\r\nx\r\n", b"mg Zm9v b k\r\nme Zm9v b\r\n")
    yield "ma on a stale item", (HAVE, b"md n I\r\n", b"ma n v\r\n", b"mg n v\r\n")
    yield "ma with a T on a number that grows", (b"ms n 1 T100\r\n9\r\n", b"ma n T500 t v\r\n", b"mg n t\r\n")
    yield "a win leaves the stamp", (HAVE, b"mg a c\r\n", b"mg a c R500\r\n")


def late_scripts():
    """Names, first parts and last parts: see `late_cases` in `cases.py`."""
    yield "ms T", b"ms %s 1 T1\r\nx\r\nmg %s v\r\n", b"mg %s v\r\n"
    yield "ms T, long", b"ms %s 1 T3600\r\nx\r\n", b"mg %s v\r\n"
    yield "mg T down", b"ms %s 1\r\nx\r\nmg %s T1\r\n", b"mg %s v\r\n"
    yield "mg T up", b"ms %s 1 T1\r\nx\r\nmg %s T3600\r\n", b"mg %s v\r\n"
    yield "vivified", b"mg %s N1\r\nmg %s N1\r\n", b"mg %s\r\nmg %s N100\r\nmg %s\r\n"
    yield "md I T", b"ms %s 1\r\nx\r\nmd %s I T1\r\n", b"mg %s v\r\n"
    yield "ma N", b"ma %s N1 J5\r\n", b"ma %s\r\nma %s N0 v\r\n"
    yield "ma T", b"ma %s N0 J5\r\nma %s T1\r\n", b"mg %s v\r\n"
    yield "ma keeps the expiry", b"ms %s 1 T1\r\n5\r\nma %s\r\n", b"mg %s v\r\n"
    yield "R as time goes by", b"ms %s 1 T100\r\nx\r\nmg %s R99\r\n", b"mg %s R99\r\nmg %s R99\r\n"
    yield "how long ago it was read", b"ms %s 1\r\nx\r\n", b"mg %s l\r\nme %s\r\n"
    yield "h", b"ms %s 1\r\nx\r\nmg %s h\r\n", b"mg %s h\r\n"
