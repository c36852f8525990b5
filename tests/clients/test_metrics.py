"""/metrics as Prometheus' own parser reads it, beside what `stats` says."""

import re
import unittest
import urllib.request

from prometheus_client.parser import text_string_to_metric_families

from adapters import Text
from server import IS_MEMCACHED, Server, free_port

# Names in `stats` that do not say their unit, or not at the end.
RENAMED = {
    **{name: f"{name}_seconds" for name in ("uptime", "time", "rusage_user", "rusage_system", "cpu_host", "cpu_drive")},
    "pointer_size": "pointer_size_bits", "total_connections": "connections", "total_items": "items", "listen_disabled_num": "listen_disabled",
    "time_in_listen_disabled_us": "listen_disabled_us", "bytes": "current_bytes", "limit_maxbytes": "limit_bytes", "bytes_read": "read_bytes",
    "bytes_written": "written_bytes", "total_malloced": "malloced_bytes", "extstore_limit_maxbytes": "extstore_limit_bytes",
    "extstore_bytes_used": "extstore_used_bytes", "extstore_bytes_written": "extstore_written_bytes", "extstore_bytes_read": "extstore_read_bytes",
    "backup_moment": "backup_timestamp_seconds",
}
# Names that are one family with labels.
LABELLED = [
    (re.compile(r"drive_stage_(?P<stage>\w+?)_(?P<rest>runs|bytes_in|bytes_out|unit_us|failures|waits)"), "drive_stage_{rest}"),
    (re.compile(r"drive_(?P<purpose>\w+?)_(?P<path>(flash|local|host)_to_(flash|local|host))_bytes"), "drive_moved_bytes"),
    (re.compile(r"drive_(?P<purpose>\w+?)_commands"), "drive_commands"),
    (re.compile(r"udp_dropped_(?P<reason>\w+)"), "udp_dropped"),
]
RESTS = {"bytes_in": "in_bytes", "bytes_out": "out_bytes"}
# What moves by itself, or by being asked for.
MOVING = {"uptime", "time", "rusage_user", "rusage_system", "cpu_host", "cpu_drive", "bytes_read", "bytes_written", "resident_memory_bytes"}
# Prometheus has its own units.
UNITS = [("_us", "_seconds", 1e6), ("_bits", "_bytes", 8)]
# Families with a sample a keyspace or a bucket, which `stats` has not.
BESIDE = {"tapetum_keyspace_items", "tapetum_keyspace_segment_bytes", "tapetum_get_seconds", "tapetum_set_seconds",
          "tapetum_application_weight", "tapetum_application_pipelines", "tapetum_application_unit_seconds"}


def exposed_name(figure):
    """The name of a figure of `stats` at /metrics, its labels, and its units in one unit of Prometheus'."""
    name, labels = RENAMED.get(figure, figure), {}
    for pattern, family in LABELLED:
        if found := pattern.fullmatch(figure):
            labels = found.groupdict()
            rest = labels.pop("rest", "")
            name = family.format(rest=RESTS.get(rest, rest))
            break
    for unit, base_unit, times in UNITS:
        if name.endswith(unit):
            return name.removesuffix(unit) + base_unit, labels, times
    return name, labels, 1


@unittest.skipIf(IS_MEMCACHED, "memcached has no /metrics")
class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.address = f"127.0.0.1:{free_port()}"
        cls.server = Server("metrics", ["--metrics", cls.address])
        cls.addClassCleanup(cls.server.close)
        cls.client = Text(cls.server.port)
        cls.addClassCleanup(cls.client.close)

    def families(self):
        with urllib.request.urlopen(f"http://{self.address}/metrics", timeout=60) as reply:
            self.assertTrue(reply.headers["Content-Type"].startswith("text/plain; version=0.0.4"))
            text = reply.read().decode()
        return {family.name: family for family in text_string_to_metric_families(text)}

    def test_every_figure_of_stats_is_there_with_help_and_type(self):
        self.client.set_many({f"key{number}": b"value" * number for number in range(100)})
        self.assertEqual(self.client.get("key7"), b"value" * 7)
        stats = {name: value for name, value in self.client.stats().items()}
        # It is of the listener that was asked; the page is of the whole server.
        self.assertEqual(stats.pop("keyspace"), b"default")
        families = self.families()
        self.assertGreater(len(stats), 50)
        told = {"version_info", "build_info"}
        for name, value in stats.items():
            if name == "version":
                sample, = families["tapetum_version_info"].samples
                self.assertEqual((sample.labels["version"], sample.value), (value.decode(), 1))
                continue
            if name == "build":
                sample, = families["tapetum_build_info"].samples
                self.assertEqual((sample.labels["build"], sample.value), (value.decode(), 1))
                self.assertIn(sample.labels["version"], stats["version"].decode())
                continue
            exposed, labels, divisor = exposed_name(name)
            family = families[f"tapetum_{exposed}"]
            told.add(exposed)
            self.assertIn(family.type, ("counter", "gauge"), name)
            self.assertTrue(family.documentation, name)
            sample, = (sample for sample in family.samples if sample.labels == labels)
            self.assertEqual(sample.name.endswith("_total"), family.type == "counter", name)
            if name not in MOVING:
                self.assertAlmostEqual(sample.value, float(value) / divisor, 6, name)
        # One sample a keyspace; `stats` has the items of the listener's own.
        sample, = families["tapetum_keyspace_items"].samples
        self.assertEqual((sample.labels["keyspace"], sample.value), ("default", float(stats["curr_items"])))
        sample, = families["tapetum_application_weight"].samples
        self.assertEqual((sample.labels["application"], sample.value), ("default", 1))
        ours = {name.removeprefix("tapetum_") for name in families if name.startswith("tapetum_") and name not in BESIDE}
        self.assertEqual(ours, told)
        for name in ("freezes", "freeze_flash_bytes", "freeze_memory_bytes", "freeze_age_seconds", "freeze_pause_seconds"):
            self.assertEqual(families[f"tapetum_{name}"].samples[0].value, 0)

    def test_dashboards_made_for_memcacheds_exporter_find_their_names(self):
        self.client.set("dashboard", b"v")
        self.client.get("dashboard")
        self.client.get("nobody")
        families, stats = self.families(), self.client.stats()
        commands = {(sample.labels["command"], sample.labels["status"]): sample.value
                    for sample in families["memcached_commands"].samples}
        self.assertEqual(commands["get", "hit"], float(stats["get_hits"]))
        self.assertEqual(commands["get", "miss"], float(stats["get_misses"]))
        cas = sum(float(stats[f"cas_{end}"]) for end in ("hits", "misses", "badval"))
        self.assertEqual(commands["set", "hit"], float(stats["cmd_set"]) - cas)
        self.assertEqual(families["memcached_up"].samples[0].value, 1)
        for name, figure in [("current_items", "curr_items"), ("limit_bytes", "limit_maxbytes")]:
            self.assertEqual(families[f"memcached_{name}"].samples[0].value, float(stats[figure]))

    def samples(self, family):
        return {(sample.name, *sorted(sample.labels.items())): sample.value for sample in self.families()[family].samples}

    def test_gets_and_sets_are_in_histograms_of_how_long_they_took(self):
        memory, sets = ("tapetum_get_seconds_count", ("from", "memory")), ("tapetum_set_seconds_count",)
        gets_before, sets_before = self.samples("tapetum_get_seconds"), self.samples("tapetum_set_seconds")
        for number in range(10):
            self.client.set(f"timed{number}", b"v")
            self.assertEqual(self.client.get(f"timed{number}"), b"v")
        self.client.get("nobody")
        gets, sets_after = self.samples("tapetum_get_seconds"), self.samples("tapetum_set_seconds")
        self.assertEqual(gets[memory] - gets_before[memory], 10)
        self.assertEqual(sets_after[sets] - sets_before[sets], 10)
        buckets = [value for (name, *labels), value in gets.items() if name.endswith("_bucket") and ("from", "memory") in labels]
        self.assertEqual(buckets, sorted(buckets))
        self.assertEqual(buckets[-1], gets[memory])

    def test_counters_go_up(self):
        before = self.families()["tapetum_get_hits"].samples[0].value
        self.client.set("up", b"v")
        self.client.get("up")
        self.assertEqual(self.families()["tapetum_get_hits"].samples[0].value, before + 1)
