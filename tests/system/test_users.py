"""`tapetum user`: the users file, and where passwords come from."""

import json
import os
import pty
import select
import signal
import stat
import subprocess
import termios
import time

from host import BINARY, HostTest, needs_root

PASSWORD = "open sesame 4711"


class Terminal:
    """A command at a terminal of its own."""

    def __init__(self, *words):
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execv(BINARY, [str(word) for word in (BINARY, *words)])
        self.shown = ""

    def wait_for(self, text, seconds=20):
        deadline = time.monotonic() + seconds
        while text not in self.shown:
            ready = select.select([self.fd], [], [], max(0, deadline - time.monotonic()))[0]
            if not ready:
                raise AssertionError(f"the terminal does not show {text!r}: {self.shown!r}")
            self.shown += self.read()

    def read(self):
        try:
            return os.read(self.fd, 1 << 12).decode()
        except OSError:
            # Linux' answer when the command has ended.
            return ""

    def type(self, text):
        os.write(self.fd, text.encode())

    @property
    def echoes(self):
        return bool(termios.tcgetattr(self.fd)[3] & termios.ECHO)

    def end(self):
        """Its exit status."""
        while piece := self.read():
            self.shown += piece
        status = os.waitpid(self.pid, 0)[1]
        self.is_left_echoing = self.echoes
        os.close(self.fd)
        return os.waitstatus_to_exitcode(status)


class Users(HostTest):
    def setUp(self):
        super().setUp()
        self.users, self.password = self.folder / "users", self.folder / "password"
        self.password.write_text(PASSWORD + "\n")
        self.password.chmod(0o600)

    def user(self, *words, typed=None, variables=()):
        environment = {**os.environ, **dict(variables)}
        words = (BINARY, "user", *words)
        return subprocess.run(words, input=typed, capture_output=True, check=False, env=environment)

    def add(self, *words, typed=None, variables=()):
        given = ("--password-file", "-") if typed is not None else ("--password-file", self.password)
        return self.user("add", *words, "--users-file", self.users, *given, typed=typed, variables=variables)

    def lines(self):
        return [line.split() for line in self.users.read_text().splitlines() if not line.startswith("#")]

    def refused(self, done, told):
        self.assertEqual((done.returncode, done.stdout), (1, b""), done.stderr)
        self.assertIn(told, done.stderr.decode())

    def test_users_are_added_listed_replaced_and_removed(self):
        done = self.add("alice", "--read", "papers", "--write", "default")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn(b"SIGHUP", done.stderr)
        self.assertEqual(stat.S_IMODE(self.users.stat().st_mode), 0o600)
        self.assertEqual(self.add("root", "--admin", "*").returncode, 0)
        done = self.user("add", "disks", "--write", "disk 0", "--certificate", "--users-file", self.users)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotIn(PASSWORD, self.users.read_text())
        self.assertEqual([line[:2] for line in self.lines()], [["alice", "write:default,read:papers"], ["root", "admin:*"], ["disks", "write:disk%200"]])
        self.assertEqual(self.lines()[2][2], "-")
        self.assertTrue(self.lines()[0][2].startswith("$argon2id$v=19$m=19456,t=2,p=1$"))
        listed = self.user("list", "--users-file", self.users).stdout.decode()
        self.assertEqual([line.split()[:2] for line in listed.splitlines()[1:]], [["alice", "password"], ["disks", "certificate"], ["root", "password"]])
        self.assertNotIn("argon2", listed)
        rows = json.loads(self.user("list", "--json", "--users-file", self.users).stdout)
        self.assertEqual(rows[0], {"name": "alice", "rights": "write:default,read:papers", "known_by": "password"})
        before = self.users.read_text()
        self.refused(self.add("alice", "--read", "*"), "give --replace")
        self.assertEqual(self.users.read_text(), before)
        self.assertEqual(self.add("alice", "--read", "*", "--replace").returncode, 0)
        self.assertEqual([line[1] for line in self.lines() if line[0] == "alice"], ["read:*"])
        self.assertNotEqual(self.lines()[-1][2], before.split("\n")[1].split()[2], "each hash has a salt of its own")
        self.assertEqual(self.user("remove", "root", "--users-file", self.users).returncode, 0)
        self.assertEqual([line[0] for line in self.lines()], ["disks", "alice"])
        self.refused(self.user("remove", "root", "--users-file", self.users), "there is no user root in")
        self.refused(self.user("remove", "root", "--users-file", self.folder / "none"), "there is no users file")
        self.refused(self.user("list", "--users-file", self.folder / "none"), "there is no users file")
        self.assertEqual(sorted(os.listdir(self.folder)), ["password", "users"])

    def test_passwords_come_from_files_standard_input_and_variables(self):
        for number, (typed, variables) in enumerate([(PASSWORD.encode(), ()), (PASSWORD.encode() + b"\r\nmore", ()), (b"\xff\xfe\n", ())]):
            done = self.add(f"user{number}", "--read", "*", typed=typed, variables=variables)
            self.assertEqual(done.returncode, 0, done.stderr)
        variables = {"TAPETUM_USERS_FILE": str(self.users), "TAPETUM_PASSWORD_FILE": str(self.password)}
        done = self.user("add", "of-variables", "--read", "*", variables=variables)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(json.loads(self.user("list", "--json", variables=variables).stdout)), 4)
        self.assertEqual(self.user("remove", "user0", variables=variables).returncode, 0)
        # A descriptor, as a shell's <(…) is.
        shell = f'"$0" user add of-shell --read "*" --users-file {self.users} --password-file <(echo secret)'
        done = subprocess.run(("bash", "-c", shell, BINARY), capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_passwords_that_are_none_are_refused(self):
        too_long = "longer than 512 bytes"
        for typed, told in [(b"", "the password is empty"), (b"\n", "is empty"), (b"x" * (1 << 20), too_long), (b"x" * 513 + b"\n", too_long)]:
            self.refused(self.add("alice", "--read", "*", typed=typed), told)
            self.assertFalse(self.users.exists())
        self.assertEqual(self.add("alice", "--read", "*", typed=b"x" * 512).returncode, 0)
        self.refused(self.user("add", "bob", "--read", "*", "--users-file", self.users, typed=b"x\n"), "no terminal to ask")
        self.password.chmod(0o644)
        self.refused(self.add("bob", "--read", "*"), f"chmod 600 {self.password}")
        self.password.unlink()
        self.refused(self.add("bob", "--read", "*"), str(self.password))

    def test_names_and_rights_that_make_no_sense_are_refused(self):
        for words, told in [
            (("alice",), "may do nothing: give --read"),
            (("al:ice", "--read", "*"), "leave out white space"),
            (("#alice", "--read", "*"), "leave out white space"),
            (("al ice", "--read", "*"), "leave out white space"),
            (("", "--read", "*"), "the name is empty"),
            (("a" * 200, "--read", "*"), "128 are the most"),
        ]:
            self.refused(self.add(*words), told)
        self.assertEqual(self.add("alice", "--raed", "*").returncode, 2)
        # A password is never a word of the command line.
        self.assertEqual(self.add("alice", "secret", "--read", "*").returncode, 2)
        self.assertFalse(self.users.exists())

    def test_a_file_with_mistakes_is_not_edited(self):
        self.users.write_text("alice read:* -\nalice read:* -\n")
        self.users.chmod(0o600)
        self.refused(self.add("bob", "--read", "*"), f"{self.users}: line 2: ")
        self.refused(self.user("remove", "alice", "--users-file", self.users), "line 2: ")
        # Comments and ends of lines stay.
        self.users.write_bytes(b"# who is who\r\n\r\nalice\tread:*  -\r\n")
        self.assertEqual(self.add("bob", "--read", "*").returncode, 0)
        self.assertTrue(self.users.read_bytes().startswith(b"# who is who\r\n\r\nalice\tread:*  -\r\nbob read:* $argon2id$"))
        self.assertEqual(self.user("remove", "alice", "--users-file", self.users).returncode, 0)
        self.assertTrue(self.users.read_bytes().startswith(b"# who is who\r\n\r\nbob "))

    def test_a_command_that_was_killed_leaves_nothing_in_the_way(self):
        self.assertEqual(self.add("alice", "--read", "*").returncode, 0)
        left = self.folder / "users.unfinished"
        names = set(os.listdir(self.folder))
        left.write_text("alice")
        self.assertEqual(self.add("bob", "--read", "*").returncode, 0)
        self.assertEqual([line[0] for line in self.lines()], ["alice", "bob"])
        self.assertLessEqual(set(os.listdir(self.folder)) - names, {left.name})

    def test_several_at_once_lose_nobody(self):
        words = (BINARY, "user", "add")
        rest = ("--read", "*", "--users-file", self.users, "--password-file", self.password)
        running = [subprocess.Popen((*words, f"user{number}", *rest), stderr=subprocess.DEVNULL) for number in range(8)]
        self.assertEqual([one.wait(timeout=60) for one in running], [0] * 8)
        self.assertEqual({line[0] for line in self.lines()}, {f"user{number}" for number in range(8)})

    @needs_root
    def test_root_leaves_the_file_to_whom_it_belongs(self):
        os.chown(self.folder, 65534, 65533)
        self.assertEqual(self.add("alice", "--read", "*").returncode, 0)
        owner = lambda: (self.users.stat().st_uid, self.users.stat().st_gid, stat.S_IMODE(self.users.stat().st_mode))
        self.assertEqual(owner(), (65534, 65533, 0o600))
        self.assertEqual(self.add("carol", "--read", "*").returncode, 0)
        self.assertEqual(owner(), (65534, 65533, 0o600))
        for user, group, name in ((12345, 12346, "bob"), (0, 0, "dave")):
            os.chown(self.users, user, group)
            self.assertEqual(self.add(name, "--read", "*").returncode, 0)
            self.assertEqual(owner(), (user, group, 0o600))
        self.assertEqual([line[0] for line in self.lines()], ["alice", "carol", "bob", "dave"])
        os.chown(self.users, 12345, 12346)
        self.assertEqual(self.user("list", "--users-file", self.users).returncode, 0)


class AtATerminal(HostTest):
    def setUp(self):
        super().setUp()
        self.users = self.folder / "users"
        self.words = ("user", "add", "alice", "--read", "*", "--users-file", self.users)

    def ask(self, *typed):
        terminal = Terminal(*self.words)
        for prompt, text in zip(("Password: ", "Again: "), typed):
            terminal.wait_for(prompt)
            # The prompt comes before the terminal is silent: typed too early, it would be shown, and dropped.
            while terminal.echoes:
                time.sleep(0.01)
            time.sleep(0.1)
            terminal.type(text)
        return terminal

    def test_what_is_typed_is_not_shown(self):
        terminal = self.ask(PASSWORD + "\n", PASSWORD + "\n")
        self.assertEqual(terminal.end(), 0, terminal.shown)
        self.assertNotIn("sesame", terminal.shown)
        self.assertTrue(terminal.is_left_echoing)
        self.assertTrue(self.users.exists())

    def test_two_different_passwords_and_an_empty_one_are_refused(self):
        for typed, told in [
            ((PASSWORD + "\n", "open\n"), "two different passwords"),
            (("\n", "\n"), "is empty"),
            (("x" * 3000 + "\n",) * 2, "longer than 512"),
        ]:
            terminal = self.ask(*typed)
            self.assertEqual(terminal.end(), 1, terminal.shown)
            self.assertIn(told, terminal.shown)
            self.assertNotIn("sesame", terminal.shown)
            self.assertTrue(terminal.is_left_echoing)
            self.assertFalse(self.users.exists())

    def test_a_terminal_that_is_left_shows_again_what_is_typed(self):
        terminal = self.ask("\x03")
        self.assertEqual(terminal.end(), 1, terminal.shown)
        self.assertIn("stopped by SIGINT: nothing was changed", terminal.shown)
        self.assertTrue(terminal.is_left_echoing)
        terminal = self.ask()
        terminal.wait_for("Password: ")
        os.kill(terminal.pid, signal.SIGTERM)
        self.assertEqual(terminal.end(), 1, terminal.shown)
        self.assertTrue(terminal.is_left_echoing)
        # The end of what is typed.
        terminal = self.ask("\x04", "\x04")
        self.assertEqual(terminal.end(), 1, terminal.shown)
        self.assertIn("is empty", terminal.shown)
        self.assertFalse(self.users.exists())
