"""The unit for systemd that is in the repository."""

import pathlib
import shutil
import subprocess
import unittest

from host import BINARY, HostTest

UNIT = pathlib.Path(__file__).parents[2] / "packaging" / "tapetum.service"


@unittest.skipUnless(shutil.which("systemd-analyze"), "systemd checks its units")
class Unit(HostTest):
    def test_systemd_has_nothing_to_say_of_it(self):
        # The binary must be there: this one is.
        unit = self.folder / UNIT.name
        unit.write_text(UNIT.read_text().replace("/usr/bin/tapetum", str(BINARY.resolve())))
        done = subprocess.run(("systemd-analyze", "verify", unit), capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))
