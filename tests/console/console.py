"""A server with its console, and the browser that looks at it: one of each for all tests. `cargo x test-console` sets the environment, as of
tests/clients.

Every page that the tests open is watched: what it asked of whom, and what the browser's console said.
"""

import atexit
import functools
import http.client
import json
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import time
import unittest

from selenium import webdriver

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "clients"))
from server import BINARY, Server, free_port  # noqa: E402

PATIENCE = 30  # seconds; the machine may be busy
WIDE, HIGH = 1200, 900  # pixels


class ConsoleServer(Server):
    scheme = "http"

    def __init__(self, name, options=()):
        self.console_port = free_port()
        super().__init__(name, ["--console", f"127.0.0.1:{self.console_port}", *options])

    @property
    def origin(self):
        return f"{self.scheme}://127.0.0.1:{self.console_port}"

    def answers(self):
        try:
            with socket.create_connection(("127.0.0.1", self.console_port), timeout=5):
                return super().answers()
        except OSError:
            return False

    def run(self, *words, **options):
        """A command beside the server. Its output."""
        return command(*words, "--data", self.data, **options)

    def memcached(self, requests):
        """What the memcached door answers to these bytes."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE) as connection:
            connection.sendall(requests + b"quit\r\n")
            return b"".join(iter(lambda: connection.recv(65536), b""))

    def connect(self):
        if self.scheme == "http":
            return http.client.HTTPConnection("127.0.0.1", self.console_port, timeout=PATIENCE)
        context = ssl._create_unverified_context()
        return http.client.HTTPSConnection("127.0.0.1", self.console_port, timeout=PATIENCE, context=context)

    def post(self, name, body=b"{}", token=None, origin=..., method="POST", host=None, content_type="application/json"):
        """A request without a browser: its status, and its answer, of JSON if it is."""
        headers = {"Content-Type": content_type, "Origin": self.origin if origin is ... else origin,
                   "Authorization": token and f"Bearer {token}", "Host": host}
        connection = self.connect()
        try:
            body = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, f"/api/{name}", body, {name: value for name, value in headers.items() if value is not None})
            reply = connection.getresponse()
            text = reply.read()
            return reply.status, json.loads(text) if text.startswith(b"{") else text
        finally:
            connection.close()


def command(*words, **options):
    done = subprocess.run([BINARY, *map(str, words)], capture_output=True, timeout=120, **options)
    if done.returncode != 0:
        raise RuntimeError(f"{words}: {done.stderr}")
    return done.stdout


@functools.cache
def papers():
    """A server with a database of papers, and some items."""
    server = ConsoleServer("console-papers")
    atexit.register(server.close)
    command("generate", "papers", "--scale", "0.001", "--into", server.data)
    server.memcached(b"set hello 0 0 5\r\nworld\r\nget hello\r\nget nothing\r\n")
    return server


@functools.cache
def empty():
    """A server with nothing in it, which tests may stop and start."""
    server = ConsoleServer("console-empty")
    atexit.register(server.close)
    return server


@functools.cache
def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    # Root has no sandbox; containers have little shared memory; the certificates of tests are signed by nobody.
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--ignore-certificate-errors", "--disable-gpu", "--no-first-run",
                     "--disable-background-networking", "--disable-component-update", f"--window-size={WIDE},{HIGH}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    atexit.register(driver.quit)
    return driver


class PageTest(unittest.TestCase):
    """Opens pages, and looks that each stayed within its server and raised no error."""

    # Statuses of answers that a test provokes: the browser logs them as errors.
    provoked = ()

    def setUp(self):
        self.browser = browser()
        self.origins = set()
        self.addCleanup(self.assert_quiet)

    def open(self, server, view=""):
        # A page of the same address would stay as it is.
        self.browser.get("about:blank")
        for kind in ("browser", "performance"):
            self.browser.get_log(kind)
        self.origins.add(server.origin)
        self.browser.get(f"{server.origin}/{view and '#' + view}")

    def assert_quiet(self):
        self.browser.get("about:blank")
        errors = [entry["message"] for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        errors = [error for error in errors if not any(f"status of {status} " in error for status in self.provoked)]
        self.assertEqual(errors, [])
        events = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        asked = {event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"}
        strange = [url for url in asked if not url.startswith(("data:", "about:", *(f"{origin}/" for origin in self.origins)))]
        self.assertEqual(strange, [])
        dialogs = [event for event in events if event["method"] == "Page.javascriptDialogOpening"]
        self.assertEqual(dialogs, [])

    def all(self, selector):
        """The elements that are seen. The page may exchange those of live figures at any moment."""
        return self.script("return [...document.querySelectorAll(arguments[0])].filter((found) => found.checkVisibility())", selector)

    def one(self, selector):
        """The first such element that is seen, when there is one."""
        return self.until(lambda: self.all(selector), selector)[0]

    def text(self, selector):
        """The text of the first such element, as it is seen."""
        self.one(selector)
        return self.script("return document.querySelector(arguments[0]).innerText", selector)

    def script(self, text, *arguments):
        return self.browser.execute_script(text, *arguments)

    def until(self, is_so, what="that"):
        deadline = time.monotonic() + PATIENCE
        while not (found := is_so()):
            if time.monotonic() > deadline:
                # Without the many choices of a list.
                shown = self.script("document.querySelectorAll('option').forEach((found) => found.remove()); return document.body.innerText")
                self.fail(f"it did not come to {what}; the page says: {shown[:3000]}")
            time.sleep(0.05)
        return found

    def until_text(self, selector, part):
        """Waits until a text is seen there. All of the text."""
        read = "return [...document.querySelectorAll(arguments[0])].map((found) => found.innerText).join('\\n')"
        return self.until(lambda: (lambda text: text if part in text else None)(self.script(read, selector)), f"{part!r} in {selector}")

    def press(self, key, holding=None):
        """A key, or a text, for whatever has the focus."""
        chain = webdriver.ActionChains(self.browser, duration=0)
        if holding:
            chain.key_down(holding).send_keys(key).key_up(holding).perform()
        else:
            chain.send_keys(key).perform()

    def query(self, sql, side="both"):
        """Runs a statement in the query box, and waits for what becomes of it."""
        # They come with a statement for the box.
        self.one("#examples button")
        box = self.one("#sql")
        box.clear()
        box.send_keys(sql)
        self.one(f"input[name=side][value={side}]").click()
        self.one("#query-form button.main").click()
        self.until(lambda: self.all("#answer table, #answer .error"), "an answer")

    def show_sample(self, name):
        """Presses the button of a keyspace in their list."""
        pressed = """const rows = [...document.querySelectorAll('#keyspace-list tbody tr')];
                     const button = rows.find((row) => row.cells[0].innerText === arguments[0])?.querySelector('button');
                     button?.click(); return button !== undefined"""
        self.until(lambda: self.script(pressed, name), name)

    def until_years(self):
        """The walk has venues and years to choose from."""
        self.until(lambda: self.script("return document.getElementById('year-to')?.value"), "years")

    def until_done(self, step):
        """A step of the walk has its result."""
        self.until(lambda: self.all(f"#{step}:not([aria-busy])"), step)
        self.assertEqual([error.text for error in self.all(f"#{step} .error")], [])

    def rows(self, selector):
        """The texts of a table's cells."""
        return self.script("""return [...document.querySelectorAll(arguments[0] + ' tbody tr')]
                                  .map((row) => [...row.cells].map((cell) => cell.innerText))""", selector)
