"""Draws the pictures of the documents anew: `cargo x test-console --pictures docs --only test_pictures`."""

import base64
import os
import pathlib
import random
import threading
import unittest

from console import WIDE, PageTest, papers

FOLDER = os.environ.get("TAPETUM_PICTURES")
BYTES = 150_000  # of a picture at most
LOAD_SECONDS = 25


@unittest.skipUnless(FOLDER, "drawn with --pictures FOLDER alone")
class Pictures(PageTest):
    def save(self, name, top, high):
        """A part of the page, from the upper edge of an element on."""
        y = self.script("return arguments[0] === null ? 0 : document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY - 12", top)
        whole = self.script("return document.documentElement.scrollHeight")
        clip = {"x": 0, "y": y, "width": WIDE, "height": min(high, whole - y), "scale": 1}
        shot = self.browser.execute_cdp_cmd("Page.captureScreenshot", {"format": "webp", "quality": 75, "captureBeyondViewport": True, "clip": clip})
        picture = base64.b64decode(shot["data"])
        self.assertLessEqual(len(picture), BYTES, name)
        (pathlib.Path(FOLDER) / name).write_bytes(picture)

    def load(self, server, is_over):
        """Gets, and some sets, at a rate that varies."""
        numbers = random.Random(1)
        while not is_over.wait(0.05):
            keys = [numbers.randrange(2000) for _ in range(numbers.randrange(60, 200))]
            sets = b"".join(b"set key%d 0 0 1000 noreply\r\n%s\r\n" % (key, numbers.randbytes(500).hex().encode()) for key in keys[:30])
            server.memcached(sets + b"".join(b"get key%d\r\n" % (key * 5 // 4) for key in keys))

    def test_overview(self):
        is_over = threading.Event()
        load = threading.Thread(target=self.load, args=[papers(), is_over])
        load.start()
        try:
            self.open(papers())
            self.script("return new Promise((done) => setTimeout(done, arguments[0]))", LOAD_SECONDS * 1000)
            self.save("console-overview.webp", None, 1150)
        finally:
            is_over.set()
            load.join()

    def test_query(self):
        self.open(papers(), "query")
        self.query("select venue, count(*) as papers from papers where year >= 2000 group by venue order by papers desc limit 8")
        self.script("document.activeElement.blur()")
        self.save("console-query.webp", None, 1050)

    def test_walk(self):
        self.open(papers(), "walk")
        self.until_years()
        # A small venue: few enough papers to tell them apart.
        self.script("""const venue = document.getElementById('venue'); venue.value = 'SIGMOD';
                       venue.dispatchEvent(new Event('change')); document.getElementById('year-to').value = ''""")
        self.until_years()
        self.script("document.getElementById('year-from').value = 2010; document.getElementById('year-to').value = 2020")
        self.one("#choose button.main").click()
        self.until_done("prominent")
        self.script("document.querySelectorAll('#prominent .node')[0].dispatchEvent(new Event('pointerenter'))")
        self.save("console-walk.webp", "#prominent", 1400)


if __name__ == "__main__":
    unittest.main()
