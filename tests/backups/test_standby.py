"""A standby that follows backups in object storage, and the lease there."""

from storage import StorageTest, stored, values, wait_for

KEYS = [f"key{number:03}" for number in range(50)]
OFTEN = ("--every", "1", "--lease", "5")


def put_when_held(server, keys, value):
    """A busy machine may renew the lease too late: writes are refused meanwhile, and made again."""
    wait_for(lambda: stored(server, keys, value), "writes are taken")


class Standbys(StorageTest):
    def first(self):
        first = self.serve("--backup-to", self.place, *OFTEN, data=self.folder / "first")
        put_when_held(first, KEYS, "before")
        return first

    def wait_for_backup(self):
        """Waits for a backup that has begun after this call."""
        last = max(self.backups(), default=0)
        wait_for(lambda: max(self.backups(), default=0) > last + 1, "a later backup")

    def test_a_standby_takes_the_place_of_a_server_that_is_gone(self):
        first = self.first()
        self.wait_for_backup()
        second = self.serve("--follow", self.place, *OFTEN, data=self.folder / "second")
        self.assertEqual(values(second, KEYS), dict.fromkeys(KEYS, "before"))
        put_when_held(first, KEYS[:3], "later")
        wait_for(lambda: values(second, KEYS[:1]) == {KEYS[0]: "later"}, "the standby goes over to a later backup")
        first.kill()
        told = self.done("promote", self.place, "--data", self.folder / "second")
        self.assertIn("generation 2 began with backup", told)
        put_when_held(second, KEYS[3:6], "own")
        self.assertEqual(values(second, KEYS), {**dict.fromkeys(KEYS, "before"), **dict.fromkeys(KEYS[:3], "later"), **dict.fromkeys(KEYS[3:6], "own")})
        # The one that was gone is not let back.
        refused = self.refused("serve", "--data", self.folder / "first", "--memcached", "127.0.0.1:0", "--backup-to", self.place, *OFTEN)
        self.assertTrue("makes backups at" in refused or "promoted" in refused, refused)
        self.wait_for_backup()
        self.assertEqual(second.stop(), 0)
        self.assertEqual(values(self.restored("new"), KEYS[3:6]), dict.fromkeys(KEYS[3:6], "own"))

    def test_a_server_that_cannot_renew_its_lease_acknowledges_nothing_until_it_can(self):
        first = self.first()
        self.wait_for_backup()
        self.proxy.is_cut_off = True
        wait_for(lambda: "STORED" not in first.ask("set a 0 0 1\r\nx\r\n"), "a write is refused")
        self.assertEqual(len(values(first, KEYS)), len(KEYS))
        self.proxy.is_cut_off = False
        wait_for(lambda: "STORED" in first.ask("set a 0 0 1\r\nx\r\n"), "writes are taken again")
        self.assertEqual(first.stop(), 0)
        self.assertEqual(values(self.restored("new"), ["a"]), {"a": "x"})
