"""The life of the Debian package in a fresh root: installed, used, upgraded, removed, purged.

`cargo x test-package` names the package by TAPETUM_DEB. systemd does not run in the root: a stand-in for systemctl keeps what it is told,
and the server is started by the words of the installed unit.
"""

import gzip
import os
import pathlib
import re
import shlex
import stat
import subprocess
import time
import unittest

from fresh_root import SCRATCH, FreshRoot, Served, needs_root

DEB = pathlib.Path(os.environ["TAPETUM_DEB"]) if "TAPETUM_DEB" in os.environ else None
CHANGED = "# Changed by the administrator.\nno-flush-all = true\n"
# Stands for a running systemd: keeps what it is told, and knows no unit that is masked.
SYSTEMCTL = """#!/bin/sh
echo "$*" >> /systemctl.log
case $* in *is-enabled*) echo enabled ;; esac
"""


@needs_root
class Deb(unittest.TestCase):
    def setUp(self):
        self.root = FreshRoot()
        self.addCleanup(self.root.remove)
        systemctl = self.root.path("/usr/bin/systemctl")
        systemctl.write_text(SYSTEMCTL)
        systemctl.chmod(0o755)
        self.root.path("/run/systemd/system").mkdir(parents=True)

    def test_its_life(self):
        self.install()
        self.see_files()
        self.put_and_get()
        self.upgrade()
        self.remove()
        self.purge_and_keep()
        self.purge_and_delete()

    # In this order.

    def install(self):
        begun = time.monotonic()
        self.apt_install(DEB)
        self.assertEqual(self.told(), ["start tapetum.service"])
        server = self.serve()
        server.ask("set first 0 0 4\r\nitem\r\n")
        print(f"the Debian package: {time.monotonic() - begun:.1f} s from apt-get install to the first item")
        self.assertEqual(server.stop(), 0)

    def see_files(self):
        root = self.root
        self.assertRegex(root.run("tapetum", "--version"), r"^tapetum \d+\.\d+\.\d+")
        _, _, number, group, _, home, shell = root.run("getent", "passwd", "tapetum").strip().split(":")
        self.assertEqual((home, shell), ("/var/lib/tapetum", "/usr/sbin/nologin"))
        data = root.path("/var/lib/tapetum").stat()
        self.assertEqual((data.st_uid, data.st_gid, stat.S_IMODE(data.st_mode)), (int(number), int(group), 0o700))
        drive = root.path("/var/lib/tapetum/drive").stat()
        self.assertEqual((drive.st_uid, stat.S_IMODE(drive.st_mode) & 0o077), (int(number), 0))
        for name, mode in [("/usr/bin/tapetum", 0o755), ("/etc/tapetum.toml", 0o644), ("/usr/lib/systemd/system/tapetum.service", 0o644)]:
            file = root.path(name).stat()
            self.assertEqual((file.st_uid, stat.S_IMODE(file.st_mode)), (0, mode), name)
        # The unit needs no program that a system without more packages lacks.
        unit = root.path("/usr/lib/systemd/system/tapetum.service").read_text()
        programs = re.findall(r"(?m)^Exec\w+=(\S+)", unit)
        self.assertEqual(len(programs), 2)
        self.assertEqual([program for program in programs if not root.path(program).exists()], [])
        page = gzip.decompress(root.path("/usr/share/man/man1/tapetum-serve.1.gz").read_bytes()).decode()
        self.assertRegex(page, r'(?m)^\.TH "?tapetum-serve"? 1')
        completion = "/usr/share/bash-completion/completions/tapetum"
        self.assertIn("tapetum", root.run("bash", "-c", f". {completion} && complete -p tapetum"))
        papers = root.path("/usr/share/doc/tapetum")
        self.assertIn("License: MIT or Apache-2.0", (papers / "copyright").read_text())
        self.assertIn("Permission is hereby granted", (papers / "copyright").read_text())
        self.assertIn("\nlibzstd ", gzip.decompress((papers / "THIRD-PARTY.gz").read_bytes()).decode())
        self.assertIn('"CycloneDX"', gzip.decompress((papers / "sbom.cdx.json.gz").read_bytes()).decode())
        # Every file is as the package's checksums say, which the settings are not part of.
        self.assertEqual(root.run("dpkg", "--verify", "tapetum"), "")

    def put_and_get(self):
        server = self.serve()
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n")
        self.assertRegex(server.ask("stats\r\n"), r"STAT build \S+\r\n")
        # Commands of root find the server by its settings.
        self.root.run("tapetum", "put", "greeting", "hello", "--config", "/etc/tapetum.toml")
        self.assertEqual(server.ask("get greeting\r\n"), "VALUE greeting 0 5\r\nhello\r\nEND\r\n")
        self.assertEqual(self.root.run("tapetum", "get", "a", "--config", "/etc/tapetum.toml"), "x")
        self.assertEqual(server.stop(), 0)

    def upgrade(self):
        settings = self.root.path("/etc/tapetum.toml")
        settings.write_text(settings.read_text() + CHANGED)
        self.told()
        self.apt_install(self.newer(), "--option=Dpkg::Options::=--force-confold")
        self.assertIn("9.0.0-1", self.root.run("dpkg-query", "--show", "tapetum"))
        self.assertEqual(self.told(), ["restart tapetum.service"])
        self.assertTrue(settings.read_text().endswith(CHANGED))
        server = self.serve()
        self.assertEqual(server.ask("get greeting\r\nflush_all\r\n"),
                         "VALUE greeting 0 5\r\nhello\r\nEND\r\nCLIENT_ERROR flush_all not allowed\r\n")
        self.assertEqual(server.stop(), 0)

    def remove(self):
        self.told()
        self.root.run("apt-get", "remove", "--yes", "tapetum")
        self.assertEqual(self.told(), ["stop tapetum.service"])
        self.assertFalse(self.root.path("/usr/bin/tapetum").exists())
        self.assertTrue(self.root.path("/etc/tapetum.toml").exists())

    def purge_and_keep(self):
        said = self.root.run("apt-get", "purge", "--yes", "tapetum")
        self.assertIn("the data stays in /var/lib/tapetum", said)
        self.assertFalse(self.root.path("/etc/tapetum.toml").exists())
        self.assertTrue(self.root.path("/var/lib/tapetum/drive").exists())
        # The data is its user's still, and the next installation serves it.
        self.apt_install(DEB)
        server = self.serve()
        self.assertEqual(server.ask("get greeting\r\n"), "VALUE greeting 0 5\r\nhello\r\nEND\r\n")
        self.assertEqual(server.stop(), 0)

    def purge_and_delete(self):
        self.root.run("sh", "-c", "echo 'tapetum tapetum/purge-data boolean true' | debconf-set-selections")
        said = self.root.run("apt-get", "purge", "--yes", "tapetum")
        self.assertNotIn("the data stays", said)
        self.assertFalse(self.root.path("/var/lib/tapetum").exists())
        self.assertNotIn("\ntapetum:", self.root.path("/etc/passwd").read_text())
        left = self.root.run("find", "/etc", "/usr", "/var", "-name", "*tapetum*").split()
        # dpkg's and apt's logs have other names; debconf forgets the question.
        self.assertEqual(left, [])

    # Tools.

    def apt_install(self, deb, *options):
        (self.root.path("/srv") / deb.name).write_bytes(deb.read_bytes())
        said = self.root.run("apt-get", "install", "--yes", *options, f"/srv/{deb.name}")
        (self.root.path("/srv") / deb.name).unlink()
        return said

    def newer(self):
        """The package as one of a later version, with other settings of its own."""
        folder = SCRATCH / "newer"
        subprocess.run(("dpkg-deb", "--raw-extract", DEB, folder), check=True)
        control = folder / "DEBIAN/control"
        control.write_text(re.sub(r"(?m)^Version: .*$", "Version: 9.0.0-1", control.read_text()))
        settings = folder / "etc/tapetum.toml"
        settings.write_text("# Of a later version.\n" + settings.read_text())
        made = SCRATCH / "tapetum_9.0.0-1.deb"
        subprocess.run(("dpkg-deb", "--root-owner-group", "-Znone", "--build", folder, made), check=True, stdout=subprocess.DEVNULL)
        return made

    def told(self):
        """What systemd was told to do with the unit since the last time."""
        log = self.root.path("/systemctl.log")
        lines = log.read_text().splitlines() if log.exists() else []
        log.unlink(missing_ok=True)
        orders = [re.search(r"\b(start|stop|restart) tapetum\.service$", line) for line in lines]
        return [order[0] for order in orders if order]

    def serve(self):
        """Runs what the installed unit says, as the user that it names."""
        unit = self.root.path("/usr/lib/systemd/system/tapetum.service").read_text()
        user = re.search(r"(?m)^User=(.*)$", unit)[1]
        command = shlex.split(re.search(r"(?m)^ExecStart=(.*)$", unit)[1])
        words = self.root.words("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--no-new-privs", *command)
        # Small, and on a port of its own: variables count before the settings.
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "TAPETUM_CAPACITY": "64MiB", "TAPETUM_MEMORY": "64MiB", "TAPETUM_MEMCACHED": "127.0.0.1:0"}
        server = Served(words, variables, SCRATCH / f"log{time.monotonic_ns()}")
        self.addCleanup(server.kill)
        return server
