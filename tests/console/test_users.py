"""A console whose server has users and TLS: the login, what each user sees, and the way out."""

import unittest

from selenium.webdriver.common.keys import Keys

from console import ConsoleServer, PageTest
from secured import PASSWORD, Folder


class SecuredConsole(ConsoleServer):
    scheme = "https"

    def __init__(self, name, folder):
        super().__init__(name, ["--ssl-chain-cert", folder.chain, "--ssl-key", folder.key, "--users-file", folder.users])

    def answers(self):
        try:
            return self.post("login")[0] == 401
        except OSError:
            return False


class Users(PageTest):
    provoked = (401, 403)

    @classmethod
    def setUpClass(cls):
        folder = Folder("console")
        cls.addClassCleanup(folder.close)
        folder.user("root", "--admin", "*")
        folder.user("ada", "--read", "hers")
        cls.server = SecuredConsole("console-users", folder)
        cls.addClassCleanup(cls.server.close)
        for name in ("hers", "secret"):
            cls.server.run("keyspace", "create", name)
            cls.server.run("keyspace", "format", name, "key: id string; value: n u16le")
            cls.server.run("load", "--keyspace", name, input=b"a\t\\x01\\x00\n")

    def log_in(self, user, password=PASSWORD):
        self.one("#login-user").clear()
        self.one("#login-user").send_keys(user)
        self.one("#login-password").clear()
        self.one("#login-password").send_keys(password, Keys.ENTER)

    def test_a_wrong_password_is_told_in_place(self):
        self.open(self.server)
        self.one("#login-form")
        self.assertEqual(self.all("nav a, #view-overview"), [])
        self.log_in("root", "wrong")
        self.until(lambda: self.text("#login-error") if self.all("#login-error") else "", "an error")
        self.assertEqual(self.script("return document.activeElement.id"), "login-password")
        self.log_in("root")
        self.until_text("#who", "as root")
        self.until_text("#served", "console")
        self.assertEqual(self.script("return [localStorage.length, sessionStorage.length, document.cookie]"), [0, 0, ""])

    def test_one_sees_what_is_his_alone(self):
        self.open(self.server, "keyspaces")
        self.log_in("ada")
        self.until(lambda: self.rows("#keyspace-list"), "keyspaces")
        self.assertEqual([row[0] for row in self.rows("#keyspace-list")], ["hers"])
        self.assertEqual([link.text for link in self.all("nav a")], ["Keyspaces", "Query", "Walk"])
        self.assertNotIn("secret", self.script("return document.documentElement.innerHTML"))
        self.script("location.hash = 'query'")
        self.query("select count(*) as n from hers", "drive")
        self.assertEqual(self.rows("#answer > .scrolls"), [["1"]])
        self.query("select count(*) as n from secret", "drive")
        self.assertTrue(self.all("#answer .error"))
        # The address of a view does not open it.
        self.script("location.hash = 'drive'")
        self.until(lambda: self.all("#view-keyspaces"), "another view")
        self.assertEqual(self.all("#view-drive"), [])
        self.one("#log-out").click()
        self.one("#login-form")
        self.assertNotIn("hers", self.script("return document.body.innerText"))
        self.log_in("root")
        self.until_text("#who", "as root")
        self.assertEqual([link.text for link in self.all("nav a")], ["Overview", "Drive", "Keyspaces", "Query", "Walk"])

    def test_rights_hold_without_the_page(self):
        status, session = self.server.post("login", {"user": "ada", "password": PASSWORD})
        self.assertEqual((status, session["user"], session["may_read_store"]), (200, "ada", False))
        token = session["token"]
        for route in ("figures", "map", "slow"):
            self.assertEqual(self.server.post(route, token=token)[0], 403, route)
        self.assertEqual(self.server.post("sample", {"keyspace": "hers", "prefix": ""}, token=token)[0], 200)
        self.assertIn(self.server.post("sample", {"keyspace": "secret", "prefix": ""}, token=token)[0], (403, 404))
        # One that is not there cannot be told from one that is another's.
        def status_of(name):
            return self.server.post("query", {"sql": f"select count(*) from {name}", "side": "drive"}, token=token)[0]
        self.assertEqual(status_of("secret"), status_of("nowhere"))

    def test_a_lost_token_asks_again_and_keeps_the_view(self):
        self.open(self.server, "query")
        self.log_in("root")
        self.one("#sql")
        self.query("select count(*) as n from hers", "drive")
        self.server.restart()
        self.one("#login-form")
        self.log_in("root")
        self.until(lambda: self.all("#answer table"), "the view as it was")

    def assert_quiet(self):
        if self.id().endswith("keeps_the_view"):
            # The browser logs each request to a server that is not there.
            self.browser.get_log("browser")
        super().assert_quiet()


if __name__ == "__main__":
    unittest.main()
