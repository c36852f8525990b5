"""Every name that memcached gives in `stats`, `stats settings`, `stats items` and `stats slabs` is there, or stands below with
the reason why not.

    stat_names.py --tapetum 127.0.0.1:11211 [--memcached HOST:PORT] [--only PATTERN]

A name below that memcached does not give, or that is there, fails the run too. The server under test has a DRAM tier, so that there
are classes to tell of."""

import random
import re
import sys
import time

import rival
import wire

SLAB_MOVER = "memcached moves pages between slab classes in a thread of its own; slabs of the DRAM tier are given to the class that needs one"
MAINTAINER = "memcached's LRU maintainer moves items between queues; the DRAM tier's queues need no such thread"
NO_COLD = "the DRAM tier has two queues, shown as hot and warm"
UNFETCHED = "whether an item on flash was ever fetched is not kept: it would cost a write for each first get"
CRAWLER = "there is no LRU crawler to be set up"
NO_BUFFERS = "a connection at rest holds no buffer; what all of them hold is bounded by in_flight_bytes_max"
WATCH = "lines for who watches go to a buffer of its own at once, and wait in none of a worker: see log_watcher_sent"
EXTSTORE = "an option of extstore; this store's are sync, evictions, and what `tapetum inspect` shows"
TLS = "there is no TLS"
NAPI = "connections are not spread by NAPI ids, but to the worker that has the fewest"
BY_CLASS = "what changes an item takes it out of DRAM, and is counted over all: see the figure of that name in `stats`"

LEFT_OUT = {
    "": {
        "libevent": "there is none: workers use epoll",
        "response_obj_oom": NO_BUFFERS, "response_obj_count": NO_BUFFERS, "response_obj_bytes": NO_BUFFERS,
        "read_buf_count": NO_BUFFERS, "read_buf_bytes": NO_BUFFERS, "read_buf_bytes_free": NO_BUFFERS, "read_buf_oom": NO_BUFFERS,
        "reserved_fds": "open files that memcached keeps for itself: the server asks for what it needs when it starts",
        "hash_power_level": "the index grows a partition at a time, not by powers of two: see index_bytes and index_room_entries",
        "slab_reassign_rescues": SLAB_MOVER, "slab_reassign_chunk_rescues": SLAB_MOVER,
        "slab_reassign_evictions_nomem": SLAB_MOVER, "slab_reassign_inline_reclaim": SLAB_MOVER,
        "slab_reassign_busy_items": SLAB_MOVER, "slab_reassign_busy_deletes": SLAB_MOVER,
        "slab_reassign_running": SLAB_MOVER, "slabs_moved": SLAB_MOVER, "slab_global_page_pool": SLAB_MOVER,
        "lru_maintainer_juggles": MAINTAINER, "lru_bumps_dropped": MAINTAINER, "lrutail_reflocked": MAINTAINER,
        "malloc_fails": "memory is taken when the server starts, or within its budget; without it the server stops",
        "log_worker_dropped": WATCH, "log_worker_written": WATCH,
        "unexpected_napi_ids": NAPI, "round_robin_fallback": NAPI,
        "expired_unfetched": UNFETCHED, "evicted_unfetched": UNFETCHED, "evicted_active": UNFETCHED,
        "direct_reclaims": "a write that finds no room waits for the collector: see writes_paced",
    },
    "settings": {
        "oldest": "flush_all marks a place in the log, not a time",
        "chunk_size": "the smallest slot of the DRAM tier: see chunk_size in `stats slabs`",
        "reqs_per_event": "a connection gives way by bytes and by requests at once, not by a number of requests",
        "hashpower_init": "the index is as large as its keys need",
        "slab_reassign": SLAB_MOVER, "slab_automove": SLAB_MOVER, "slab_automove_ratio": SLAB_MOVER,
        "slab_automove_window": SLAB_MOVER, "slab_automove_freeratio": SLAB_MOVER,
        "slab_chunk_max": "larger items are not cut into chunks; the DRAM tier leaves them to flash",
        "lru_crawler_sleep": CRAWLER, "lru_crawler_tocrawl": CRAWLER,
        "tail_repair_time": MAINTAINER, "lru_maintainer_thread": MAINTAINER, "lru_segmented": MAINTAINER,
        "hot_lru_pct": MAINTAINER, "warm_lru_pct": MAINTAINER, "hot_max_factor": MAINTAINER, "warm_max_factor": MAINTAINER,
        "temporary_ttl": "there is no queue for items of a short life: see temp_lru",
        "worker_logbuf_size": WATCH,
        "read_buf_mem_limit": NO_BUFFERS,
        "inline_ascii_response": "a relic: memcached prints `no` and does nothing with it",
        "ext_item_size": EXTSTORE, "ext_item_age": EXTSTORE, "ext_low_ttl": EXTSTORE, "ext_recache_rate": EXTSTORE,
        "ext_wbuf_size": EXTSTORE, "ext_compact_under": EXTSTORE, "ext_drop_under": EXTSTORE, "ext_max_sleep": EXTSTORE,
        "ext_max_frag": EXTSTORE, "ext_drop_unread": EXTSTORE,
        "ssl_chain_cert": TLS, "ssl_key": TLS, "ssl_verify_mode": TLS, "ssl_keyformat": TLS, "ssl_ciphers": TLS,
        "ssl_ca_cert": TLS, "ssl_wbuf_size": TLS, "ssl_session_cache": TLS, "ssl_kernel_tls": TLS, "ssl_min_version": TLS,
        "num_napi_ids": NAPI,
        "memory_file": "items are on flash, not in a file that is mapped into memory",
    },
    "items": {
        "evicted_nonzero": "an item that leaves DRAM for others is on flash still, whatever its expiry",
        "expired_unfetched": "an expired item leaves DRAM in its turn, and is counted as any other then",
        "evicted_active": "an item that was asked for again stays in DRAM: see moves_within_lru",
        "crawler_items_checked": CRAWLER, "lrutail_reflocked": MAINTAINER, "moves_to_cold": NO_COLD,
        "direct_reclaims": MAINTAINER, "hits_to_hot": "hits are counted by class, not by queue: see get_hits in `stats slabs`",
        "hits_to_warm": "as hits_to_hot", "hits_to_cold": NO_COLD, "hits_to_temp": NO_COLD,
    },
    "slabs": {
        "delete_hits": BY_CLASS, "incr_hits": BY_CLASS, "decr_hits": BY_CLASS, "touch_hits": BY_CLASS,
    },
}


def names(address, group):
    """What a group of figures is called, without the numbers of classes."""
    reply = wire.exchange(address, b"stats %s\r\n" % group.encode()).decode()
    return {re.sub(r"^(items:)?\d+:", "", name) for name in re.findall(r"^STAT (\S+)", reply, re.MULTILINE)}


def fill(address):
    """Items that are asked for, so that there are classes."""
    wire.exchange(address, b"set stat_names 0 0 3\r\nabc\r\n")
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline and not names(address, "items"):
        # A tier takes items from flash, when the write buffer was flushed: values that no codec shrinks fill it soon.
        value = random.Random(0).randbytes(50_000)
        wire.exchange(address, b"".join(b"set f%d 0 0 50000\r\n%s\r\n" % (number, value) for number in range(100)))
        wire.exchange(address, b"".join(b"get f%d\r\n" % number for number in range(100)))


def main():
    only = "nothing is done unless the name \"stat names\" matches this pattern"
    arguments = rival.parser(__doc__, "which is filled", only).parse_args()
    if not re.search(arguments.only, "stat names"):
        return 0
    wrong = []
    with rival.memcached(arguments.memcached) as memcached:
        fill(memcached)
        fill(arguments.tapetum)
        for group, left_out in LEFT_OUT.items():
            theirs, ours = names(memcached, group), names(arguments.tapetum, group)
            title = f"stats {group}".strip()
            wrong += [f"{title} lacks {name}" for name in sorted(theirs - ours - left_out.keys())]
            wrong += [f"{title} has {name}, which is left out for a reason" for name in sorted(ours & left_out.keys())]
            wrong += [f"memcached's {title} has no {name}, which is left out" for name in sorted(left_out.keys() - theirs)]
    for line in wrong:
        print(f"DIFFERENT  {line}")
    print(f"names of figures: {len(wrong)} wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
