"""Runs the programs of the documents as they stand: each document from top to bottom, twice in one folder, as a reader would.

Blocks of `sh` and `console` are one session of bash, in a network of its own and among processes of its own. In `console` the lines
behind `$ ` are commands, and the rest is what they print. Blocks of `python` with no other block between them are one program.
In expected output `…` stands for any text. Marks for a block are HTML comments in front of it, which readers do not see:

  <!-- not run: REASON -->    it is left out, counted and named
  <!-- instead: COMMAND -->   this runs in its place
  <!-- serves -->             a server: what follows waits until it serves, and it goes on beside that, up to
  <!-- stop -->               here, where the reader stops all servers
  <!-- figures vary -->       numbers in its output differ from run to run
  <!-- output varies -->      all of its output does

`cargo x test-docs` sets TAPETUM_SERVER, the binary; TAPETUM_SCRATCH, a folder for data; TAPETUM_PYTHON, an interpreter for blocks
of Python; and PYTHONPATH and PIP_FIND_LINKS, so that the package and what the documents install are there without a network.
"""

import dataclasses
import os
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
SCRATCH = pathlib.Path(os.environ["TAPETUM_SCRATCH"])
SECONDS_MAX = 600  # a document's run; README and MANUAL took 28 for two runs each on two busy cores
NAMESPACES = ("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc")
AS_ROOT = () if os.geteuid() == 0 else ("--map-root-user",)
MARK = re.compile(r"<!-- (not run|instead|serves|stop|figures vary|output varies)(?:: (.*?))? -->")
FENCE = re.compile(r"```(\w*)")

# Each server is a process group of its own, which TERM stops.
SHELL = r"""
set -e -m
ip link set lo up
servers=
run() { echo $1 > "$STEPS/current"; . "$STEPS/$1.sh" > "$STEPS/$1.out" 2>&1 < /dev/null; }
serve() {
    echo $1 > "$STEPS/current"
    : > "$STEPS/$1.out"
    ( . "$STEPS/$1.sh" ) > "$STEPS/$1.out" 2>&1 < /dev/null &
    servers="$servers $!"
    until grep -q ' serves ' "$STEPS/$1.out"; do kill -0 $!; sleep 0.05; done
}
stop() {
    for server in $servers; do kill -TERM -- -$server; done
    for server in $servers; do while kill -0 -- -$server; do sleep 0.05; done; done 2> /dev/null
    servers=
}
"""


@dataclasses.dataclass
class Step:
    """A command of a block, or a whole block, that starts in this line of a document."""

    line: int
    kind: str  # run, serve or stop; or python
    text: str = ""
    shown: str | None = None  # what it prints, as the document has it
    varies: str = ""  # figures, output, or nothing


@dataclasses.dataclass
class Document:
    name: str
    steps: list[Step] = dataclasses.field(default_factory=list)
    left_out: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def read(cls, name):
        document, marks, block = cls(name), {}, None
        for number, line in enumerate((ROOT / name).read_text().splitlines(), 1):
            fence = FENCE.match(line.strip())
            if fence and block is None:
                block = (number + 1, fence[1], [])
            elif fence:
                document.add(*block, marks)
                marks, block = {}, None
            elif block:
                block[2].append(line)
            elif line.startswith("<!--"):
                found = dict(MARK.findall(line))
                if not found:
                    raise AssertionError(f"{name}:{number}: there is no such mark: {line}")
                if "stop" in found:
                    document.steps.append(Step(number, "stop"))
                else:
                    marks |= found
        return document

    def add(self, line, language, lines, marks):
        """The steps of a block."""
        kind = "serve" if "serves" in marks else "run"
        if "not run" in marks:
            self.left_out.append(f"line {line} ({marks['not run']})")
        elif "instead" in marks:
            self.steps.append(Step(line, kind, marks["instead"]))
        elif language == "python":
            self.add_python(line, "\n".join(lines))
        elif language == "sh":
            self.steps.append(Step(line, kind, "\n".join(lines)))
        elif language == "console":
            self.steps += commands(line, lines, marks)

    def add_python(self, line, text):
        last = self.steps[-1] if self.steps else None
        if last and last.kind == "python":
            last.text += "\n" + text
        else:
            self.steps.append(Step(line, "python", text))


def commands(line, lines, marks):
    """The commands of a `console` block, each with what it prints."""
    varies = "output" if "output varies" in marks else "figures" if "figures vary" in marks else ""
    steps = []
    for number, text in enumerate(lines, line):
        if text.startswith("$ "):
            steps.append(Step(number, "run", text[2:], "", varies))
        else:
            steps[-1].shown += text + "\n"
    return steps


def is_as_shown(printed, shown, varies):
    if varies == "output":
        return bool(printed) == bool(shown)
    pattern = re.escape(shown).replace("…", ".*")
    if varies == "figures":
        pattern = re.sub(r"\d(\d|,|\\\.\d)*", r"\\d(?:\\d|,|\\.\\d)*", pattern)
    return re.fullmatch(pattern, printed, re.DOTALL) is not None


def write_session(document, steps_folder):
    """The steps as files, and the program for bash that runs them."""
    words = [SHELL]
    for number, step in enumerate(document.steps):
        text = step.text
        if step.kind == "python":
            program = steps_folder / f"{number}.py"
            program.write_text(text)
            text = f'"$TAPETUM_PYTHON" {program}'
        (steps_folder / f"{number}.sh").write_text(text + "\n")
        words.append("stop" if step.kind == "stop" else f"{'serve' if step.kind == 'serve' else 'run'} {number}")
    (steps_folder / "session.sh").write_text("\n".join(words) + "\n")


class Documents(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        isolated = subprocess.run((*NAMESPACES, *AS_ROOT, "ip", "link", "set", "lo", "up"), capture_output=True, text=True, check=False)
        if isolated.returncode != 0:
            raise unittest.SkipTest(f"no network of its own can be made here: {isolated.stderr.strip()}")

    def run_twice(self, name):
        document = Document.read(name)
        folder = SCRATCH / name.replace("/", "-").removesuffix(".md")
        (folder / "target/quick").mkdir(parents=True)
        (folder / "target/quick/tapetum").symlink_to(pathlib.Path(os.environ["TAPETUM_SERVER"]).resolve())
        for turn in ("first", "second"):
            self.run_once(document, folder, SCRATCH / f"{folder.name}-{turn}")
        shutil.rmtree(folder)
        left_out = [f"{len(document.left_out)} blocks not run", *document.left_out]
        print(f"{name}: {len(document.steps)} steps ran twice;", "\n  ".join(left_out), file=sys.stderr)

    def run_once(self, document, folder, steps_folder):
        steps_folder.mkdir()
        write_session(document, steps_folder)
        environment = os.environ | {"STEPS": str(steps_folder), "TAPETUM_DOCS": str(HERE)}
        session = (*NAMESPACES, *AS_ROOT, "bash", steps_folder / "session.sh")
        done = subprocess.run(
            session, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS_MAX
        )
        current = steps_folder / "current"
        if done.returncode != 0:
            number = current.read_text().strip() if current.exists() else None
            printed = (steps_folder / f"{number}.out").read_text()[-4000:] if number else ""
            place = f"{document.name}:{document.steps[int(number)].line}" if number else document.name
            self.fail(f"{place} failed at its run in {steps_folder.name}:\n{printed}{done.stderr}")
        for number, step in enumerate(document.steps):
            if step.shown is not None:
                printed = (steps_folder / f"{number}.out").read_text()
                place = f"{document.name}:{step.line} ({steps_folder.name})"
                self.assertTrue(
                    is_as_shown(printed, step.shown, step.varies),
                    f"{place}: {step.text}\nprinted\n{printed}\nwhere the document has\n{step.shown}",
                )

    def test_readme(self):
        self.run_twice("README.md")

    def test_manual(self):
        self.run_twice("docs/MANUAL.md")

    def test_operating(self):
        self.run_twice("docs/OPERATING.md")

    def test_queries(self):
        self.run_twice("docs/QUERIES.md")

    def test_block_device(self):
        self.run_twice("docs/BLOCK-DEVICE.md")

    def test_python(self):
        self.run_twice("docs/PYTHON.md")

    def test_many_nodes(self):
        self.run_twice("docs/MANY-NODES.md")

    def test_coming_from(self):
        self.run_twice("docs/COMING-FROM.md")

    def test_package(self):
        self.run_twice("python/README.md")


class Parts(unittest.TestCase):
    def test_every_option_of_memcached_has_its_row(self):
        help_text = subprocess.run(("memcached", "-h"), capture_output=True, text=True, check=True).stdout
        options = re.findall(r"^(-\w)\b", help_text, re.MULTILINE) + re.findall(r"^ +- (\w+):", help_text, re.MULTILINE)
        self.assertGreater(len(options), 80)
        rows = [line.split("|")[1] for line in (ROOT / "docs/COMING-FROM.md").read_text().splitlines() if line.startswith("| `")]
        named = {name for row in rows for name in re.findall(r"`(-?[\w-]+)`", row)}
        self.assertEqual([option for option in options if option not in named], [])

    def test_figures_vary_where_it_is_said(self):
        shown, printed = "used 251,920.5 of x (7 %)\n", "used 9 of x (81 %)\n"
        self.assertTrue(is_as_shown(printed, shown, "figures"))
        self.assertFalse(is_as_shown(printed, shown, ""))
        self.assertTrue(is_as_shown(printed, "used … (81 %)\n", ""))
        self.assertFalse(is_as_shown("", shown, "output"))


if __name__ == "__main__":
    unittest.main()
