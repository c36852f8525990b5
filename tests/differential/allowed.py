"""The differences that are meant, each with its reason. What Tapetum answers there is pinned too.

A row: the cases it holds for (a pattern over their names), the reason, and what Tapetum's normalised reply must match
(a pattern over the repr of its parts, joined by a bar). Everywhere, stamps are compared by identity rather than value,
and version texts not at all; nor are what `me` calls cls and size: there are no slab classes for what is on flash, and an
item's size is that of its key and value."""

# In these cases a touch, or a lease that is won, gives the item a new stamp, which memcached's does not: it is a write like
# any other, and stamps are places in the log. The reply shows the new one. Whether there is a stamp is still compared.
STAMPS_ALIKE = r"touch|gat|lease"

REFUSED = r"CLIENT_ERROR bad command line format\\r\\nERROR\\r\\n.*VALUE a 1 1\\r\\nx\\r\\n"
UNKNOWN = r"^b'STORED\\r\\nVERSION <version>\\r\\n\|(ERROR\\r\\n)+VERSION <version>\\r\\n'$"
INVALID_AND_CLOSED = r"Invalid arguments('$|\|)"

ALLOWED = [
    (r"append: over the item limit",
     "memcached calls an append that would grow past the item limit NOT_STORED, which means 'no such key' to a client; "
     "we say what is wrong, as both do for set",
     r"object too large|Too large\."),
    (r"differs: (flags|exptime|length) (of 33|of 40|of 70|under 32)",
     "memcached cuts the number to its low 32 bits, and stores something that was not asked for; we refuse it",
     REFUSED),
    (r"differs: exptime after 2038",
     "memcached takes unix times after January 2038 for negative, long past; ours run to 2106",
     r"VALUE a 0 2\\r\\nxy"),
    (r"differs: a NUL in a get",
     "memcached looks up the part of the key before the NUL; no key can hold one, so we refuse the line, as both do for "
     "set", r"\|ERROR\\r\\nVERSION"),
    (r"differs: a line of 10000 bytes|a line of 100000 bytes|a megabyte without a line end",
     "memcached answers a line over 2048 bytes or hangs up, as its packets happen to fall; we say so, and hang up at its end",
     r"CLIENT_ERROR line too long\\r\\n(\||'$)"),
    (r"x / HTTP/1\.1",
     "memcached hangs up on the methods that it knows; we do so on whatever ends as a request by HTTP does and is no command, as "
     "the lines behind it may be somebody else's", r"\|(\||'$)"),
    (r"differs: gat of ten thousand keys",
     "memcached hangs up on a gat that it takes as a get; we take both",
     r"^b'END\\r\\n"),
    (r"differs: replies before a hang-up",
     "memcached forgets the replies to earlier commands of the same packet; we send them first",
     r"^b'STORED\\r\\n'$"),
    (r"differs: stats (items|slabs)", "there are no slabs: the lists are empty", r"\|END\\r\\nVERSION <version>\\r\\n'$"),
    (r"meta differs: ms (F4294967296|T4294967296|T-2147483649|length of 40 bits)",
     "memcached cuts the number to its low 32 bits, and stores something that was not asked for; we refuse it",
     r"CLIENT_ERROR bad (token in )?command line format"),
    (r"meta differs: ms T2147483648",
     "memcached takes unix times after January 2038 for negative, long past; ours run to 2106", r"VA 2 f0\\r\\nxy"),
    (r"meta differs: a NUL in an mg",
     "memcached looks up the part of the key before the NUL; no key that comes as text can hold one, so we refuse the line",
     r"\|b?'?ERROR"),
    (r"meta differs: t after a T in the past",
     "memcached shows the seconds since then, counted from before it was started, without a sign; we say that none are left",
     r"HD t0\\r"),
    (r"meta differs: an opaque too long",
     "memcached complains when the command has taken effect; we refuse it before",
     r"opaque token too long.*(HD t100|VA 2\\r\\n50)"),
    (r"meta differs: a key set",
     "memcached keeps with the item whether its key came in base64, and shows it so to everybody; we show a key to each as it "
     "asked for it, and keep no more than the key", r"HD k(foo|Zm9v b)\\r"),
    (r"meta differs: ma on a stale item",
     "in memcached a sum ends staleness and lease if it has more digits, or if a reply with the item is on its way; ours is a "
     "new value like any other, and always ends both", r"VA 2\\r\\n51\\r"),
    (r"meta differs: ma with a T on a number that grows",
     "memcached gives the new time to the shorter number, which is gone; we give it to the sum", r"HD t500\\r"),
    (r"meta differs: a win leaves the stamp",
     "a lease that is won is written like a touch, so that it outlives a restart", r"c<stamp 2> W"),
    (r"differs: (stats|slabs|lru|lru_crawler|shutdown|refresh_certs)( |$)",
     "these steer or show memcached's own memory and TLS, which are not here", UNKNOWN),
    (r"binary: \w+: a body of 4 GiB",
     "memcached holds the length in 32 bits with a sign, and says nothing when the client stops; we say Too large",
     r"Too large\.\|"),
    (r"binary: key of 65535 bytes",
     "memcached hangs up without a word when a key does not fit its read buffer; we say Invalid arguments first",
     INVALID_AND_CLOSED),
    (r"differs: (touch|gat|gatkq|stat) with a value",
     "memcached does the command and takes the surplus bytes for the next header; a length that is wrong is an error "
     "here as for every other command",
     INVALID_AND_CLOSED),
    (r"differs: unknown with a key$",
     "memcached skips key and extras of an unknown command twice, and so eats the next command; we skip the body once",
     r"Unknown command\\x81\\n"),
]
