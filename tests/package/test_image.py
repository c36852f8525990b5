"""The image for containers, unpacked and run by chroot as a container runs it: its user, a root that is read only, no io_uring.

`cargo x test-image` names the image by TAPETUM_IMAGE. No runtime of containers is needed.
"""

import hashlib
import json
import os
import pathlib
import stat
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest

from fresh_root import SCRATCH, Served, needs_root

IMAGE = pathlib.Path(os.environ["TAPETUM_IMAGE"]) if "TAPETUM_IMAGE" in os.environ else None
CONFINED = pathlib.Path(__file__).parents[1] / "system" / "confined.py"
# $1: the root, $2: the volume, $3: its place, $4: the user, $5…: the command. A runtime mounts the same, and tmpfs where it is asked to.
CONTAIN = """
mount --bind "$1" "$1" && mount --options remount,bind,ro "$1" && mount --bind "$2" "$1$3" && mount --types proc proc "$1/proc" || exit 1
root=$1 user=$4; shift 4; exec chroot --userspec="$user" "$root" "$@"
"""


@needs_root
class Image(unittest.TestCase):
    def setUp(self):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        self.begun = time.monotonic()
        self.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
        self.folder.chmod(0o755)
        self.root, self.volume, archive = self.folder / "root", self.folder / "volume", self.folder / "archive"
        subprocess.run(("mkdir", self.root, archive), check=True)
        with tarfile.open(IMAGE) as tar:
            tar.extractall(archive, filter="data")
        manifest, = json.loads((archive / "manifest.json").read_text())
        self.archive, self.manifest = archive, manifest
        self.configuration = json.loads((archive / manifest["Config"]).read_text())
        for layer in manifest["Layers"]:
            subprocess.run(("tar", "--extract", "--numeric-owner", "--file", archive / layer, "--directory", self.root), check=True)
        # A runtime makes both: the place of /proc, and the volume as the image has its folder.
        (self.root / "proc").mkdir()
        subprocess.run(("cp", "--archive", self.root / "data", self.volume), check=True)
        self.config = self.configuration["config"]

    def test_its_parts_are_what_their_names_say(self):
        digests = {name: hashlib.sha256((self.archive / name).read_bytes()).hexdigest()
                   for name in (self.manifest["Config"], *self.manifest["Layers"])}
        self.assertTrue(all(name.startswith(digest) for name, digest in digests.items()), digests)
        self.assertEqual(self.configuration["rootfs"]["diff_ids"], [f"sha256:{digests[name]}" for name in self.manifest["Layers"]])

    def test_it_holds_no_more_than_it_needs(self):
        files = {str(path.relative_to(self.root)) for path in self.root.rglob("*") if path.is_file()}
        papers = {f"usr/share/doc/tapetum/{name}" for name in ("LICENSE-APACHE", "LICENSE-MIT", "THIRD-PARTY", "sbom.cdx.json")}
        self.assertEqual(files, {"tapetum", "etc/passwd", "etc/group"} | papers)
        user, _ = map(int, self.config["User"].split(":"))
        self.assertNotEqual(user, 0)
        data = (self.root / "data").stat()
        self.assertEqual((data.st_uid, stat.S_IMODE(data.st_mode)), (user, 0o700))

    def test_a_container_serves_without_root_a_writable_root_or_io_uring(self):
        self.assertNotEqual(self.run_health_check(), 0)
        server = self.serve()
        self.put(server)
        print(f"the image: {time.monotonic() - self.begun:.1f} s from its archive to the first item, without a runtime")
        self.assertIn("io_uring refused", server.log_path.read_text())
        self.assertEqual(self.run_health_check(), 0)
        # As `docker exec` does.
        self.assertEqual(self.contained("/tapetum", "get", "a").stdout, "x")
        self.assertEqual(server.stop(), 0)
        again = self.serve()
        self.assertEqual(self.contained("/tapetum", "get", "a").stdout, "x")
        self.assertEqual(again.stop(), 0)

    def test_other_machines_are_let_in_only_if_that_is_said(self):
        command = (*self.config["Entrypoint"], *self.config["Cmd"])
        refused = self.contained(*command, TAPETUM_MEMCACHED="0.0.0.0:0")
        self.assertNotEqual(refused.returncode, 0)
        self.assertIn("--insecure", refused.stdout)
        server = self.serve(TAPETUM_MEMCACHED="0.0.0.0:0", TAPETUM_INSECURE="true")
        self.put(server)
        self.assertEqual(server.stop(), 0)

    # Tools.

    def words(self, *command):
        place, = self.config["Volumes"]
        inside = ("sh", "-c", CONTAIN, "sh", self.root, self.volume, place, self.config["User"], *command)
        return ("unshare", "--mount", sys.executable, CONFINED, "--errno", "EPERM", "--", *inside)

    def variables(self, **added):
        ours = {"TAPETUM_CAPACITY": "64MiB", "TAPETUM_MEMORY": "64MiB", "TAPETUM_MEMCACHED": "127.0.0.1:0"}
        of_image = dict(variable.split("=", 1) for variable in self.config["Env"])
        # PATH finds mount and chroot before the image's root is there.
        return ours | of_image | added | {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}

    def contained(self, *command, **variables):
        return subprocess.run(self.words(*command), env=self.variables(**variables), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=60, check=False)

    def run_health_check(self):
        kind, *command = self.config["Healthcheck"]["Test"]
        self.assertEqual(kind, "CMD")
        return self.contained(*command).returncode

    def serve(self, **variables):
        command = (*self.config["Entrypoint"], *self.config["Cmd"])
        server = Served(self.words(*command), self.variables(**variables), self.folder / f"log{time.monotonic_ns()}")
        self.addCleanup(server.kill)
        return server

    def put(self, server):
        self.assertEqual(server.ask("set a 0 0 1\r\nx\r\nget a\r\n"), "STORED\r\nVALUE a 0 1\r\nx\r\nEND\r\n")
