"""The page: live figures, the drive's map, keyspaces, queries, and the walk to its end."""

import gzip
import pathlib
import re
import unittest

from selenium.webdriver.common.keys import Keys

from console import PageTest, empty, papers

PAGE = pathlib.Path(__file__).parents[2] / "crates/server/src/doors/console/page"
PAGE_BYTES = 300_000


class Overview(PageTest):
    def test_it_fills_with_live_figures(self):
        server = papers()
        self.open(server)
        served = self.until_text("#served", f"127.0.0.1:{server.port}")
        self.assertIn(f"127.0.0.1:{server.console_port}", served)
        self.assertRegex(served, r"up for\n\d+ (s|min)")
        self.until(lambda: re.search(r"gets [\d.]+\nsets [\d.]+", self.text("#rates")), "rates")
        self.assertRegex(self.text("#latencies"), r"get, since the start\s+[\d,]+\s+[≤>]")
        self.assertGreater(len(self.rows("#memory")), 1)
        self.assertIn("free", self.text("#flash"))
        before = self.text("#totals")
        self.assertRegex(before, r"items\n[\d,]+")
        server.memcached(b"get hello\r\n" * 1234)
        self.until(lambda: int(re.search(r"gets\n([\d,]+)", self.text("#totals"))[1].replace(",", "")) >= 1234, "1,234 gets")
        drawn = "return [...document.querySelectorAll('#rates .line')].some((line) => line.getAttribute('d').includes('L'))"
        self.until(lambda: self.script(drawn), "a line")

    def test_hidden_it_asks_nothing(self):
        self.open(papers())
        self.one("#served dt")
        self.script("""Object.defineProperty(document, 'hidden', {value: true, configurable: true});
                       document.dispatchEvent(new Event('visibilitychange'))""")
        count = "return performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/api/')).length"
        # A turn that had begun ends.
        self.script("return new Promise((done) => setTimeout(done, 1500))")
        before = self.script(count)
        self.script("return new Promise((done) => setTimeout(done, 2200))")
        self.assertEqual(self.script(count), before)
        self.script("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        self.until(lambda: self.script(count) > before, "a request when it is seen again")

    def test_the_map_reads_as_text(self):
        papers().run("scan", "papers", "--select", "count(*)")
        self.open(papers(), "drive")
        self.until_text("#map-cell", "Cell 1 of")
        self.assertIn(self.text("#map-cell").split(": ")[1].split(";")[0], [row[1] for row in self.rows("#map-card")])
        self.one("#map").send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
        self.until_text("#map-cell", "Cell 3 of")
        self.assertEqual(self.one("#map").get_attribute("aria-valuetext"), self.text("#map-cell"))
        self.one("#map").send_keys(Keys.END)
        last = self.text("#map-cell")
        self.assertRegex(last, r"Cell ([\d,]+) of \1:")
        self.assertIn("data", [row[1] for row in self.rows("#map-card")])
        self.assertIn("scan", [row[0] for row in self.rows("#stages")])

    def test_a_server_that_is_away_is_told(self):
        server = empty()
        self.open(server)
        self.one("#served dt")
        server.terminate()
        self.until_text("#state", "The server does not answer.")
        server.start()
        self.until(lambda: self.script("return document.getElementById('state').textContent === ''"), "the server again")
        self.one("#served dt")

    def assert_quiet(self):
        # The browser logs each request to a server that is not there.
        if self.id().endswith("away_is_told"):
            self.browser.get_log("browser")
        super().assert_quiet()


class Keyspaces(PageTest):
    def test_they_are_listed_with_samples(self):
        self.open(papers(), "keyspaces")
        rows = {row[0]: row for row in self.until(lambda: self.rows("#keyspace-list"), "keyspaces")}
        self.assertTrue({"papers", "references", "authors", "authorships", "venues", "default"} <= set(rows))
        self.assertIn("title string", rows["papers"][-2])
        self.show_sample("default")
        self.until_text("#sample", "world")
        self.one("#sample-prefix").send_keys("no such", Keys.ENTER)
        self.until_text("#sample", "No key begins so.")
        self.one("#sample-prefix").clear()
        self.one("#sample-prefix").send_keys("hel", Keys.ENTER)
        self.until_text("#sample", "world")


class Query(PageTest):
    def test_a_statement_shows_its_rows_a_chart_and_both_costs(self):
        self.open(papers(), "query")
        self.query("select year, count(*) as n from papers group by year order by year")
        costs = self.rows("#answer .costs")
        self.assertEqual([row[1] for row in costs], ["at the drive", "on the host"])
        self.assertTrue(all(re.fullmatch(r"[\d.,]+ (µs|ms|s)", row[2]) for row in costs), costs)
        self.assertIn("Both gave the same rows.", self.text("#answer"))
        rows = self.rows("#answer > .scrolls")
        self.assertEqual(int(rows[-1][0]), 2020)
        self.assertTrue(self.all("#answer svg .line"))
        self.one("input[name=chart]:not(:checked)").click()
        self.assertEqual(len(self.all("#answer svg rect")), min(50, len(rows)))
        self.query("select venue, count(*) as n from papers group by venue order by n desc limit 5", "drive")
        self.assertEqual(len(self.until(lambda: self.all("#answer svg rect"), "bars")), 5)
        self.assertEqual([row[1] for row in self.rows("#answer .costs")], ["at the drive"])

    def test_many_rows_are_cut_and_said(self):
        self.open(papers(), "query")
        self.query("select id from papers", "drive")
        self.assertIn("The first 1,000 rows; there are more", self.text("#answer"))
        self.assertEqual(len(self.rows("#answer > .scrolls")), 1000)

    provoked = (400, 404, 422)

    def test_a_wrong_statement_is_told_in_its_place(self):
        self.open(papers(), "query")
        self.query("select nothing_like_it from papers", "drive")
        self.assertIn("nothing_like_it", self.text("#answer .error"))
        self.query("select count(*) from nowhere", "drive")
        self.until_text("#answer .error", "nowhere")

    def test_examples_run(self):
        self.open(papers(), "query")
        self.until(lambda: self.all("#examples button"), "examples")
        for place in range(len(self.all("#examples button"))):
            self.all("#examples button")[place].click()
            self.script("document.getElementById('answer').replaceChildren()")
            self.one("input[name=side][value=drive]").click()
            self.one("#sql").send_keys(Keys.CONTROL, Keys.ENTER)
            self.until(lambda: self.all("#answer table, #answer .error"), "an answer")
            self.assertEqual([error.text for error in self.all("#answer .error")], [])


class Walk(PageTest):
    def both_sides(self, step, part):
        """The costs of a part: its rows at the drive and on the host."""
        rows = self.rows(f"#{step} .costs")
        place = [row[0] for row in rows].index(part)
        drive, host = rows[place:place + 2]
        self.assertEqual((drive[1], host[1], host[0]), ("at the drive", "on the host", ""))
        return drive, host

    def test_to_its_end(self):
        self.open(papers(), "walk")
        self.until_years()
        self.assertTrue(self.one("#venue").get_attribute("value"))
        # The fullest year is chosen at first; ten have longer paths.
        self.script("document.getElementById('year-from').value = 2011")
        self.one("#choose button.main").click()
        self.until_done("prominent")
        self.both_sides("prominent", "betweenness")
        prominent = self.rows("#prominent > div > .scrolls")
        self.assertEqual([row[0] for row in prominent], [str(rank) for rank in range(1, len(prominent) + 1)])
        nodes = self.all("#prominent .node")
        self.assertGreater(len(nodes), len(prominent))
        self.assertGreater(len(self.all("#prominent .edge")), 5)
        label = nodes[0].get_attribute("aria-label")
        self.assertIn(prominent[0][2], label)
        self.one("#prominent .scrolls button.link").click()
        self.until_done("paper")
        paper = self.text("#paper dl")
        self.assertIn(prominent[0][2], paper)
        self.assertNotRegex(paper, r"authors\nid")
        drive, host = self.both_sides("paper", "get")
        self.both_sides("paper", "authorships")
        ways = [button.text for button in self.all("#paper .row button")]
        self.assertGreater(len(ways), 2)
        for place, way in enumerate(ways[:3]):
            self.all("#paper .row button")[place].click()
            self.until_done("others")
            self.assertIn(way.split(maxsplit=2)[2], self.text("#others"))
            self.assertNotIn(prominent[0][1], [row[0] for row in self.rows("#others > div > .scrolls")])
        self.all("#paper .row button")[0].click()
        self.until_done("others")
        self.both_sides("others", "papers")
        self.one("#others button.link").click()
        self.until_done("paper")
        self.assertEqual(self.all("#others"), [])
        self.assertNotIn(prominent[0][2], self.text("#paper dl"))

    def test_without_the_papers_it_says_how_to_make_them(self):
        self.open(empty(), "walk")
        self.until_text("#view-walk", "tapetum generate papers --scale 0.01 --into ./tapetum-data")


class Weight(PageTest):
    def test_page(self):
        files = [path.read_bytes() for path in PAGE.iterdir()]
        weight = sum(map(len, files))
        self.assertLessEqual(weight, PAGE_BYTES)
        self.open(papers())
        self.one("#served dt")
        ready = self.script("return performance.getEntriesByType('resource').find((entry) => entry.name.endsWith('/api/figures')).responseEnd")
        print(f"the page weighs {weight / 1000:.1f} kB ({sum(len(gzip.compress(file)) for file in files) / 1000:.1f} kB by gzip), "
              f"and had its first figures after {ready:.0f} ms")


if __name__ == "__main__":
    unittest.main()
