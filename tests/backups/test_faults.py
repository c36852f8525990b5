"""Bad days: conflicts, overload, lost answers, cut bodies. Nothing half done is believed, and what passes is waited for."""

from storage import StorageTest, put, values

KEYS = [f"key{number:03}" for number in range(100)]


class Faults(StorageTest):
    def setUp(self):
        super().setUp()
        self.server = self.serve()
        put(self.server, KEYS, "first" * 50)
        self.words = ("backup", "create", self.place, "--data", self.folder / "data")

    def test_what_passes_is_waited_for(self):
        faults = [
            *(("PUT", "/deep/in/", what, 3) for what in (409, 429, 503, "lost")),
            *(("PUT", f"/{name}", "lost", 2) for name in ("probe", "store", "packs/", "backups/", "lease/")),
            ("GET", "list-type=2", 503, 2),
            ("GET", "list-type=2", "cut", 2),
            ("GET", "/deep/in/", "cut", 2),
            ("GET", "/store", "slow", 1),
            ("DELETE", "/lease/", "lost", 1),
        ]
        for number, fault in enumerate(faults, 1):
            with self.subTest(fault=fault):
                put(self.server, KEYS[:5], f"turn {number}" * 20)
                made = self.proxy.fault(*fault)
                self.assertIn(f"backup {number} has", self.done(*self.words))
                self.assertGreater(made.happened, 0)
                self.proxy.faults.clear()
        self.assertEqual(self.backups(), list(range(1, len(faults) + 1)))
        self.assertIn("are whole", self.done("backup", "verify", self.place))
        self.assertEqual(values(self.restored("new"), KEYS), values(self.server, KEYS))

    def test_bodies_that_are_cut_are_read_again_by_a_restore(self):
        self.done(*self.words)
        cut = self.proxy.fault("GET", "/(packs|backups)/", "cut", 3)
        self.assertEqual(values(self.restored("new"), KEYS), values(self.server, KEYS))
        self.assertEqual(cut.happened, 3)

    def test_a_backup_without_its_manifest_is_none(self):
        self.done(*self.words)
        put(self.server, KEYS[:5], "second" * 50)
        self.proxy.fault("PUT", "/backups/", 503, 10**6)
        error = self.refused(*self.words)
        self.assertIn("SlowDown", error)
        self.proxy.faults.clear()
        self.assertEqual(self.backups(), [1])
        self.assertIn("1 backup is whole", self.done("backup", "verify", self.place))
        self.assertIn("backup 2 has", self.done(*self.words))
        self.assertEqual(values(self.restored("new"), KEYS), values(self.server, KEYS))
