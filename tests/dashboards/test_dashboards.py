"""The dashboard and the alerts of packaging/, read by a real Prometheus of a real server: each query is about figures that there are, and
has an answer while every door is used.

`cargo x test-dashboards` sets TAPETUM_SERVER and TAPETUM_SCRATCH, and PYTHONPATH to where `host` is, tests/system. `prometheus` and
`promtool` are Debian's package prometheus, `nbdcopy` is libnbd-bin.
"""

import json
import math
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

import host
from host import BINARY, SCRATCH

PACKAGING = pathlib.Path(__file__).parents[2] / "packaging"
DASHBOARD = PACKAGING / "grafana/tapetum.json"
RULES = PACKAGING / "prometheus/tapetum.rules.yml"
ALERT_TESTS = PACKAGING / "prometheus/tests.yml"
SECONDS_MAX = 60
SCRAPE_S = 0.25
WINDOW = "2m"  # all of the test
NAME = re.compile(r"\b(?:tapetum|memcached)_\w+|\bup\b")
# One run in sixteen is measured: at the first look there may have been none.
MAY_BE_EMPTY = {"tapetum_drive_stage_unit_seconds_total"}
VALUE_BYTES, VALUES, PIECE = 8192, 4000, 100
PAUSE_S = 0.2  # of each client: Prometheus is to have its turn


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def fetch(url):
    with urllib.request.urlopen(url, timeout=SECONDS_MAX) as reply:
        return reply.read().decode()


class Standby(host.Server):
    """Has no capacity of its own."""

    def __init__(self, data, options):
        self.log_path = data.with_suffix(".log")
        words = [BINARY, "serve", "--data", data, "--memcached", "127.0.0.1:0", *options]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


class Clients:
    """Use every door of a server, until they are stopped."""

    def __init__(self, server, data, socket_path, image):
        self.server, self.data, self.disk, self.image = server, data, f"nbd+unix:///disk?socket={socket_path}", image
        self.over, self.wrong = threading.Event(), []
        self.threads = [threading.Thread(target=self.guarded, args=(use,)) for use in (self.use_memcached, self.use_disk, self.ask)]
        for thread in self.threads:
            thread.start()

    def guarded(self, use):
        try:
            while not self.over.is_set():
                use()
                self.over.wait(PAUSE_S)
        except Exception as error:  # The test tells it.
            self.wrong.append(error)

    def stop(self):
        self.over.set()
        for thread in self.threads:
            thread.join()

    def use_memcached(self):
        """Writes more than the write buffers hold, and reads what lies on flash; and what is in DRAM, again and again."""
        random = os.urandom(VALUE_BYTES).hex()
        for first in range(0, VALUES, PIECE):
            lines = []
            for number in range(first, first + PIECE):
                value = random[number:][:VALUE_BYTES]
                lines.append(f"set key{number} 0 0 {VALUE_BYTES} noreply\r\n{value}")
                # The tier has room for half of them.
                lines += [f"get key{(number + VALUES // 4) % VALUES}", f"get key{number - VALUES // 8}", "get n", "get absent"]
            lines += ["set m 0 0 1\r\n5", "incr m 1", "touch m 0", "delete m", "set n 0 0 1\r\n5"]
            self.server.ask("".join(f"{line}\r\n" for line in lines))

    def use_disk(self):
        for words in ((self.image, self.disk), (self.disk, "null:")):
            subprocess.run(["nbdcopy", "--flush", *words], check=True, capture_output=True)

    def ask(self):
        query = ["scan", "papers", "--where", "year >= 2000", "--select", "year", "--application", "reports"]
        for words in (query, ["put", "fruit:apple", "red", "--keyspace", "places"], ["scan", "places"]):
            subprocess.run([BINARY, *words, "--data", self.data], check=True, capture_output=True)


class Prometheus:
    def __init__(self, folder, targets):
        self.port = free_port()
        config = folder / "prometheus.yml"
        # JSON is YAML.
        config.write_text(json.dumps({
            "global": {"scrape_interval": f"{int(SCRAPE_S * 1000)}ms", "scrape_timeout": f"{int(SCRAPE_S * 1000)}ms", "evaluation_interval": "1s"},
            "rule_files": [str(RULES)],
            "scrape_configs": [{"job_name": "tapetum", "static_configs": [{"targets": targets}]}],
        }))
        words = ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}", "--log.level=warn",
                 f"--web.listen-address=127.0.0.1:{self.port}"]
        self.log = folder / "prometheus.log"
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(self, path, **parameters):
        url = f"http://127.0.0.1:{self.port}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            return json.loads(fetch(url))["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters or path}: {error.read().decode()}") from error

    def query(self, expression):
        return self.ask("query", query=expression)["result"]

    def wait_for(self, expression):
        """Waits until a query has an answer."""
        deadline = time.monotonic() + SECONDS_MAX
        while time.monotonic() < deadline:
            try:
                if self.query(expression):
                    return
            except (AssertionError, OSError):
                if self.process.poll() is not None:
                    break
            time.sleep(SCRAPE_S)
        raise AssertionError(f"Prometheus has nothing for {expression}:\n{self.log.read_text()[-2000:]}")

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=SECONDS_MAX)


def queries(dashboard):
    """Each panel's title, and a query of it as Grafana sends it."""
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", WINDOW).replace("$job", ".*").replace("$instance", ".*")
            yield panel["title"], expression


class Dashboards(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        SCRATCH.mkdir(parents=True, exist_ok=True)
        cls.folder = pathlib.Path(tempfile.mkdtemp(dir=SCRATCH))
        sockets = tempfile.TemporaryDirectory(prefix="tapetum-dashboards")  # the path of a socket is short
        cls.addClassCleanup(sockets.cleanup)
        first, second, backups, disk = cls.folder / "first", cls.folder / "second", cls.folder / "backups", f"{sockets.name}/disk"
        cls.tapetum("keyspace", "create", "disk", "--block-device", "4MiB", "--data", first, "--create", "--capacity", "256MiB")
        cls.tapetum("generate", "papers", "--scale", "0.0005", "--index", "ordered", "--into", first)
        cls.tapetum("keyspace", "create", "places", "--index", "ordered", "--data", first)
        image = cls.folder / "image"
        image.write_bytes(os.urandom(1 << 20) + bytes(3 << 20))
        cls.addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
        options = ("--capacity", "256MiB", "--memory", "128MiB", "--tier", "8MiB", "--write-buffer", "1MiB", "--sync", "everysec",
                   "--nbd", f"unix:{disk}", "--udp", f"127.0.0.1:{free_port()}", "--compute-units", "scan=1", "--weight", "reports=2",
                   "--backup-to", backups, "--every", "1", "--metrics", cls.addresses[0])
        server = cls.started(host.Server(first, options, (), first.with_suffix(".log")))
        clients = Clients(server, first, disk, image)
        cls.addClassCleanup(clients.stop)
        cls.prometheus = Prometheus(cls.folder, cls.addresses)
        cls.addClassCleanup(cls.prometheus.stop)
        cls.prometheus.wait_for("tapetum_backups_total > 0")
        cls.started(Standby(second, ("--memory", "128MiB", "--follow", backups, "--every", "1", "--metrics", cls.addresses[1])))
        cls.prometheus.wait_for("tapetum_nbd_compression_ratio")
        cls.prometheus.wait_for("tapetum_standby == 1")
        for name in ("tapetum_get_from_flash_total", "tapetum_get_from_tier_total", 'tapetum_get_seconds_count{from="flash"}', "tapetum_node_cache_hits_total",
                     'tapetum_get_seconds_count{from="memory"}', 'tapetum_drive_stage_out_bytes_total{stage="scan"}', "tapetum_user_write_bytes_total",
                     'tapetum_nbd_request_seconds_count{command="read"}', 'tapetum_nbd_request_seconds_count{command="flush"}', "tapetum_set_seconds_count"):
            cls.prometheus.wait_for(f"rate({name}[{WINDOW}]) > 0")
        clients.stop()  # their traces are there
        cls.dashboard = json.loads(DASHBOARD.read_text())
        cls.names = set(cls.prometheus.ask("label/__name__/values"))
        cls.clients = clients

    @staticmethod
    def tapetum(*words):
        subprocess.run([BINARY, *words], check=True, capture_output=True)

    @classmethod
    def started(cls, server):
        cls.addClassCleanup(server.kill)
        server.wait_until_it_serves()
        return server

    def assert_names(self, expression, where):
        absent = set(NAME.findall(expression)) - self.names
        self.assertFalse(absent, f"{where}: the server has no such figures")

    def test_every_query_of_the_dashboard_has_an_answer(self):
        count = 0
        for title, expression in queries(self.dashboard):
            with self.subTest(panel=title, query=expression):
                self.assert_names(expression, title)
                values = [float(sample["value"][1]) for sample in self.prometheus.query(expression)]
                if not MAY_BE_EMPTY & set(NAME.findall(expression)):
                    self.assertTrue(any(math.isfinite(value) for value in values), f"no value: {values}")
            count += 1
        self.assertGreater(count, 100)
        self.assertEqual(self.clients.wrong, [])

    def test_the_variables_of_the_dashboard_have_values(self):
        variables = self.dashboard["templating"]["list"]
        self.assertEqual([variable["name"] for variable in variables], ["datasource", "job", "instance"])
        for variable, expected in zip(variables[1:], (["tapetum"], sorted(self.addresses))):
            series, label = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"]).groups()
            found = self.prometheus.ask(f"label/{label}/values", **{"match[]": series.replace("$job", ".*")})
            self.assertEqual(sorted(found), expected)
        used = [panel["datasource"] for panel in self.dashboard["panels"] if panel["type"] != "row"]
        self.assertTrue(all(source["uid"] == "${datasource}" for source in used))
        self.assertEqual(len({panel["id"] for panel in self.dashboard["panels"]}), len(self.dashboard["panels"]))

    def test_every_alert_is_evaluated_and_none_fires_without_cause(self):
        rules = [rule for group in self.prometheus.ask("rules")["groups"] for rule in group["rules"]]
        self.assertGreater(len(rules), 15)
        self.assertEqual(self.prometheus.query("tapetum_store_failed + tapetum_store_fenced > 0"), [])
        operating = (PACKAGING.parent / "docs/OPERATING.md").read_text()
        for rule in rules:
            with self.subTest(alert=rule["name"]):
                self.assert_names(rule["query"], rule["name"])
                self.assertEqual((rule["health"], rule.get("lastError", "")), ("ok", ""))
                self.assertNotEqual(rule["state"], "firing", rule["alerts"])
                self.assertIn(rule["labels"]["severity"], ("critical", "warning"))
                self.assertTrue(rule["annotations"]["summary"])
                section = re.search(r'OPERATING\.md, "(.+)"', rule["annotations"]["description"])[1]
                self.assertIn(f"**{section}.**", operating)
                self.assertIn(f'instance="{rule["name"]}"}}\', value: 1', ALERT_TESTS.read_text(), "tests.yml does not fire it")

    def test_the_alerts_fire_as_their_tests_say(self):
        for words in (("check", "rules", RULES), ("test", "rules", ALERT_TESTS)):
            done = subprocess.run(["promtool", *words], capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_page_is_as_prometheus_wants_it(self):
        page = fetch(f"http://{self.addresses[0]}/metrics")
        done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
