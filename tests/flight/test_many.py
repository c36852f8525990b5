"""Many clients at once, clients that go or read nothing, and a server that is killed."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import pyarrow as pa
import pyarrow.flight as flight

from served import PATIENCE, Served, command_descriptor, read, wait_until

CLIENTS = 200
ROWS = 100_000


def table(first, count):
    return pa.table({"id": pa.array(range(first, first + count), pa.int64()), "n": pa.array(range(count), pa.int64()),
                     "text": [f"text {n} " * 4 for n in range(count)]})


COUNT = command_descriptor(query={"keyspace": "k", "select": "count(*) as n"})
ALL = command_descriptor(query={"keyspace": "k"})


class TestMany(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Served("flight-many")
        cls.addClassCleanup(cls.server.close)
        cls.server.keyspace("k", "key: id u64be; value: n i64le, text string16")
        cls.server.keyspace("w", "key: id u64be; value: n i64le, text string16")
        assert cls.server.put("k", table(0, ROWS)) == ROWS

    def freezes(self):
        with self.server.client() as client:
            [told] = client.do_action(flight.Action("tapetum.freezes", b"{}"), PATIENCE)
            return json.loads(told.body.to_pybytes())

    def test_two_hundred_clients_at_once_beside_a_writer(self):
        answers, is_over = [], threading.Event()

        def ask():
            with self.server.client() as client:
                for _ in range(3):
                    answers.append(read(client, COUNT)["n"].to_pylist())

        def write():
            number = 0
            while not is_over.is_set():
                self.server.put("w", table(number, 10))
                number += 10

        writer = threading.Thread(target=write)
        writer.start()
        clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join()
        is_over.set()
        writer.join()
        self.assertEqual(answers, [[ROWS]] * (3 * CLIENTS))
        self.assertLessEqual(len(self.freezes()), 8)

    def test_a_client_that_is_killed_in_a_scan_holds_nothing(self):
        program = ("import sys, pyarrow.flight as f, json\n"
                   "c = f.connect(sys.argv[1])\n"
                   "i = c.get_flight_info(f.FlightDescriptor.for_command(json.dumps({'query': {'keyspace': 'k'}})))\n"
                   "r = c.do_get(i.endpoints[0].ticket); r.read_chunk(); print('reads', flush=True)\n"
                   "import time; time.sleep(60)")
        for _ in range(5):
            client = subprocess.Popen([sys.executable, "-c", program, self.server.address], stdout=subprocess.PIPE)
            self.assertEqual(client.stdout.readline(), b"reads\n")
            client.kill()
            client.wait()
            client.stdout.close()
        wait_until(self.is_idle)
        with self.server.client() as client:
            self.assertEqual(read(client, COUNT)["n"].to_pylist(), [ROWS])

    def is_idle(self):
        """Nobody computes for a client."""
        return self.server.figure("requests_held_bytes") == 0

    def test_clients_that_read_nothing_keep_nobody_waiting_for_long(self):
        clients, readers = [], []
        for _ in range(70):
            client = self.server.client()
            info = client.get_flight_info(ALL, PATIENCE)
            readers.append(client.do_get(info.endpoints[0].ticket, flight.FlightCallOptions(timeout=120)))
            clients.append(client)
        began = time.monotonic()
        with self.server.client() as client:
            self.assertEqual(read(client, COUNT)["n"].to_pylist(), [ROWS])
        self.assertLess(time.monotonic() - began, 50)
        for client in clients:
            client.close()

    def test_a_query_that_its_client_gives_up_ends(self):
        with self.server.client() as client:
            info = client.get_flight_info(ALL, PATIENCE)
            reader = client.do_get(info.endpoints[0].ticket, PATIENCE)
            reader.read_chunk()
            reader.cancel()
        wait_until(self.is_idle)


class TestKilled(unittest.TestCase):
    def test_what_was_acknowledged_is_there_after_a_server_was_killed_under_ingest(self):
        server = Served("flight-killed")
        self.addCleanup(server.close)
        server.keyspace("k", "key: id u64be; value: n i64le, text string16")
        acknowledged, batch = 0, 500
        for round_ in range(4):
            kill = threading.Timer(0.4 + round_ / 5, lambda: os.kill(server.process.pid, signal.SIGKILL))
            kill.start()
            try:
                while True:
                    self.assertEqual(server.put("k", table(acknowledged, batch)), batch)
                    acknowledged += batch
            except Exception as error:
                self.assertNotIsInstance(error, AssertionError)
            kill.join()
            server.process.wait()
            server.start()
            with server.client() as client:
                told = read(client, command_descriptor(query={
                    "keyspace": "k", "select": "count(*) as n", "where": f"id < {acknowledged}"}))
            self.assertEqual(told["n"].to_pylist(), [acknowledged])
        self.assertGreater(acknowledged, 0)


if __name__ == "__main__":
    unittest.main()
