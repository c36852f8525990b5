"""Many threads on one key: nothing is lost, nothing happens twice."""

import random
import threading
import unittest

from adapters import ALL
from server import Server

THREADS = 8
ROUNDS = 60


class Races:
    make = None

    @classmethod
    def setUpClass(cls):
        cls.server = Server(f"races-{cls.make.name}")
        cls.addClassCleanup(cls.server.close)

    def run_threads(self, work):
        """Runs `work(client, thread)` on every thread, each with a client of its own; gives what they returned."""
        results, failures = [None] * THREADS, []
        barrier = threading.Barrier(THREADS)

        def body(thread):
            client = self.make(self.server.port)
            try:
                barrier.wait()
                results[thread] = work(client, thread)
            except Exception as failure:  # told below, on the test's own thread
                failures.append(failure)
            finally:
                client.close()

        threads = [threading.Thread(target=body, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return results

    def test_no_update_is_lost_in_a_cas_loop(self):
        client = self.make(self.server.port)
        client.set("cas-counter", b"0")

        def work(client, _):
            for _ in range(ROUNDS):
                while True:
                    value, unique = client.gets("cas-counter")
                    if client.cas("cas-counter", str(int(value) + 1).encode(), unique):
                        break

        self.run_threads(work)
        self.assertEqual(int(client.get("cas-counter")), THREADS * ROUNDS)
        client.close()

    def test_every_increment_has_a_number_of_its_own(self):
        client = self.make(self.server.port)
        client.set("counter", b"0")
        seen = self.run_threads(lambda client, _: [client.incr("counter", 1) for _ in range(ROUNDS)])
        self.assertEqual(sorted(number for numbers in seen for number in numbers),
                         list(range(1, THREADS * ROUNDS + 1)))
        for numbers in seen:
            self.assertEqual(numbers, sorted(numbers))
        client.close()

    def test_one_add_wins(self):
        def work(client, thread):
            return [client.add(f"add-{number}", f"{thread}".encode()) for number in range(ROUNDS)]

        won = self.run_threads(work)
        client = self.make(self.server.port)
        for number in range(ROUNDS):
            winners = [thread for thread in range(THREADS) if won[thread][number]]
            self.assertEqual(len(winners), 1, f"add-{number}")
            self.assertEqual(client.get(f"add-{number}"), str(winners[0]).encode())
        client.close()

    def test_a_value_is_never_torn(self):
        """Writers and readers of a few large values: a reader sees one writer's value, whole."""

        def work(client, thread):
            source = random.Random(thread)
            for _ in range(ROUNDS):
                key = f"whole-{source.randrange(3)}"
                if thread % 2:
                    client.set(key, bytes([source.randrange(256)]) * source.randrange(1, 200_000))
                else:
                    value = client.get(key)
                    if value:
                        self.assertEqual(len(set(value)), 1)

        self.run_threads(work)


for adapter in ALL:
    globals()[f"Test{adapter.__name__}"] = type(
        f"Test{adapter.__name__}", (Races, unittest.TestCase), {"make": adapter, "__module__": __name__}
    )
