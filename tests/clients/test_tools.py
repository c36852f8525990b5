"""The command line beside real clients and parsers: what `load` stores a client gets, what `dump` prints Python's json
reads, and memcached's own command for the memory is taken from a client that sends it."""

import base64
import json
import os
import socket
import subprocess
import threading
import time
import unittest

import pymemcache

from server import BINARY, IS_MEMCACHED, Server, free_port


MEMCACHED_TOOL = "/usr/share/memcached/scripts/memcached-tool"


def run(*words, data=None, stdin=""):
    where = ["--data", data, "--memory", "256MiB"] if data else []
    return subprocess.run([BINARY, *words, *where], input=stdin, capture_output=True, text=True, check=False)


def tapetum(*words, data=None, stdin=""):
    done = run(*words, data=data, stdin=stdin)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return done.stdout


@unittest.skipIf(IS_MEMCACHED, "memcached has no such command line")
class Tools(unittest.TestCase):
    def setUp(self):
        self.server = Server("tools")
        self.addCleanup(self.server.close)
        self.address = f"127.0.0.1:{self.server.port}"

    def client(self):
        client = pymemcache.Client(("127.0.0.1", self.server.port), default_noreply=False)
        self.addCleanup(client.close)
        return client

    def test_what_is_loaded_a_client_gets_and_a_dump_gives_back(self):
        values = {f"key{number}": bytes(byte for byte in range(number % 256)) * (number % 5) for number in range(3000)}
        lines = [json.dumps({"key": key, "value_base64": base64.b64encode(value).decode()})
                 for key, value in values.items()]
        lines.append(json.dumps({"key": "text", "value": "zwölf\t\"\u0000", "expiry": 4_000_000_000}))
        tapetum("load", "--format", "jsonl", "--memcached", self.address, stdin="\n".join(lines))
        client = self.client()
        self.assertEqual(client.get_many(values), values)
        self.assertEqual(client.get("text"), "zwölf\t\"\0".encode())
        self.assertEqual(self.server.terminate(), 0)
        dumped = {}
        for line in tapetum("dump", data=self.server.data).splitlines():
            item = json.loads(line)
            text = item["value"].encode() if "value" in item else base64.b64decode(item["value_base64"])
            self.assertNotIn(item["key"], dumped)
            dumped[item["key"]] = text
            self.assertEqual(item.get("expiry", 0), 4_000_000_000 if item["key"] == "text" else 0)
        self.assertEqual(dumped, {**values, "text": "zwölf\t\"\0".encode()})
        self.assertEqual(set(tapetum("list", data=self.server.data).split()), set(dumped))

    def test_sizes_change_while_clients_are_served(self):
        client = self.client()
        client.set("kept", b"value")
        self.assertTrue(client.cache_memlimit(512))
        tapetum("resize", "--capacity", "3GiB", "--memcached", self.address)
        stats = client.stats()
        self.assertEqual(stats[b"flash_limit_bytes"], (3 << 30) // 4096 * 4095)
        self.assertEqual(client.stats("settings")[b"maxbytes"], 512 << 20)
        self.assertEqual(client.get("kept"), b"value")
        self.server.restart()
        client = self.client()
        self.assertEqual(client.stats()[b"flash_limit_bytes"], (3 << 30) // 4096 * 4095)
        self.assertEqual(client.get("kept"), b"value")

    def memcached(self):
        """A running memcached: its port, and a client of it."""
        port = free_port()
        memcached = subprocess.Popen(["memcached", "-u", "root", "-l", "127.0.0.1", "-p", str(port), "-U", "0", "-m", "256"])
        self.addCleanup(memcached.wait)
        self.addCleanup(memcached.terminate)
        source = pymemcache.Client(("127.0.0.1", port), default_noreply=False, connect_timeout=5)
        self.addCleanup(source.close)
        for _ in range(100):
            try:
                source.version()
                break
            except OSError:
                time.sleep(0.05)
        return port, source

    def test_every_item_of_an_idle_memcached_is_copied(self):
        # Enough for memcached's crawler to meet some of them while they are in use.
        items = 200_000
        port, source = self.memcached()
        with socket.create_connection(("127.0.0.1", port)) as connection:
            for first in range(0, items, 1000):
                numbers = range(first, first + 1000)
                connection.sendall(b"".join(b"set key%d 0 0 1 noreply\r\nv\r\n" % number for number in numbers))
            connection.sendall(b"quit\r\n")
            self.assertEqual(connection.recv(100), b"")
        self.assertEqual(source.stats()[b"curr_items"], items)
        done = run("warm", "--from", f"127.0.0.1:{port}", "--memcached", self.address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(f"{items} of {items} items copied; 0 were there already, 0 had gone, 0 left out\n", done.stderr)
        self.assertEqual(self.server.terminate(), 0)
        self.assertEqual(len(tapetum("list", "--prefix", "key", data=self.server.data).split()), items)

    def test_an_expiry_that_memcached_cannot_keep_is_cut_and_told(self):
        port, memcached = self.memcached()
        lines = [json.dumps({"key": "late", "value": "v", "expiry": 4_000_000_000}), json.dumps({"key": "ever", "value": "v"})]
        client = self.client()
        for address, kept_by, warned in [(f"127.0.0.1:{port}", memcached, True), (self.address, client, False)]:
            done = run("load", "--format", "jsonl", "--memcached", address, stdin="\n".join(lines))
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual("1 item expires after 2038-01-19" in done.stderr, warned, done.stderr)
            self.assertEqual(kept_by.get_many(["late", "ever"]), {"late": b"v", "ever": b"v"})

    def test_a_server_that_cannot_be_asked_is_told_by_the_option_that_named_it(self):
        port, _ = self.memcached()
        silent = f"127.0.0.1:{free_port()}"
        for words, why, option in [
            (["warm", "--from", silent, "--memcached", self.address], "no answer", "--from ADDR"),
            (["warm", "--from", self.address, "--memcached", silent], "no answer", "--memcached ADDR"),
            (["stats", "--memcached", silent], "no answer", "--memcached ADDR"),
            (["load", "--memcached", silent], "no answer", "--memcached ADDR"),
            (["inspect", "--memcached", f"127.0.0.1:{port}"], "does not know", "--memcached ADDR"),
            (["inspect", "key", "--memcached", f"127.0.0.1:{port}"], "does not know", "--memcached ADDR"),
            (["resize", "--capacity", "3GiB", "--memcached", f"127.0.0.1:{port}"], "does not know", "--memcached ADDR"),
        ]:
            with self.subTest(words=words):
                done = run(*words)
                self.assertEqual(done.returncode, 1)
                self.assertIn(why, done.stderr)
                self.assertIn(option, done.stderr)

    def test_a_running_memcached_is_copied_but_not_over_what_is_there(self):
        port, source = self.memcached()
        values = {f"key{number}%": bytes([number % 256]) * (number * 37 % 5000) for number in range(2000)}
        for number, (key, value) in enumerate(values.items()):
            source.set(key, value, flags=number, expire=2_000_000_000 if number % 2 else 0)
        client = self.client()
        client.set("key7%", b"newer")
        words = ["warm", "--from", f"127.0.0.1:{port}", "--memcached", self.address]
        tapetum(*words)
        tapetum(*words)
        # Not assertEqual, which would look for the best way to show megabytes of difference.
        self.assertTrue(client.get_many(values) == {**values, "key7%": b"newer"})
        self.assertEqual(self.server.terminate(), 0)
        items = [json.loads(line) for line in tapetum("dump", data=self.server.data).splitlines()]
        marks = {item["key"]: (item.get("flags", 0), item.get("expiry", 0)) for item in items}
        expected = {key: (number, 2_000_000_000 if number % 2 else 0) for number, key in enumerate(values)}
        self.assertEqual(marks, {**expected, "key7%": (0, 0)})

    def test_a_dump_of_a_server_under_load_restores_every_key_that_was_untouched(self):
        untouched = {f"still{number}": b"%d" % number * (number % 50) for number in range(20_000)}
        client = self.client()
        client.set_many({key: value for key, value in untouched.items()})
        client.set("marked", b"flags", flags=7, expire=2_000_000_000)
        # A key that no text command can name.
        self.assertEqual(client.raw_command(b"ms aGVsbG8gd29ybGQ= 5 b\r\nthere"), b"HD")
        untouched["marked"] = b"flags"
        stop = threading.Event()

        def write_on(who):
            busy = pymemcache.Client(("127.0.0.1", self.server.port), default_noreply=False)
            number = 0
            while not stop.is_set():
                busy.set_many({f"busy{who}:{number % 700 + step}": b"x" * (number % 900) for step in range(50)})
                busy.delete(f"busy{who}:{number % 900}")
                number += 37
            busy.close()

        writers = [threading.Thread(target=write_on, args=(who,)) for who in range(2)]
        for writer in writers:
            writer.start()
        self.addCleanup(stop.set)
        dumped = tapetum("dump", "--memcached", self.address)
        listed = tapetum("list", "--memcached", self.address, "--prefix", "still").split()
        stop.set()
        for writer in writers:
            writer.join()
        self.assertEqual(set(listed), set(untouched) - {"marked"})
        self.assertEqual(len(listed), len(untouched) - 1)
        self.assertEqual(tapetum("list", "--memcached", self.address, "--prefix", "marked", "--long"), "marked\t5\t7\t2000000000\n")
        other = Server("restored")
        self.addCleanup(other.close)
        address = f"127.0.0.1:{other.port}"
        tapetum("load", "--format", "jsonl", "--skip-bad", "--memcached", address, stdin=dumped)
        restored = pymemcache.Client(("127.0.0.1", other.port), default_noreply=False)
        self.addCleanup(restored.close)
        self.assertTrue(restored.get_many(untouched) == untouched)
        self.assertEqual(restored.raw_command(b"mg marked f t")[:5], b"HD f7")
        items = [json.loads(line) for line in dumped.splitlines()]
        self.assertIn({"key": "hello world", "value": "there"}, items)
        self.assertEqual(len({item["key"] for item in items}), len(items), "a key is dumped once")
        # Copied straight from one server to another, what the first has.
        done = run("warm", "--from", self.address, "--memcached", address)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(restored.get_many(untouched) == untouched)

    @unittest.skipUnless(os.access(MEMCACHED_TOOL, os.R_OK), "Debian's memcached has it")
    def test_memcacheds_own_tool_lists_and_dumps(self):
        values = {f"key{number}": f"value{number}" for number in range(500)}
        self.client().set_many({key: value.encode() for key, value in values.items()})
        keys = subprocess.run(["perl", MEMCACHED_TOOL, self.address, "keys"], capture_output=True, text=True, check=True).stdout
        self.assertEqual({line.split()[0].removeprefix("key=") for line in keys.splitlines()}, set(values))
        dump = subprocess.run(["perl", MEMCACHED_TOOL, self.address, "dump"], capture_output=True, text=True, check=True).stdout
        adds = dump.splitlines()
        self.assertEqual({line.split()[1]: value for line, value in zip(adds[::2], adds[1::2])}, values)

    def test_json_of_a_server_is_json(self):
        stats = json.loads(tapetum("stats", "--json", "--memcached", self.address))
        inside = json.loads(tapetum("inspect", "--json", "--memcached", self.address))
        self.assertEqual(inside["superblock"]["capacity_bytes"], stats["flash_limit_bytes"])
        end = 0
        for area in inside["areas"]:
            self.assertEqual(area["offset_bytes"], end)
            end += area["length_bytes"]
        self.assertEqual(end, stats["flash_limit_bytes"])
