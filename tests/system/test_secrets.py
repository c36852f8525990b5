"""Places where no secret may be seen: the command line, the log, figures, other processes, core dumps."""

import os
import pathlib
import shutil
import signal
import subprocess
import unittest

from access import PASSWORD, PLAIN, AccessTest, Curl, needs_curl
from host import needs_root

NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
CORE_PATTERN = pathlib.Path("/proc/sys/kernel/core_pattern").read_text().strip()


class Secrets(AccessTest):
    @needs_curl
    def test_no_password_is_told_anywhere(self):
        authority = self.authority()
        self.add("alice", "--read", "*")
        options = (*PLAIN, "--metrics", "127.0.0.1:0", "--users-file", self.users, *self.tls, "-v", "-v")
        server = self.serve(*options)
        ask = Curl(server, authority)
        wrong = "opne sesame 4711"
        self.assertEqual([ask("alice")[0], ask("alice", wrong)[0], ask(PASSWORD, "x")[0]], [200, 401, 401])
        server.wait_for_log("login failed lately")
        page = ask("alice")[1]
        process = pathlib.Path(f"/proc/{server.process.pid}")
        data = ("--data", self.folder / "data")
        told = [
            server.log,
            page,
            (process / "cmdline").read_text(),
            self.tapetum("stats", *data).stdout,
            self.tapetum("stats", *data, "--json").stdout,
        ]
        hashed = self.users.read_text().split()[-1]
        self.assertTrue(all(len(text) > 100 for text in told))
        login = f"alice {PASSWORD}"
        for text in (*told, server.ask(f"set auth 0 0 {len(login)}\r\n{login}\r\nstats settings\r\n")):
            for secret in (PASSWORD, wrong, hashed, hashed.split("$")[-1]):
                self.assertNotIn(secret, text)
        self.assertEqual(server.stop(), 0)
        self.assertNotIn("sesame", server.log)

    @needs_root
    @unittest.skipUnless(shutil.which("setpriv"), "setpriv gives privileges up")
    def test_other_processes_of_the_user_do_not_see_into_a_server_with_secrets(self):
        os.chmod(self.folder, 0o755)
        self.add("alice", "--read", "*")
        for name, options, is_seen in [("plain", (), True), ("secret", ("--users-file", self.users), False)]:
            data = self.folder / name
            data.mkdir()
            os.chown(data, 65534, 65534)
            os.chown(self.users, 65534, 65534)
            server = self.serve(*options, data=data, prefix=NOBODY)
            for file in ("environ", "maps"):
                seen = subprocess.run((*NOBODY, "cat", f"/proc/{server.process.pid}/{file}"), capture_output=True, check=False)
                self.assertEqual(seen.returncode == 0, is_seen, (name, file, seen.stderr))
            self.assertEqual(server.stop(), 0)

    @unittest.skipIf(CORE_PATTERN.startswith("|") or "/" in CORE_PATTERN, "another program takes cores here")
    def test_a_server_with_secrets_leaves_no_core(self):
        self.add("alice", "--read", "*")
        for name, options, is_left in [("plain", (), True), ("secret", ("--users-file", self.users), False)]:
            for number in (signal.SIGQUIT, signal.SIGABRT):
                folder = self.folder / f"{name}{number}"
                folder.mkdir()
                prefix = ("env", "-C", folder, "prlimit", "--core=unlimited")
                server = self.serve(*options, data=folder / "data", prefix=prefix)
                server.process.send_signal(number)
                self.assertEqual(server.process.wait(timeout=60), -number)
                self.assertEqual(any(path.name.startswith("core") for path in folder.iterdir()), is_left, name)
