"""A fresh Debian in a folder: made once by mmdebstrap from the sources of this machine's apt, kept as an archive, and unpacked for each test.

`cargo x test-package` names the archive by TAPETUM_FRESH_ROOT; Debian's codename and a hash of the sources are added to its name. Only root can unpack it and run commands in it.
"""

import hashlib
import os
import pathlib
import platform
import re
import shutil
import socket
import subprocess
import tempfile
import time
import unittest

SCRATCH = pathlib.Path(os.environ.get("TAPETUM_SCRATCH", tempfile.gettempdir()))
ARCHIVE = pathlib.Path(os.environ.get("TAPETUM_FRESH_ROOT", SCRATCH / "fresh-root.tar"))
# Of Debian's own packages; their programs are what the tests need.
LEFT_OUT = ("/usr/share/man/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/i18n/*", "/usr/share/info/*")
# Outside its mount namespace the machine sees nothing of a root's /proc.
ENTER = 'mount -t proc proc "$1/proc" && root=$1 && shift && exec chroot "$root" "$@"'

needs_root = unittest.skipUnless(os.geteuid() == 0, "only root can unpack a fresh root")


def sources():
    """This machine's sources of packages that are Debian's own."""
    files = [pathlib.Path("/etc/apt/sources.list"), *sorted(pathlib.Path("/etc/apt/sources.list.d").glob("*"))]
    files = [file for file in files if file.suffix in (".list", ".sources") and file.exists()]
    return [file for file in files if re.search(r"^(deb |Types:).*", text := file.read_text(), re.MULTILINE) and "debian" in text]


def archive():
    """The archive of the root, which is made if it is not there. Another Debian, other sources or options make another."""
    options = [f"--dpkgopt=path-exclude={left_out}" for left_out in LEFT_OUT]
    # The package under test is installed with its manual.
    options.append('--customize-hook=rm -f "$1/etc/dpkg/dpkg.cfg.d/99mmdebstrap"')
    # With what the package recommends, its installation needs no network.
    options.append("--include=adduser,debconf,ca-certificates")
    parts = [*options, *(file.read_text() for file in sources())]
    hashed = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    codename = platform.freedesktop_os_release().get("VERSION_CODENAME", "unnamed")
    kept = ARCHIVE.with_stem(f"{ARCHIVE.stem}-{codename}-{hashed}")
    if not kept.exists():
        # Other jobs may make the same archive at the same time, each in a file of its own.
        made = kept.with_suffix(f".{os.getpid()}.new")
        words = ("mmdebstrap", "--quiet", "--variant=apt", "--format=tar", *options, "", made, *sources())
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            made.unlink(missing_ok=True)
            raise AssertionError(f"mmdebstrap makes no fresh root: {done.stderr}")
        made.rename(kept)
    return kept


class FreshRoot:
    """A root of its own in a folder."""

    def __init__(self):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
        self.folder.chmod(0o755)
        subprocess.run(("tar", "--extract", "--numeric-owner", "--file", archive(), "--directory", self.folder), check=True)

    def remove(self):
        shutil.rmtree(self.folder)

    def path(self, name):
        return self.folder / name.lstrip("/")

    def words(self, *words):
        return ("unshare", "--mount", "sh", "-c", ENTER, "sh", self.folder, *words)

    def run(self, *words, environment=None, check=True):
        """Runs a command in the root; what it printed, and its exit status if that may differ from 0."""
        variables = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
        done = subprocess.run(self.words(*words), env=variables | (environment or {}), stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}")
        return done.stdout


class Served:
    """A server as a process in a root or elsewhere."""

    def __init__(self, words, variables, log):
        self.log_path = log
        with open(log, "wb") as file:
            self.process = subprocess.Popen(words, env=variables, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        self.port = int(self.wait_for(r"to memcached clients at \S*:(\d+)$")[1])

    def wait_for(self, pattern, seconds=60):
        deadline = time.monotonic() + seconds
        while not (found := re.search(pattern, self.log_path.read_text(errors="replace"), re.MULTILINE)):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the log has no {pattern}:\n{self.log_path.read_text(errors='replace')[-2000:]}")
            time.sleep(0.01)
        return found

    def ask(self, text):
        """Sends lines and `quit`; all that comes back."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(text.encode() + b"quit\r\n")
            parts = []
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts).decode()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=60)

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
