"""Backups in object storage, as a user makes and restores them."""

import os
import random
import unittest

from storage import VERSITY, StorageTest, put, values, wait_for

KEYS = [f"key{number:04}" for number in range(300)]


class Backups(StorageTest):
    def test_what_was_backed_up_comes_back_elsewhere(self):
        server = self.serve()
        data = ("--data", self.folder / "data")
        put(server, KEYS, "old" * 100)
        self.assertIn("backup 1 has 1 keyspace", self.done("backup", "create", self.place, *data))
        put(server, KEYS[:10], "new" * 100)
        self.assertIn("backup 2 has", self.done("backup", "create", self.place, *data))
        self.assertEqual(self.backups(), [1, 2])
        self.assertIn("2 backups are whole", self.done("backup", "verify", self.place))
        old, new = self.restored("old", "--number", "1"), self.restored("new")
        self.assertEqual(values(old, KEYS), dict.fromkeys(KEYS, "old" * 100))
        self.assertEqual(values(new, KEYS), values(server, KEYS))
        self.assertIn("1 backup was removed", self.done("backup", "prune", self.place, "--keep", "1"))
        self.assertIn("1 backup is whole", self.done("backup", "verify", self.place))
        # All beneath the prefix, and another prefix is another depot.
        self.assertTrue(all(key.startswith("deep/in/") for key in self.storage.keys(self.bucket)))
        self.assertIn("has no backups", self.refused("backup", "list", f"s3://{self.bucket}/deep"))

    def test_lists_have_as_many_pages_as_they_need(self):
        self.serve().stop()
        data = ("--data", self.folder / "data")
        if VERSITY:
            self.run_quietly(os.environ["TAPETUM_X"], "try-depot", "--at", f"s3://{self.bucket}/many", "--objects", "1100")
        else:
            self.proxy.has_small_pages = True
        for _ in range(9):
            self.done("backup", "create", self.place, *data)
        self.assertEqual(self.backups(), list(range(1, 10)))
        self.assertIn("6 backups were removed", self.done("backup", "prune", self.place, "--keep", "3"))
        self.assertEqual(self.backups(), [7, 8, 9])

    def test_the_seam_keeps_its_promises(self):
        self.run_quietly(os.environ["TAPETUM_X"], "try-depot", "--at", self.place, "--objects", "30")
        # What is large comes in parts.
        self.assertTrue(any(method == "POST" and "uploadId" in path for method, path in self.proxy.seen))

    def test_two_writers_at_one_place(self):
        server = self.serve()
        put(server, KEYS, "x" * 500)
        words = ("backup", "create", self.place, "--data", self.folder / "data")
        both = [self.started(*words) for _ in range(2)]
        told = [(process.stderr.read(), process.wait()) for process in both]
        self.assertIn(0, [status for _, status in told], told)
        for error, status in told:
            self.assertTrue(status == 0 or "makes backups at" in error, error)
        self.assertIn("whole", self.done("backup", "verify", self.place))
        other = self.serve(data=self.folder / "other")
        self.assertIn("backups of another store", self.refused("backup", "create", self.place, "--data", self.folder / "other"))
        self.assertEqual((server.stop(), other.stop()), (0, 0))

    def test_what_a_killed_server_left_is_no_backup_and_the_next_one_is_whole(self):
        server = self.serve()
        put(server, KEYS, random.Random(1).randbytes(400).hex())
        slow = self.proxy.fault("PUT", "/packs/", "slow")
        words = ("backup", "create", self.place, "--data", self.folder / "data")
        create = self.started(*words)
        wait_for(lambda: slow.happened, "a pack is put")
        server.kill()
        self.assertNotEqual(create.wait(timeout=60), 0)
        self.assertIn("has no backups", self.refused("backup", "list", self.place))
        # The lease of who was killed is waited for.
        self.assertIn("backup 1 has", self.done(*words))
        self.assertEqual(values(self.restored("new"), KEYS), values(self.serve(), KEYS))


if __name__ == "__main__":
    unittest.main()
