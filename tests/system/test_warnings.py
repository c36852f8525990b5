"""What the log warns of once: a store that fills up, addresses that strangers reach, memory that there is not."""

import os
import socket

from host import HostTest, needs_root

# Soon full.
TINY = ("--capacity", "16MiB", "--memory", "32MiB")
ITEM_BYTES = 32 << 10
NEARLY_FULL = "WARN flash is nearly full: "
FULL = "WARN writes are refused: flash is full; "
EVICTS = "WARN the store is full and evicts from now on: "


class Warnings(HostTest):
    def fill(self, server, until):
        """Sets items that do not compress until `until` answers true of the figures and of the last answer."""
        with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client, client.makefile("rb") as lines:
            for number in range(4096):
                client.sendall(b"set key%d 0 0 %d\r\n%s\r\n" % (number, ITEM_BYTES, os.urandom(ITEM_BYTES)))
                answer = lines.readline().decode().strip()
                client.sendall(b"stats\r\n")
                figures = dict(line.decode().split()[1:3] for line in iter(lines.readline, b"END\r\n"))
                if until(figures, answer):
                    return
        self.fail("the store did not fill up")

    def test_it_warns_when_flash_is_nearly_full_and_when_it_is_full(self):
        server = self.serve(*TINY)
        self.fill(server, lambda figures, _: int(figures["flash_room_bytes"]) < int(figures["limit_maxbytes"]) // 12)
        server.wait_for_log(NEARLY_FULL)
        self.assertNotIn(FULL, server.log)
        self.fill(server, lambda _, answer: answer != "STORED")
        server.wait_for_log(FULL)
        self.assertEqual(server.stop(), 0)
        self.assertEqual([server.log.count(told) for told in (NEARLY_FULL, FULL, EVICTS)], [1, 1, 0])

    def test_it_warns_once_when_eviction_begins(self):
        server = self.serve(*TINY, "--full", "evict")
        self.fill(server, lambda figures, _: int(figures["evictions"]) > 0)
        server.wait_for_log(EVICTS)
        self.assertEqual(server.stop(), 0)
        self.assertEqual([server.log.count(told) for told in (NEARLY_FULL, FULL, EVICTS)], [0, 0, 1])

    def test_it_warns_of_addresses_that_other_machines_reach(self):
        self.assertNotIn("other machines", self.serve().log)
        server = self.serve("--memcached", "0.0.0.0:0", "--insecure", data=self.folder / "open")
        self.assertRegex(server.log, r"WARN 0\.0\.0\.0:\d+ can be reached from other machines")

    @needs_root
    def test_it_warns_of_more_memory_than_its_control_group_allows(self):
        wrapper = self.folder / "in-a-group"
        wrapper.write_text(
            "#!/bin/sh\nmount -t tmpfs none /sys/fs/cgroup && echo 16777216 >/sys/fs/cgroup/memory.max && exec \"$@\"\n"
        )
        wrapper.chmod(0o755)
        server = self.serve(prefix=("unshare", "-m", wrapper))
        self.assertIn("WARN --memory 64MiB is more than the 16MiB that the control group of this process allows", server.log)
        self.assertEqual(server.stop(), 0)
