"""What cannot work is refused with words that help, before anything is written."""

import unittest

from storage import KEY, SECRET, VERSITY, StorageTest, environment, free_port


class Refusals(StorageTest):
    def setUp(self):
        super().setUp()
        self.serve().stop()
        self.words = ("backup", "create", self.place, "--data", self.folder / "data")

    def nothing_was_written(self):
        self.assertEqual(self.storage.keys(self.bucket), [])

    @unittest.skipIf(VERSITY, "the condition is signed, and a proxy cannot take it out")
    def test_a_server_that_overwrites_what_must_not_be_there(self):
        self.proxy.ignores_conditions = True
        self.assertIn("ignores If-None-Match", self.refused(*self.words))
        self.nothing_was_written()
        self.proxy.ignores_conditions = False
        self.proxy.fault("PUT", "/probe", 501)
        self.assertIn("ignores If-None-Match", self.refused(*self.words))
        self.nothing_was_written()

    def test_settings_that_are_missing_or_wrong(self):
        cases = [
            ({"AWS_ALLOW_HTTP": None}, "AWS_ALLOW_HTTP=true"),
            ({"AWS_SECRET_ACCESS_KEY": None}, "AWS_SECRET_ACCESS_KEY is not set"),
            ({"AWS_ACCESS_KEY_ID": None}, "AWS_ACCESS_KEY_ID is not set"),
            ({"AWS_ENDPOINT_URL": f"https://{KEY}:{SECRET}@127.0.0.1"}, "AWS_ENDPOINT_URL holds a name or a password"),
            ({"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}"}, "cannot be reached (Connection refused"),
            ({"AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None, "AWS_METADATA_ENDPOINT": "http://127.0.0.1:1"}, "no credentials"),
        ]
        for variables, why in cases:
            with self.subTest(variables), environment(**variables):
                error = self.refused(*self.words)
                self.assertIn(why, error)
                self.assertIn(self.place, error)
        self.nothing_was_written()

    def test_what_the_server_refuses(self):
        for what, why in [
            ("code:SignatureDoesNotMatch", "access is denied (SignatureDoesNotMatch)"),
            ("code:AccessDenied", "access is denied (AccessDenied)"),
            ("code:RequestTimeTooSkewed", "set the clock"),
            (507, "there is no room"),
        ]:
            with self.subTest(what):
                self.proxy.faults.clear()
                self.proxy.fault("GET", "list-type=2", what, 10)
                self.assertIn(why, self.refused(*self.words))
        self.proxy.faults.clear()
        self.assertIn("there is no such bucket", self.refused("backup", "list", "s3://no-such-bucket-anywhere/a"))
        self.nothing_was_written()

    @unittest.skipUnless(VERSITY, "moto takes any signature")
    def test_a_wrong_key(self):
        with environment(AWS_SECRET_ACCESS_KEY="wrong" * 8):
            self.assertIn("access is denied (SignatureDoesNotMatch)", self.refused(*self.words))

    def test_urls_that_are_none(self):
        for url in ("gs://bucket", "s3:bucket", f"s3://{KEY}:{SECRET}@bucket/a", "s3://bucket/../a"):
            with self.subTest(url):
                told = self.tapetum_unchecked("backup", "list", url)
                self.assertIn("s3://BUCKET/PREFIX", told)

    def tapetum_unchecked(self, *words):
        # The parser of the command line repeats what the user typed, to the user.
        return super(StorageTest, self).tapetum(*words).stderr

    def test_the_environment_that_counts_is_the_servers(self):
        with environment(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, AWS_METADATA_ENDPOINT="http://127.0.0.1:1"):
            server = self.serve()
        error = self.refused(*self.words)
        self.assertIn("which is the server's where a server has the store open", error)
        self.assertEqual(server.stop(), 0)
        self.assertIn("backup 1 has", self.done(*self.words))
