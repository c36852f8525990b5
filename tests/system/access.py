"""Servers with users and TLS: the files that they need, and curl, which asks for Prometheus' figures."""

import os
import re
import shutil
import subprocess
import unittest

from certificates import Authority
from host import SMALL, HostTest

# memcached's clients speak no TLS in these tests.
PLAIN = ("--memcached", "notls:127.0.0.1:0")
PASSWORD = "open sesame 4711"

needs_curl = unittest.skipUnless(shutil.which("curl") and shutil.which("openssl"), "curl asks, and openssl makes certificates")
needs_openssl = unittest.skipUnless(shutil.which("openssl"), "openssl makes certificates")


class AccessTest(HostTest):
    """Users and certificates, as files of the test's folder."""

    def setUp(self):
        super().setUp()
        self.users = self.folder / "users"

    def add(self, name, *rights, password=PASSWORD, users=None):
        words = ("user", "add", name, *rights, "--users-file", users or self.users, "--replace")
        secret = self.folder / "password"
        secret.write_text(password + "\n")
        secret.chmod(0o600)
        done = self.tapetum(*words, "--password-file", secret)
        secret.unlink()
        self.assertEqual(done.returncode, 0, done.stderr)

    def authority(self):
        authority = Authority(self.folder / "authority")
        self.chain, self.key = self.folder / "chain.pem", self.folder / "key.pem"
        self.install(*authority.issue("server"))
        return authority

    def install(self, chain, key):
        """As a program that renews certificates does."""
        for source, place in ((chain, self.chain), (key, self.key)):
            shutil.copy(source, f"{place}.new")
            os.chmod(f"{place}.new", 0o600)
            os.rename(f"{place}.new", place)

    @property
    def tls(self):
        return ("--ssl-chain-cert", self.chain, "--ssl-key", self.key)

    def refused(self, *options, data="data"):
        """The error of a server that does not start."""
        done = self.tapetum("serve", "--data", self.folder / data, *SMALL, *options)
        self.assertEqual(done.returncode, 1, done.stderr)
        return done.stderr.strip().splitlines()[-1]


def metrics_of(server):
    server.wait_for_log("/metrics")
    return re.search(r"figures for Prometheus at (https?)://(\S+):(\d+)/metrics", server.log).groups()


class Curl:
    """Asks for the figures with curl: the status, and all that came."""

    def __init__(self, server, authority=None):
        scheme, host, port = metrics_of(server)
        self.scheme, self.port = scheme, int(port)
        self.url = f"{scheme}://{host}:{port}/metrics"
        self.trusted = ("--cacert", authority.certificate) if authority else ()

    def run(self, *options, url=None):
        words = ("curl", "--silent", "--show-error", "--include", "--noproxy", "*", "--max-time", "40", *self.trusted)
        return subprocess.run((*words, *options, url or self.url), capture_output=True, text=True, check=False)

    def __call__(self, user=None, password=PASSWORD, path=None, options=()):
        login = ("--user", f"{user}:{password}") if user is not None else ()
        done = self.run(*login, *options, url=self.url.replace("/metrics", path) if path else None)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return int(done.stdout.split()[1]), done.stdout
