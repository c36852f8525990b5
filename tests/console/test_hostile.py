"""Keys and values that would like to be more than text, at every place of the page that shows them."""

import unittest

from selenium.webdriver.common.keys import Keys

from console import PageTest, papers

IMAGE = "<img src=x onerror=alert(1)>"
HOSTILE = [
    IMAGE,
    "</script><script>alert(2)</script>",
    "\"'><svg onload=alert(3)>",
    "' or 1=1; -- ${alert(4)} {{alert(5)}}",
    "javascript:alert(6)",
    "abc\u202egnp.exe\u2066\u200b\ufeff",
    "control \x07 \x1b[31m \x7f \x85",
    "line\nfeed\ttab\rreturn",
    "\U0001f926\U0001f3fd\u200d\u2642\ufe0f и ﷽ 文",
]
LONG = "<b>" * 3400


class Hostile(PageTest):
    @classmethod
    def setUpClass(cls):
        cls.server = papers()
        cls.server.run("keyspace", "create", "hostile")
        cls.server.run("keyspace", "format", "hostile", "key: id u32be; value: n u32le, text string")
        lines = []
        for place, text in enumerate([*HOSTILE, LONG]):
            value = place.to_bytes(4, "little") + text.encode()
            lines.append("".join(f"\\x{byte:02x}" for byte in place.to_bytes(4, "big")) + "\t" + "".join(f"\\x{byte:02x}" for byte in value))
        cls.server.run("load", "--keyspace", "hostile", "--format", "tsv", input="\n".join(lines).encode() + b"\n")
        for text in (IMAGE.replace(" ", "_"), "</script><script>alert(7)</script>", "\u202eleft"):
            # memcached's keys have no spaces.
            key = text.encode()
            cls.server.memcached(b"set %s 0 0 %d\r\n%s\r\nget %s\r\n" % (key, len(key), key, key))

    def assert_text(self, box, *texts):
        """All of it is text: no element came of it."""
        made = "img, script, iframe, b b, svg[onload], [onerror]"
        found = self.script("return [...document.getElementById('content').querySelectorAll(arguments[0])].map((found) => found.outerHTML)", made)
        self.assertEqual(found, [])
        shown = self.script("return document.querySelector(arguments[0]).textContent", box)
        for text in texts:
            self.assertIn(text, shown)

    def test_in_the_rows_of_a_query(self):
        self.open(self.server, "query")
        self.query("select text, n from hostile", "drive")
        self.assert_text("#answer", *HOSTILE[:5], "\\u202egnp.exe", "\\u2066", "\\x07", "и ﷽ 文")
        # The long one opens, whole.
        self.one("#answer button.quiet").click()
        self.until(lambda: len(self.script("return document.activeElement.textContent")) == len(LONG), "the whole text")
        self.assert_text("#answer", LONG)

    def test_in_charts(self):
        self.open(self.server, "query")
        self.query("select text, max(n) as \"<img src=x onerror=alert(9)>\" from hostile where n < 9 group by text", "drive")
        self.assert_text("#answer", "<img src=x onerror=")
        self.assertGreater(len(self.all("#answer svg text")), 5)

    provoked = (400, 404, 422)

    def test_in_errors(self):
        self.open(self.server, "query")
        self.query(f"select count(*) from \"{IMAGE}\"", "drive")
        self.assert_text("#answer", "onerror")
        self.query("select text from hostile where text = '</script><script>alert(8)</script>", "drive")
        self.assert_text("#answer")
        self.query("select count(*) as n, min(n) from hostile where text = '' or text = ''' or 1=1; --'", "drive")
        self.assertEqual(self.rows("#answer > .scrolls")[0][0], "0")

    def test_in_samples(self):
        self.open(self.server, "keyspaces")
        for name, text in (("hostile", IMAGE), ("default", IMAGE.replace(" ", "_"))):
            self.show_sample(name)
            self.until_text("#sample", text)
            self.assert_text("#sample", text, "</script>")
        self.one("#sample-prefix").send_keys(IMAGE, Keys.ENTER)
        self.until_text("#sample", "No key begins so.")

    def test_in_slow_requests(self):
        self.open(self.server)
        self.one("#slow-title")
        self.until_text("#latencies", "get, since the start")
        self.assert_text("#slow")


if __name__ == "__main__":
    unittest.main()
