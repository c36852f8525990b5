"""Users and TLS at the doors: who gets Prometheus' figures, which addresses are refused, and files that cannot be used."""

import base64
import concurrent.futures
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time

from access import PASSWORD, PLAIN, AccessTest, Curl, needs_curl, needs_openssl
from certificates import openssl

RELOADS = 100


@needs_curl
class Metrics(AccessTest):
    def test_figures_are_for_users_who_may_read_the_store(self):
        authority = self.authority()
        self.add("alice", "--read", "*")
        self.add("root", "--admin", "*")
        self.add("bob", "--write", "default")
        server = self.serve(*PLAIN, "--metrics", "127.0.0.1:0", "--users-file", self.users, *self.tls)
        ask = Curl(server, authority)
        self.assertEqual(ask.scheme, "https")
        status, text = ask()
        self.assertEqual(status, 401)
        self.assertRegex(text, '(?i)www-authenticate: Basic realm="tapetum"\n')
        self.assertNotIn("tapetum_", text)
        for user in ("alice", "root"):
            status, text = ask(user)
            self.assertEqual(status, 200)
            self.assertIn("\ntapetum_auth_cmds_total ", text)
        # A name that is not there, and another password, are told alike.
        self.assertEqual(ask("nobody")[0], 401)
        status, text = ask("alice", "open sesame")
        self.assertEqual(status, 401)
        self.assertNotIn("tapetum_", text)
        status, text = ask("bob")
        self.assertEqual(status, 403)
        self.assertIn("read:*", text)
        self.assertNotIn("www-authenticate", text.lower())
        # Nothing is told of a path before a login.
        self.assertEqual(ask(path="/nothing")[0], 401)
        self.assertEqual(ask("alice", path="/nothing")[0], 404)
        self.assertEqual(ask("alice", options=("--request", "POST"))[0], 405)
        for version in ("--tlsv1.2", "--tlsv1.3"):
            self.assertEqual(ask("alice", options=(version, "--tls-max", version[-3:]))[0], 200)
        self.assertNotEqual(ask.run("--tls-max", "1.1", "--user", f"alice:{PASSWORD}").returncode, 0)
        for header in ("Basic", "Basic !!!", "Bearer abc", "Basic " + "A" * 4000):
            self.assertEqual(ask(options=("--header", f"authorization: {header}"))[0], 401, header)
        # As memcached counts: all that were tried, and of these the wrong ones.
        text = ask("alice")[1]
        commands, errors = (int(re.search(rf"\ntapetum_auth_{name}_total (\d+)", text)[1]) for name in ("cmds", "errors"))
        self.assertEqual((commands, errors), (14, 6))
        self.assertEqual(server.stop(), 0)

    def test_without_users_anybody_reads_and_no_login_is_counted(self):
        server = self.serve("--metrics", "127.0.0.1:0")
        ask = Curl(server)
        self.assertEqual(ask.scheme, "http")
        status, text = ask("alice")
        self.assertEqual(status, 200)
        self.assertIn("\ntapetum_auth_cmds_total 0\n", text)
        stats = server.ask("stats\r\n")
        self.assertIn("STAT auth_cmds 0\r\nSTAT auth_errors 0\r\n", stats)
        self.assertEqual(server.stop(), 0)

    def test_of_many_wrong_passwords_at_once_some_are_told_to_come_again_and_nobody_else_waits(self):
        self.add("alice", "--read", "*")
        server = self.serve("--metrics", "127.0.0.1:0", "--users-file", self.users)
        ask = Curl(server)
        self.assertEqual(ask("alice")[0], 200)
        with concurrent.futures.ThreadPoolExecutor(48) as pool:
            guesses = [pool.submit(ask, "alice", f"guess {number}") for number in range(48)]
            # Her password was right a moment ago. At the address that guesses she would wait: an answer at once would tell which guess is right.
            elsewhere = ("--interface", "127.0.0.2")
            self.assertEqual([ask("alice", options=elsewhere)[0] for _ in range(3)], [200] * 3)
            statuses = [guess.result()[0] for guess in guesses]
        self.assertEqual(set(statuses), {401, 503})
        self.assertGreaterEqual(statuses.count(401), 2)
        self.assertEqual(ask("alice", options=elsewhere)[0], 200)
        # Attempts that wait end with the server.
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            waiting = [pool.submit(ask.run, "--user", f"alice:last {number}") for number in range(8)]
            time.sleep(0.5)
            begun = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - begun, 5)
            self.assertTrue(all("tapetum_" not in one.result().stdout for one in waiting))

    def test_users_are_asked_for_without_tls_too(self):
        self.add("alice", "--read", "*")
        server = self.serve("--metrics", "notls:127.0.0.1:0", "--users-file", self.users)
        ask = Curl(server)
        self.assertEqual([ask()[0], ask("alice")[0], ask("alice", "x")[0]], [401, 200, 401])
        self.assertEqual(server.stop(), 0)

    def test_plain_http_gets_nothing_at_the_port_of_tls(self):
        authority = self.authority()
        server = self.serve(*PLAIN, "--metrics", "127.0.0.1:0", *self.tls)
        ask = Curl(server, authority)
        done = ask.run(url=ask.url.replace("https", "http"))
        self.assertNotIn("tapetum_", done.stdout)
        self.assertNotEqual(done.returncode, 0)
        # An authority that is not trusted, and a name that is not the certificate's.
        ask.trusted = ()
        self.assertNotEqual(ask.run().returncode, 0)
        ask.trusted = ("--cacert", authority.certificate)
        self.assertNotEqual(ask.run("--resolve", f"elsewhere:{ask.port}:127.0.0.1", url=f"https://elsewhere:{ask.port}/").returncode, 0)
        self.assertEqual(ask()[0], 200)
        # An address that says so has none.
        plain = self.serve("--metrics", "notls:127.0.0.1:0", *PLAIN, *self.tls, data=self.folder / "plain")
        self.assertEqual(Curl(plain).scheme, "http")
        self.assertEqual(Curl(plain)()[0], 200)

    def test_peers_that_never_finish_their_handshake_keep_nobody_out_and_are_closed(self):
        authority = self.authority()
        self.add("alice", "--read", "*")
        server = self.serve(*PLAIN, "--metrics", "127.0.0.1:0", "--users-file", self.users, *self.tls)
        ask = Curl(server, authority)
        begun = time.monotonic()
        # More than there are places. The head of a record of 512 bytes, and nothing of it.
        peers = [socket.create_connection(("127.0.0.1", ask.port), timeout=30) for _ in range(100)]
        for peer in peers:
            peer.sendall(b"\x16\x03\x01\x02\x00\x01")
        for _ in range(5):
            self.assertEqual(ask("alice")[0], 200)
        for peer in peers:
            try:
                while peer.recv(1 << 10):
                    pass
            except ConnectionResetError:
                pass
            peer.close()
        self.assertLess(time.monotonic() - begun, 20)
        self.assertEqual(ask("alice")[0], 200)
        self.assertEqual(server.stop(), 0)

    def test_a_client_shows_a_certificate_where_one_is_needed(self):
        authority = self.authority()
        chain, key = authority.issue("scraper", "DNS:scraper")
        server = self.serve(*PLAIN, "--metrics", "127.0.0.1:0", *self.tls, "--ssl-ca-cert", authority.certificate)
        ask = Curl(server, authority)
        self.assertNotEqual(ask.run().returncode, 0)
        self.assertEqual(ask(options=("--cert", chain, "--key", key))[0], 200)


@needs_curl
class Reload(AccessTest):
    def reload(self, server, told, times=1):
        before = server.log.count(told)
        server.process.send_signal(signal.SIGHUP)
        deadline = time.monotonic() + 20
        while server.log.count(told) < before + times:
            self.assertLess(time.monotonic(), deadline, server.log[-2000:])
            time.sleep(0.02)

    def serial(self, port, authority):
        """The serial number of the certificate that a client is shown."""
        words = ("s_client", "-connect", f"127.0.0.1:{port}", "-CAfile", authority.certificate, "-verify_return_error")
        return openssl("x509", "-noout", "-serial", input=openssl(*words, stdin=subprocess.DEVNULL)).strip()

    def test_users_and_certificates_are_read_again_and_bad_ones_are_not_taken(self):
        authority = self.authority()
        self.add("alice", "--read", "*")
        server = self.serve(*PLAIN, "--metrics", "127.0.0.1:0", "--users-file", self.users, *self.tls)
        ask = Curl(server, authority)
        self.assertEqual(ask("alice")[0], 200)
        first = self.serial(ask.port, authority)
        # A new certificate is the next connection's, and one who reads it keeps the old one until he ends.
        self.install(*authority.issue("second"))
        self.add("bob", "--read", "*", password="another one")
        self.reload(server, f"read {self.chain} again")
        self.assertIn(f"read {self.users} again: 2 users", server.log)
        second = self.serial(ask.port, authority)
        self.assertNotEqual(second, first)
        self.assertEqual([ask("alice")[0], ask("bob", "another one")[0]], [200, 200])
        # A bad one is named, and those before it hold.
        good = self.users.read_text(), self.chain.read_bytes()
        self.users.write_text(good[0] + "carol peek:*\n")
        self.chain.write_bytes(good[1][: len(good[1]) // 2])
        self.reload(server, "the certificate stays as it was: ")
        self.assertRegex(server.log, rf"ERROR the users stay as they were: {self.users}: line 4: ")
        self.assertRegex(server.log, rf"ERROR the certificate stays as it was: {self.chain}: ")
        self.assertEqual(self.serial(ask.port, authority), second)
        self.assertEqual([ask("alice")[0], ask("bob", "another one")[0]], [200, 200])
        # Files that are gone, or that others may read.
        self.users.unlink()
        self.chain.write_bytes(good[1])
        self.key.chmod(0o644)
        self.reload(server, "the certificate stays as it was: ")
        self.assertRegex(server.log, r"the users stay as they were: there is no users file \S+")
        self.assertIn(f"chmod 600 {self.key}", server.log)
        self.assertEqual(ask("alice")[0], 200)
        # A user who is gone, rights that are taken away, and a password that is another one.
        self.key.chmod(0o600)
        self.users.write_text("# nobody\n")
        self.users.chmod(0o600)
        self.add("alice", "--read", "default")
        self.reload(server, "again: 1 user\n")
        self.assertEqual([ask("alice")[0], ask("bob", "another one")[0]], [403, 401])
        self.add("alice", "--read", "*", password="a new one")
        self.reload(server, "again: 1 user\n")
        self.assertEqual([ask("alice")[0], ask("alice", "a new one")[0]], [401, 200])
        self.assertEqual(server.stop(), 0)

    def test_scrapes_go_on_while_files_are_read_again(self):
        authority = self.authority()
        self.add("alice", "--read", "*")
        server = self.serve(*PLAIN, "--metrics", "127.0.0.1:0", "--users-file", self.users, *self.tls)
        ask = Curl(server, authority)
        for _ in range(RELOADS):
            server.process.send_signal(signal.SIGHUP)
        self.assertEqual([ask("alice")[0] for _ in range(10)], [200] * 10)
        self.assertNotIn("ERROR", server.log)
        self.assertEqual(server.stop(), 0)

    def test_a_right_over_a_keyspace_that_is_not_there_is_warned_of(self):
        self.add("alice", "--read", "default", "--write", "papres")
        server = self.serve("--users-file", self.users)
        server.wait_for_log(f'WARN {self.users} has rights over the keyspace "papres", which is not there: ')
        self.add("bob", "--read", "other")
        self.reload(server, "which is not there, and over 1 more: ")
        self.assertEqual(server.stop(), 0)


class OpenAddresses(AccessTest):
    def doors(self, data):
        done = self.tapetum(
            "keyspace", "create", "disk", "--block-device", "16MiB", "--create", "--data", data, "--capacity", "64MiB", "--memory", "64MiB"
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        local = ("--memcached", "127.0.0.1:0")
        return [
            ("--memcached", ("--memcached", "0.0.0.0:0")),
            ("--memcached", ("--memcached", "[::]:0")),
            ("--nbd", (*local, "--full", "error", "--nbd", "0.0.0.0:0")),
            ("--metrics", (*local, "--metrics", "0.0.0.0:0")),
            ("--flight", (*local, "--flight", "0.0.0.0:0")),
            ("--udp", (*local, "--udp", "0.0.0.0:0")),
        ]

    def start(self, *options):
        server = self.serve(*options)
        self.assertEqual(server.stop(), 0, server.log)
        return server.log

    def test_an_address_beyond_this_machine_needs_tls_and_users_or_a_word(self):
        authority = self.authority()
        self.add("alice", "--admin", "*")
        users = ("--users-file", self.users)
        for option, options in self.doors(self.folder / "data"):
            with self.subTest(options=options):
                told = self.refused(*options)
                self.assertRegex(told, rf"other machines reach {option} \S+:")
                self.assertIn("--insecure", told)
                self.start(*options, "--insecure")
                if option == "--udp":
                    self.assertRegex(self.refused(*options, *users, *self.tls), "UDP has no logins")
                    anonymous = (*users, *self.tls, "--udp-anonymous", "default")
                    self.assertRegex(self.refused(*options, *anonymous), "UDP has neither users nor encryption")
                    self.start(*options, *anonymous, "--insecure")
                    continue
                # One of both is not enough.
                self.assertRegex(self.refused(*options, *self.tls), "other machines reach")
                if option != "--nbd":
                    self.assertRegex(self.refused(*options, *users), "other machines reach")
                    self.assertNotIn("--insecure", self.start(*options, *users, *self.tls))
                    self.assertRegex(self.refused(*self.plain(options), *users, *self.tls), "other machines reach")
                else:
                    self.assertRegex(self.refused(*options, *users, *self.tls), "nobody could log in at --nbd")
                    self.start(*options, *users, *self.tls, "--ssl-ca-cert", authority.certificate)

    def plain(self, options):
        return [f"notls:{word}" if word in ("0.0.0.0:0", "[::]:0") else word for word in options]

    def test_nothing_is_made_where_a_server_is_refused(self):
        self.refused("--memcached", "0.0.0.0:0")
        self.assertFalse((self.folder / "data").exists())


@needs_openssl
class BadFiles(AccessTest):
    def test_each_file_that_cannot_be_used_is_named_with_what_to_do(self):
        authority = self.authority()
        (good_chain, good_key), (other_chain, other_key) = authority.issue("good"), authority.issue("other")
        old = authority.issue("old", end="20200201000000Z")
        young = authority.issue("young", begin="20690101000000Z")
        folder = self.folder / "bad"
        folder.mkdir()

        def made(name, content):
            (folder / name).write_bytes(content)
            (folder / name).chmod(0o600)
            return folder / name

        chain, key = good_chain.read_bytes(), good_key.read_bytes()
        locked = folder / "locked"
        openssl("pkey", "-in", good_key, "-aes256", "-passout", "pass:secret", "-out", locked)
        locked.chmod(0o600)
        legacy = folder / "legacy"
        openssl("ec", "-in", good_key, "-aes256", "-passout", "pass:secret", "-out", legacy)
        legacy.chmod(0o600)
        loose = made("loose", key)
        loose.chmod(0o640)
        none = folder / "none"
        for chain_given, key_given, named, told in [
            (old[0], old[1], old[0], "has expired"),
            (young[0], young[1], young[0], "is not valid yet"),
            (good_chain, other_key, other_key, "another certificate's"),
            (other_chain, good_key, good_key, "another certificate's"),
            (made("cut", chain[: len(chain) // 2]), good_key, folder / "cut", "give a whole one"),
            (made("torn", chain.replace(b"A", b"!", 3)), good_key, folder / "torn", "give a whole one"),
            (made("noise", b"\x30\x82\x01\x02" + os.urandom(100)), good_key, folder / "noise", "in PEM"),
            (made("empty", b""), good_key, folder / "empty", "in PEM"),
            (none, good_key, none, "there is no such file"),
            (self.folder, good_key, self.folder, "directory"),
            (good_chain, made("cut.key", key[: len(key) // 2]), folder / "cut.key", "give a whole one"),
            (good_chain, made("empty.key", b""), folder / "empty.key", "in PEM"),
            (good_chain, made("chain.key", chain), folder / "chain.key", "there is no key in it"),
            (good_key, good_key, good_key, "there is no certificate in it"),
            (good_chain, locked, locked, "openssl pkey -in"),
            (good_chain, legacy, legacy, "openssl pkey -in"),
            (good_chain, loose, loose, f"chmod 600 {loose}"),
            (good_chain, none, none, "there is no such file"),
            (made("garbled", pem_of(b"\x30\x03\x02\x01\x01")), good_key, folder / "garbled", "make another"),
        ]:
            with self.subTest(told=told, named=named.name):
                error = self.refused("--ssl-chain-cert", chain_given, "--ssl-key", key_given, *PLAIN)
                self.assertIn(f"{named}", error)
                self.assertIn(told, error)
                self.assertNotRegex(error, "panicked|Error|[{(]\\[")
                self.assertFalse((self.folder / "data").exists())
        authorities = ("--ssl-chain-cert", good_chain, "--ssl-key", good_key, "--ssl-ca-cert")
        for given, told in [(made("no-ca", b""), "in PEM"), (none, "there is no such file"), (made("cut-ca", chain[:100]), "give a whole one")]:
            error = self.refused(*authorities, given, *PLAIN)
            self.assertIn(str(given), error)
            self.assertIn(told, error)

    def test_users_files_that_make_no_sense_or_that_others_read_are_refused(self):
        self.add("alice", "--read", "*")
        good = self.users.read_text()
        for text, told in [
            (good + good.splitlines()[-1], "line 3: the user \"alice\" is in line 2 already: leave one of them out"),
            (good + "bob read:*\n", "line 3: "),
            (good + "bob read:* secret\n", "line 3: "),
            (good + "bob\xff read:* -\n", "UTF-8"),
            (good + "bob peek:* -\n", "give read, write or admin"),
        ]:
            self.users.write_bytes(text.encode("latin-1"))
            error = self.refused("--users-file", self.users)
            self.assertIn(f"{self.users}: line ", error)
            self.assertIn(told, error)
            self.assertNotIn("secret", error)
        self.users.write_text(good)
        for mode in (0o640, 0o604, 0o666):
            self.users.chmod(mode)
            self.assertIn(f"chmod 600 {self.users}", self.refused("--users-file", self.users))
            self.assertIn(f"chmod 600 {self.users}", self.tapetum("user", "list", "--users-file", self.users).stderr)
        self.assertIn("tapetum user add", self.refused("--users-file", self.folder / "none"))
        # Lines may end as Windows' do.
        self.users.write_bytes(good.replace("\n", "\r\n").encode())
        self.users.chmod(0o600)
        self.assertEqual(self.serve("--users-file", self.users).stop(), 0)

    def test_ten_thousand_users_are_read_within_seconds(self):
        self.add("alice", "--read", "*")
        line = self.users.read_text().splitlines()[-1]
        text = "".join(f"{line.replace('alice', f'user{number}')}\n" for number in range(10_000))
        self.users.write_text(text)
        begun = time.monotonic()
        server = self.serve("--metrics", "127.0.0.1:0", "--users-file", self.users)
        self.assertLess(time.monotonic() - begun, 10)
        if shutil.which("curl"):
            self.assertEqual(Curl(server)("user9999")[0], 200)
        done = self.tapetum("user", "list", "--json", "--users-file", self.users)
        self.assertEqual(len(json.loads(done.stdout)), 10_000)
        self.assertEqual(server.stop(), 0)


def pem_of(der):
    return b"-----BEGIN CERTIFICATE-----\n" + base64.b64encode(der) + b"\n-----END CERTIFICATE-----\n"
