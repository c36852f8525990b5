"""By keyboard alone, dark, and on a narrow screen."""

import unittest

from selenium.webdriver.common.keys import Keys

from console import PageTest, papers

NARROW = 360  # pixels
VIEWS = ["overview", "drive", "keyspaces", "query", "walk"]
TABS = 200  # more than any way takes

# Whether an element with the focus shows it: by an outline, or a node of the graph by its line.
FOCUSED = """
    const found = document.activeElement, style = getComputedStyle(found), circle = found.querySelector('circle');
    const isSeen = style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2
        || circle !== null && parseFloat(getComputedStyle(circle).strokeWidth) >= 3;
    const text = found.innerText ?? found.getAttribute('aria-label') ?? '';
    return {tag: found.localName, id: found.id, text, class: found.getAttribute('class') ?? '', isSeen}"""
# Texts with their contrast to what is behind them, where it is below 4.5.
WEAK = """
    const parsed = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const linear = (part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4;
    const light = (colour) => parsed(colour).slice(0, 3).reduce((sum, part, nth) => sum + linear(part / 255) * [0.2126, 0.7152, 0.0722][nth], 0);
    const behind = (found) => {
        const colour = found === null ? 'rgb(255, 255, 255)' : getComputedStyle(found).backgroundColor;
        return (parsed(colour)[3] ?? 1) > 0 ? colour : behind(found.parentElement);
    };
    const hasText = (found) => [...found.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim() !== '');
    const contrast = (found) => {
        const [more, less] = [light(getComputedStyle(found).color), light(behind(found))].sort((one, other) => other - one);
        return (more + 0.05) / (less + 0.05);
    };
    return [...document.querySelectorAll('header *, main *')].filter((found) => found.checkVisibility() && hasText(found))
        .map((found) => [found.outerHTML.slice(0, 80), contrast(found)]).filter(([, ratio]) => ratio < 4.5)"""
# What takes input, or is drawn, and has no name.
NAMELESS = """
    return [...document.querySelectorAll('input, select, textarea, button, [role=slider], [role=img], [role=button]')]
        .filter((found) => found.checkVisibility() && !found.labels?.length && !found.getAttribute('aria-label') && !found.innerText?.trim())
        .map((found) => found.outerHTML)"""
# Tables without a caption, or with a heading of nothing.
BARE = """
    return [...document.querySelectorAll('table')].filter((table) => !table.caption || table.querySelector('th:not([scope])'))
        .map((table) => table.outerHTML)"""


class Keyboard(PageTest):
    def focused(self):
        """The element with the focus: its tag, id and text, and whether its focus is seen."""
        return self.script(FOCUSED)

    def tab_to(self, is_it, holding=None):
        """Goes on by Tab until there. Each stop shows its focus."""
        for _ in range(TABS):
            self.press(Keys.TAB, holding)
            found = self.focused()
            self.assertTrue(found["isSeen"] or found["tag"] == "body", found)
            if is_it(found):
                return found
        self.fail("Tab does not lead there")

    def test_from_load_to_an_answer_and_a_step_of_the_walk(self):
        self.open(papers())
        self.one("#served dt")
        self.assertEqual(self.tab_to(lambda _: True)["class"], "skip")
        self.tab_to(lambda found: found["text"] == "Query")
        self.press(Keys.ENTER)
        self.until(lambda: self.focused()["id"] == "query-heading", "the view's heading")
        self.tab_to(lambda found: found["id"] == "sql")
        self.press("a", Keys.CONTROL)
        self.press("select venue, count(*) as n from papers group by venue order by n desc limit 3")
        # The box is left by Tab.
        self.tab_to(lambda found: found["tag"] == "input")
        self.press(Keys.ARROW_UP)
        self.tab_to(lambda found: found["text"] == "Run")
        self.press(Keys.ENTER)
        self.until(lambda: self.all("#answer table"), "an answer")
        self.assertEqual(len(self.rows("#answer > .scrolls")), 3)
        self.tab_to(lambda found: found["text"] == "Walk", Keys.SHIFT)
        self.press(Keys.ENTER)
        self.until_years()
        self.tab_to(lambda found: found["id"] == "year-from")
        for _ in range(5):
            self.press(Keys.ARROW_UP)
        self.tab_to(lambda found: found["text"] == "Find the most prominent papers")
        self.press(Keys.ENTER)
        self.until_done("prominent")
        node = self.tab_to(lambda found: "node" in found["class"].split())
        self.press(Keys.ARROW_LEFT)
        other = self.focused()
        self.assertIn("node", other["class"])
        self.assertTrue(other["isSeen"])
        self.assertNotEqual(other["text"], node["text"])
        self.press(Keys.ENTER)
        self.until_done("paper")
        self.one("#paper dl")

    def test_no_stop_holds_the_focus(self):
        for view in VIEWS:
            self.open(papers(), view)
            self.one(f"#view-{view}")
            # The skip link is the first stop; it comes again when all were passed.
            self.tab_to(lambda found: found["class"] == "skip")
            self.tab_to(lambda found: found["tag"] == "body" or found["class"] == "skip")


class Looks(PageTest):
    def emulate(self, command, **parameters):
        self.browser.execute_cdp_cmd(command, parameters)

    def colours(self):
        return self.script("""const of = (selector) => getComputedStyle(document.querySelector(selector));
                              return [of('body').backgroundColor, of('body').color, of('#served').backgroundColor, of('#rates .line').stroke]""")

    def test_dark(self):
        self.addCleanup(self.emulate, "Emulation.setEmulatedMedia", features=[])
        self.open(papers())
        self.until(lambda: self.all("#rates .line"), "a line")
        seen = {}
        for scheme in ("light", "dark"):
            self.emulate("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            seen[scheme] = self.colours()
        for light, dark in zip(seen["light"], seen["dark"], strict=True):
            self.assertNotEqual(light, dark)
        lightness = {scheme: sum(int(part) for part in colours[0][4:-1].split(",")) for scheme, colours in seen.items()}
        self.assertGreater(lightness["light"], 600)
        self.assertLess(lightness["dark"], 150)

    def test_contrast(self):
        """Text stands out from what is behind it, as WCAG's AA asks."""
        self.addCleanup(self.emulate, "Emulation.setEmulatedMedia", features=[])
        self.open(papers())
        self.one("#served dt")
        for scheme in ("light", "dark"):
            self.emulate("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            self.assertEqual(self.script(WEAK), [], scheme)

    def fill(self, view):
        """Opens a view, and waits for what makes it wide."""
        self.open(papers(), view)
        self.one(f"#view-{view}")
        if view == "query":
            self.query("select year, count(*) as n from papers group by year order by year")
        elif view == "walk":
            self.until_years()
            self.one("#choose button.main").click()
            self.until_done("prominent")
        else:
            self.until(lambda: self.all(f"#view-{view} td"), "a table")

    def test_narrow(self):
        self.addCleanup(self.emulate, "Emulation.clearDeviceMetricsOverride")
        self.emulate("Emulation.setDeviceMetricsOverride", width=NARROW, height=740, deviceScaleFactor=1, mobile=False)
        for view in VIEWS:
            self.fill(view)
            self.assertEqual(self.script("return innerWidth"), NARROW)
            self.assertEqual(self.script("const {scrollWidth, clientWidth} = document.documentElement; return scrollWidth - clientWidth"), 0, view)

    def test_names_and_headings(self):
        """Landmarks, one heading of the first level, and a name for whatever takes input."""
        for view in VIEWS:
            self.open(papers(), view)
            self.one(f"#view-{view}")
            self.assertEqual(len(self.all("h1")), 1)
            self.assertEqual(self.browser.title, f"{view.title()} – Tapetum")
            self.assertEqual([len(self.all(landmark)) for landmark in ("header", "nav[aria-label]", "main")], [1, 1, 1])
            self.assertEqual(self.script(NAMELESS), [])
            self.assertEqual(self.script(BARE), [])


if __name__ == "__main__":
    unittest.main()
