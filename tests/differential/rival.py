"""What the scripts here share: their options, and the memcached that they compare with."""

import argparse
import contextlib
import os
import socket
import subprocess
import sys
import time

import cases
import wire


def parser(description, tapetum="flushed many times", only="only cases whose name matches this pattern"):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tapetum", required=True, help=f"address of the server under test, {tapetum}")
    parser.add_argument("--memcached", help="address of a running memcached; without it one is started")
    parser.add_argument("--only", default="", help=only)
    return parser


@contextlib.contextmanager
def memcached(address, udp=False):
    """The address of memcached: this one, or that of Debian's, which is started for so long."""
    if address is not None:
        yield address
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = ["memcached", "-l", "127.0.0.1", "-p", port]
    command += ["-U", port, "-t", "1", "-m", "256"] if udp else [
        "-U", "0", "-t", "2", "-m", "512", "-I", str(cases.ITEM_BYTES_MAX)]
    if os.geteuid() == 0:
        command += ["-u", "root"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        await_answer(process, f"127.0.0.1:{port}")
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def await_answer(process, address):
    for _ in range(100):
        try:
            return wire.connect(address).close()
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    sys.exit("memcached does not start: install Debian's package memcached, or give --memcached HOST:PORT")
