"""The differences that are meant, each with its reason. What Tapetum answers there is pinned too.

A row: the cases it holds for (a pattern over their names), the reason, and what Tapetum's normalised reply must match
(a pattern over the repr of its parts, joined by a bar). Everywhere, stamps are compared by identity rather than value,
and version texts not at all."""

# In these cases a touch gives the item a new stamp, which memcached's does not: it is a write like any other, and stamps
# are places in the log. Whether there is a stamp is still compared.
STAMPS_ALIKE = r"touch|gat"

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
    (r"differs: a line of 10000 bytes",
     "memcached answers a line over 2048 bytes or hangs up, as its packets happen to fall; we always hang up",
     r"\|'$"),
    (r"differs: gat of ten thousand keys",
     "memcached hangs up on a gat that it takes as a get; we take both",
     r"^b'END\\r\\n"),
    (r"differs: replies before a hang-up",
     "memcached forgets the replies to earlier commands of the same packet; we send them first",
     r"^b'STORED\\r\\n'$"),
    (r"differs: m[ngesda]( |$)", "the meta commands come in a later version; until then they are unknown", UNKNOWN),
    (r"differs: stats (items|slabs)", "there are no slabs: the lists are empty", r"\|END\\r\\nVERSION <version>\\r\\n'$"),
    (r"differs: (stats|slabs|lru|lru_crawler|watch|shutdown|refresh_certs)( |$)",
     "these steer or show memcached's own memory, logger and TLS, which are not here", UNKNOWN),
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
