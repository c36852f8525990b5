#!/usr/bin/env python3
"""Reads memcached, with extstore, and Tapetum through memcached's exporter for Prometheus, after the same requests to both.

    exporter.py --exporter BINARY --memcached HOST:PORT --tapetum HOST:PORT --metrics HOST:PORT

Every name that memcached has there Tapetum must have, but for those of `ABSENT`; commands must be counted alike; and Tapetum's
own page, at --metrics, must say what the exporter says. Both servers must be empty. Standard library only."""

import argparse
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "differential"))
import wire  # noqa: E402

# What memcached has and Tapetum has not, and why. A row that nothing needs any more fails the run.
ABSENT = [
    (r"memcached_extstore_(pages_(free|used|allocated_total|reclaimed_total)|compact_\w+|bytes_fragmented)",
     "its pages are rewritten one by one; here a collector merges segments"),
    (r"memcached_extstore_(objects_written_total|bytes_evicted_total|io_queue_depth)", "these are not counted"),
    (r"memcached_lru_crawler_(enabled|sleep|to_crawl|maintainer_thread|\w+_percent|\w+_max_factor)",
     "settings of a crawler and of three queues, which are not here"),
    (r"memcached_(lru_crawler_moves_to_cold_total|slab_cold_items|slab_items_moves_to_cold)", "there is no third queue"),
    (r"memcached_slab_commands_total\{command=\"(decr|delete|incr|touch)\"", "what is changed leaves DRAM, and has no class then"),
    (r"memcached_slab_lru_hits_total", "hits are counted by class, not by queue"),
    (r"memcached_slab_items_(evicted_nonzero|expired_unfetched)_total", "these are not counted"),
]
# Counters of the exporter whose names do not end in _total, which `promtool check metrics` finds: another type here.
RETYPED = {"memcached_uptime_seconds", "memcached_extstore_bytes_used", "memcached_slab_items_evicted_time_seconds",
           "memcached_slab_items_moves_to_warm", "memcached_slab_items_moves_within_lru"}
# What differs from one look to the next, or is the exporter's own.
MOVING = re.compile(r"memcached_(uptime|time|process|read_bytes|written_bytes|connections|current_connections|exporter|slab_(items|hot|warm)_age)")
# Items of 100 bytes: enough that Tapetum has most on flash, and those that are asked for in DRAM.
ITEMS = 200_000
ASKED = 20_000
PATIENCE_S = 60


def exchange(connection, request, until):
    connection.sendall(request)
    reply = b""
    while not reply.endswith(until):
        piece = connection.recv(1 << 16)
        if not piece:
            sys.exit(f"the server hung up after {reply[-100:]!r}")
        reply += piece
    return reply


def get_all(connection, keys):
    for first in range(0, len(keys), 100):
        exchange(connection, b"get " + b" ".join(keys[first:first + 100]) + b"\r\n", b"END\r\n")


def drive(address):
    """The same to both, every command with each of its outcomes."""
    with wire.connect(address) as connection:
        exchange(connection, b"flush_all\r\n", b"OK\r\n")
        for first in range(0, ITEMS, 1000):
            sets = [b"set k%d 0 0 100 noreply\r\n%s\r\n" % (number, b"v" * 100) for number in range(first, first + 1000)]
            exchange(connection, b"".join(sets) + b"mn\r\n", b"MN\r\n")
        line = lambda request: exchange(connection, request, b"\r\n")
        line(b"set n 0 0 1\r\n5\r\n")
        for verb in (b"incr", b"decr"):
            line(verb + b" n 1\r\n")
            line(verb + b" nobody 1\r\n")
        for request in (b"delete k1", b"delete k1", b"touch k2 0", b"touch nobody 0"):
            line(request + b"\r\n")
        stamp = exchange(connection, b"gets k3\r\n", b"END\r\n").split()[4]
        for key, unique in ((b"k3", stamp), (b"k3", b"1"), (b"nobody", b"1")):
            line(b"cas %s 0 0 1 %s\r\nx\r\n" % (key, unique))
        # Time to put on flash what was written; what is asked for twice is in DRAM.
        time.sleep(2)
        keys = [b"k%d" % number for number in range(10, ASKED)]
        for _ in range(3):
            get_all(connection, keys)
            time.sleep(1)
        get_all(connection, [b"nobody%d" % number for number in range(50)])


def page(address):
    """Names with their labels, values of classes summed, and types, from one look at /metrics."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as reply:
        lines = reply.read().decode().splitlines()
    values = {}
    for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("memcached_")):
        name = re.sub(r'slab="\d+"', 'slab="N"', re.sub(r'version="[^"]*"', "", name))
        values[name] = values.get(name, 0) + float(value)
    types = {line.split()[2]: line.split()[3] for line in lines if line.startswith("# TYPE memcached_")}
    return values, types


def through_exporter(exporter, address):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{free.getsockname()[1]}"
    command = [exporter, f"--memcached.address={address}", f"--web.listen-address={listen}", "--log.level=warn"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(10 * PATIENCE_S):
            try:
                return page(listen)
            except urllib.error.URLError:
                if process.poll() is not None:
                    break
                time.sleep(0.1)
        sys.exit(f"the exporter does not serve at {listen}")
    finally:
        process.terminate()
        said = process.communicate()[1]
        if said:
            sys.exit(f"the exporter is not content with {address}:\n{said}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("exporter", "memcached", "tapetum", "metrics"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    for address in (arguments.memcached, arguments.tapetum):
        drive(address)
    theirs, _ = through_exporter(arguments.exporter, arguments.memcached)
    ours, types = through_exporter(arguments.exporter, arguments.tapetum)
    own, own_types = page(arguments.metrics)
    wrong = [f"the exporter has it as {kind}, Tapetum's page as {own_types.get(name)}: {name}"
             for name, kind in types.items() if own_types.get(name) != kind and "exporter" not in name and name not in RETYPED]
    missing = [name for name in theirs if name not in ours]
    wrong += [f"absent: {name}" for name in missing if not any(re.match(row, name) for row, _ in ABSENT)]
    wrong += [f"not absent any more: {row}" for row, _ in ABSENT if not any(re.match(row, name) for name in missing)]
    for name, value in theirs.items():
        if name.startswith("memcached_commands_total") and ours.get(name) != value:
            wrong.append(f"memcached counts {value:.0f}, Tapetum {ours.get(name)}: {name}")
    for name, value in ours.items():
        if not MOVING.match(name) and own.get(name) != value:
            wrong.append(f"the exporter says {value}, Tapetum's page {own.get(name)}: {name}")
    for name in ('memcached_slab_commands_total{command="get",slab="N",status="hit"}', "memcached_slab_current_items{slab=\"N\"}",
                 "memcached_extstore_objects_used", "memcached_extstore_bytes_read_total"):
        if not ours.get(name, 0) > 0:
            wrong.append(f"0 or absent: {name}")
    print(f"exporter: {len(theirs)} names of memcached, {len(missing)} of them absent for a reason; {len(wrong)} wrong")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
