"""The Python wheel in a virtual environment of its own, as a user installs it: the command, and the package.

`cargo x test-wheel` names the wheel by TAPETUM_WHEEL. numpy comes from PyPI.
"""

import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

from fresh_root import SCRATCH, Served

WHEEL = pathlib.Path(os.environ["TAPETUM_WHEEL"]) if "TAPETUM_WHEEL" in os.environ else None
ROOT = pathlib.Path(__file__).parents[2]
# The store as a program of Python's opens it, with pictures among its programs.
PROGRAM = """
import sys, tapetum
store = tapetum.open(sys.argv[1], capacity="64MiB", create=False)
print(store.get("a").decode())
store.close()
"""


class Wheel(unittest.TestCase):
    def test_its_list_of_files_is_right(self):
        with zipfile.ZipFile(WHEEL) as wheel:
            names = wheel.namelist()
            info, = {name.split("/")[0] for name in names if ".dist-info/" in name}
            record = wheel.read(f"{info}/RECORD").decode().splitlines()
            listed = {}
            for line in record:
                name, digest, size = line.rsplit(",", 2)
                listed[name] = (digest, size)
            self.assertEqual(sorted(listed), sorted(names))
            for name in names:
                if name != f"{info}/RECORD":
                    data = wheel.read(name)
                    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                    self.assertEqual(listed[name], (f"sha256={digest}", str(len(data))), name)
            metadata = wheel.read(f"{info}/METADATA").decode()
            for licence in re.findall(r"(?m)^License-File: (.*)$", metadata):
                self.assertIn(f"{info}/licenses/{licence}", names)
            self.assertIn("License-File: LICENSE-MIT\n", metadata)
            tags = re.findall(r"(?m)^Tag: (.*)$", wheel.read(f"{info}/WHEEL").decode())
        version = re.search(r'(?m)^version = "(.*)"$', (ROOT / "Cargo.toml").read_text())[1]
        self.assertIn(f"\nVersion: {version}\n", metadata)
        self.assertTrue(WHEEL.name.startswith(f"tapetum-{version}-cp311-abi3-"), WHEEL.name)
        self.assertTrue(all(tag.startswith("cp311-abi3-") and "linux" in tag for tag in tags), tags)

    def test_pip_installs_a_command_and_a_package(self):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
        environment, data = folder / "env", folder / "data"
        run(sys.executable, "-m", "venv", environment)
        begun = time.monotonic()
        run(environment / "bin/pip", "install", "--quiet", "--disable-pip-version-check", WHEEL)
        command = environment / "bin/tapetum"
        self.assertRegex(run(command, "--version"), r"^tapetum \d")
        words = (command, "serve", "--data", data, "--capacity", "64MiB", "--memory", "64MiB", "--memcached", "127.0.0.1:0")
        server = Served(words, os.environ, folder / "log")
        self.addCleanup(server.kill)
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\n"), "STORED\r\n")
        print(f"the wheel: {time.monotonic() - begun:.1f} s from pip install to the first item")
        self.assertEqual(run(command, "get", "a", "--data", data), "x")
        self.assertEqual(server.stop(), 0)
        self.assertEqual(run(environment / "bin/python", "-c", PROGRAM, data), "x\n")
        # Pictures are among its programs.
        self.assertIn("jpeg_decode", run(command, "programs"))


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, words))}: {done.stdout}{done.stderr}")
    return done.stdout
