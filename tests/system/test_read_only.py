"""Stores that may be read and not written: a mount, a user, a device."""

import hashlib
import pathlib
import shutil
import subprocess
import tempfile

from host import BINARY, HostTest, needs_root

READERS = (("get", "a"), ("stats",), ("list",), ("dump",), ("check",), ("inspect",), ("inspect", "a"), ("inspect", "--map"))
NOBODY = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--bounding-set=-all")


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class ReadOnly(HostTest):
    def store(self, folder):
        """A store that a kill left with its last item in the log alone."""
        server = self.serve("--capacity", "16MiB", "--memory", "32MiB", data=folder)
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n")
        server.kill()
        return folder

    def reads_all(self, *place, command=(BINARY,)):
        for words in READERS:
            line = (*command, *words, *place, "--memory", "32MiB")
            done = subprocess.run(line, capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), words)
            if words[0] == "get":
                self.assertEqual(done.stdout, "x")

    @needs_root
    def test_a_file_system_that_is_mounted_to_read(self):
        folder = self.store(self.folder / "data")
        mounted = self.folder / "mounted"
        mounted.mkdir()
        self.run_quietly("mount", "--bind", folder, mounted)
        self.addCleanup(self.run_quietly, "umount", mounted)
        self.run_quietly("mount", "-o", "remount,ro,bind", mounted)
        self.reads_all("--data", mounted)
        self.assertIn("Read-only file system", self.tapetum("put", "a", "y", "--data", mounted, "--memory", "32MiB").stderr)

    @needs_root
    def test_a_user_who_may_not_write(self):
        drive = self.store(self.folder / "data") / "drive"
        drive.chmod(0o444)
        before = digest(drive)
        # Below a folder that everybody may enter.
        with tempfile.TemporaryDirectory() as name:
            away = pathlib.Path(name)
            away.chmod(0o755)
            for file in (drive, BINARY):
                shutil.copy(file, away / file.name)
            self.reads_all("--data", away, command=(*NOBODY, away / BINARY.name))
        self.assertEqual(digest(drive), before)

    @needs_root
    def test_a_block_device_is_read_by_several_and_through_a_server(self):
        image, device = self.folder / "image", self.loop_device(32 << 20)
        server = self.serve("--drive", device, "--capacity", "32MiB", "--memory", "32MiB")
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n")
        self.assertEqual(self.tapetum("get", "a", "--drive", device, "--memory", "32MiB").stdout, "x")
        self.assertIn("is in use", self.tapetum("repair", "--drive", device, "--memory", "32MiB").stderr)
        server.kill()
        before = digest(image)
        self.reads_all("--drive", device)
        self.run_quietly("sync", image)
        self.assertEqual(digest(image), before)
