"""Loading of pictures for training, Tapetum beside other loaders: ``cargo x bench-python images``.

    small     500×375 → 224² uint8, every contender
    large     2000×1500 → 224², decoded at a half, a quarter or an eighth where a crop is large enough
    stages    what each stage takes of a small picture, and what leaves the drive
    trainer   a trainer takes small pictures at a GPU's rate: wall time, and the host's CPU with the drive on a thread of its own
    sizes     JPEG files of 64 KiB to 1 MiB decoded: read and decoded on the host, and through the drive
    weights   two trainings with different pipelines on one drive: what each gets of its units' time, against its weight
    sides     files, stages and a training over a drive in a process of its own: what the drive and the host take, by the drive and by the host

Each contender is a process on one core, which loads an epoch in its turn and waits otherwise; all draw the same crops. A figure is CPU time of
the process with all its threads and children; a ratio is taken round by round. What rows found is left as one JSON, by row.
"""

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))

import crops  # noqa: E402
import pictures  # noqa: E402
import sides  # noqa: E402
import tapetum  # noqa: E402
import weights  # noqa: E402
from found import Found  # noqa: E402

HERE = Path(__file__).parent
DEBIAN_PYTHON = "/usr/bin/python3"
#: Of Debian's mate-backgrounds those that are photographs.
BACKGROUNDS = "/usr/share/backgrounds/mate/nature"
PIPELINE = "jpeg_decode{} | random_resized_crop 224 | flip"
#: Of a JPEG file of ImageNet.
SMALL_BYTES = 91_000
#: How far a contender's pictures may be from PIL's in the mean, in levels: others resize otherwise.
LEVELS_MAX = 8.0
#: Ratios that are aimed at, by row and contender.
AIMS = {
    "small": {"pil": 2.6, "torchvision-debian": 2.0, "v2-float": 2.0, "v2-u8": 1.5, "dali": 2.0},
    "large": {"v2-u8": 2.1, "simplejpeg": 1.1},
}
BARE_MOST = 1.08
#: Of figure 9: the host's CPU at every rate, and the wall at the highest, at which every loader keeps the trainer waiting.
HOST_MOST, WALL_MOST = 0.35, 0.64
OF_DEBIAN = ("torchvision-debian", "torchvision-debian-float")
SMALL = ("tapetum", "tapetum-chw", "bare", "pil", "pil-float", *OF_DEBIAN, "v2-u8", "v2-float", "simplejpeg", "spdl", "dali", "tensorflow")
LARGE = ("tapetum", "bare", "pil", "v2-u8", "simplejpeg", "spdl")


class Contender:
    """A process of ``contenders.py``."""

    def __init__(self, label, name, given, core, python=sys.executable):
        self.label, self.turns, self.missing = label, [], None
        self.config = tempfile.NamedTemporaryFile("w", suffix=".json")
        json.dump(given, self.config)
        self.config.flush()
        command = ["taskset", "--cpu-list", str(core), python, str(HERE / "contenders.py"), name, self.config.name]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
        try:
            self.process = subprocess.Popen(command, env=environment, **pipes)
            self.missing = self.answer().get("missing")
        except FileNotFoundError as error:
            self.process, self.missing = None, str(error)
        if self.missing:
            print(f"  SKIPPED {label}: {self.missing}", flush=True)
            self.end()

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the contender {self.label} ended: what it said is above")
        return json.loads(line)

    def turn(self, **asked):
        self.process.stdin.write(json.dumps(asked) + "\n")
        turn = self.answer()
        self.turns.append(turn)
        return turn

    def end(self):
        if self.process is not None:
            self.process.stdin.close()
            self.process.wait()


class Set:
    """Pictures of one size, as files and in a store."""

    def __init__(self, given, folder, size, wanted_bytes):
        self.size, self.folder, self.given = size, folder / f"{size[0]}x{size[1]}", given
        sources = given.photographs
        photographs = pictures.photographs(sources, size)
        if not photographs:
            # Too small: enlarged, which makes their files easier to decode.
            photographs = pictures.photographs(sources)
        if not photographs:
            raise SystemExit("found no photographs: apt-get install mate-backgrounds, or pip install scikit-image scikit-learn")
        self.source = ", ".join(sources) or "scikit-image and scikit-learn"
        each = -(-given.pictures // len(photographs))
        quality = self.quality(photographs, wanted_bytes)
        pictures.make(self.folder, photographs, each, size, quality)
        self.files = [file for file in sorted(self.folder.rglob("*.jpg"))]
        self.mean_bytes = statistics.mean(file.stat().st_size for file in self.files)
        self.store = str(folder / f"store-{size[0]}")
        with tapetum.open(self.store, capacity=max(4 * int(self.mean_bytes) * len(self.files), 128 << 20)) as store:
            images = store.import_images(self.folder)
            # In the order of the store, so that an item is the same picture for all.
            self.files = [self.folder / images.key(item).decode() for item in range(len(images))]

    def about(self):
        width, height = self.size
        return f"{len(self.files)} pictures of {width}×{height}, of {self.mean_bytes / 1000:.0f} kB, to 224²; cut of {self.source}"

    def quality(self, photographs, wanted_bytes):
        """The quality at which files of this size come nearest to ``wanted_bytes`` in the mean."""
        if wanted_bytes is None:
            return 90
        chance = pictures.random.Random(1)
        parts = [pictures.part(photograph, self.size, chance) for photograph in photographs.values() for _ in range(5)]
        low, high = 50, 98
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if statistics.mean(jpeg_bytes(part, middle) for part in parts) <= wanted_bytes else (low, middle - 1)
        return low

    def config(self, pipeline, **others):
        return {
            "files": [str(file) for file in self.files],
            "size": self.size,
            "out": 224,
            "batch": 64,
            "seed": self.given.seed,
            "store": self.store,
            "pipeline": pipeline,
            "units": 0,
            "workers": 0,
            **others,
        }


def jpeg_bytes(image, quality):
    with tempfile.SpooledTemporaryFile() as file:
        image.save(file, "JPEG", quality=quality)
        return file.tell()


def distance(of, epoch, file):
    """How far the pictures in a file are from PIL's of the same crops, in levels in the mean."""
    boxes, flips = crops.drawn(of.size, of.given.seed, epoch, 8)
    theirs, levels = numpy.load(file), []
    for item, picture in enumerate(theirs):
        left, top, width, height = boxes[item]
        with Image.open(of.files[item]) as image:
            mine = image.convert("RGB").resize((224, 224), Image.BILINEAR, (left, top, left + width, top + height))
        mine = numpy.asarray(mine.transpose(Image.FLIP_LEFT_RIGHT) if flips[item] else mine).transpose(2, 0, 1)
        levels.append(numpy.abs(mine.astype(int) - picture).mean())
    return statistics.mean(levels)


def rounds(given, contenders, of=None, **asked):
    """Turns, one contender after the other; in the first their pictures are compared, and the time is not counted."""
    with tempfile.NamedTemporaryFile(suffix=".npy") as shown:
        for number in range(given.rounds + 1):
            for contender in contenders:
                turn = contender.turn(epoch=number, show=shown.name if number == 0 and of else None, **asked)
                if number > 0:
                    continue
                contender.turns.clear()
                if turn["shown"]:
                    contender.levels = distance(of, 0, shown.name)
                    if contender.levels > LEVELS_MAX:
                        raise SystemExit(f"{contender.label}: its pictures are {contender.levels:.1f} levels from PIL's: it drew other crops")


def start(given, of, labels, pipeline, **others):
    """The contenders among these that are there and were asked for."""
    wanted = ["tapetum", *given.contenders.split(",")] if given.contenders else labels
    made = []
    for label in filter(lambda label: label in wanted, labels):
        python = DEBIAN_PYTHON if label in OF_DEBIAN else sys.executable
        made.append(Contender(label, label, of.config(pipeline, **others), given.core, python))
    return [contender for contender in made if not contender.missing]


def by_picture(turns, key):
    return [turn[key] / turn["pictures"] * 1e6 for turn in turns]


def load_row(given, row, of, labels, pipeline):
    """One of the rows small and large."""
    contenders = start(given, of, labels, pipeline)
    rounds(given, contenders, of)
    found = Found(of.about(), ["contender", "CPU µs a picture", "levels from PIL"])
    ours = by_picture(contenders[0].turns, "cpu")
    for contender in contenders:
        took = by_picture(contender.turns, "cpu")
        found.line(contender.label, took, round(contender.levels, 1))
        if contender.label == "bare":
            found.hold("Tapetum's CPU ÷ a bare loop's around the same decoder", [mine / bare for mine, bare in zip(ours, took)], most=BARE_MOST)
        elif contender is not contenders[0]:
            ratios = [theirs / mine for theirs, mine in zip(took, ours)]
            found.hold(f"CPU of {contender.label} ÷ Tapetum's", ratios, least=AIMS[row].get(contender.label))
    for contender in contenders:
        contender.end()
    return found


def stages_row(given, of, pipeline):
    """Figure 8: what each of the drive's programs takes, and what leaves the drive."""
    found = Found(of.about(), ["stage", "µs a picture", "tasks a picture", "bytes in", "bytes out"])
    contender = start(given, of, ["tapetum"], pipeline)[0]
    turns = [contender.turn(epoch=number) for number in range(given.rounds + 1)]
    contender.end()
    for name, last in turns[-1]["stages"].items():
        first = turns[0]["stages"].get(name)
        if first is not None and last["tasks"] > first["tasks"]:
            of_turns = [turn["stages"][name] for turn in turns]
            keys = ("unit_us", "tasks", "bytes_in", "bytes_out")
            found.line(name, *([(now[key] - was[key]) / turns[0]["pictures"] for was, now in zip(of_turns, of_turns[1:])] for key in keys))
    decoded, tensor = 3 * of.size[0] * of.size[1], 3 * 224 * 224
    sizes = {"the JPEG file": of.mean_bytes, "the decoded picture": decoded, "a uint8 tensor (Tapetum)": tensor, "a float tensor": 4 * tensor}
    for what, size in sizes.items():
        found.hold(f"bytes a picture: {what}", round(size))
    return found


def trainer_row(given, of, pipeline):
    """Figure 9: a trainer that is busy with each batch for as long as a GPU of such a rate is."""
    labels = ["pil", "v2-u8", "torchvision-debian"]
    found = Found(of.about(), ["pictures a second that the trainer takes, and its loader", "wall s", "waited s", "host's CPU s"])
    ours = Contender("tapetum", "tapetum", of.config(pipeline, units=1), given.core)
    # A DataLoader that loads ahead has a process for that.
    others = start(given, of, labels, pipeline, workers=1)
    rates = [int(rate) for rate in given.rates.split(",")]
    for rate in rates:
        for contender in (ours, *others):
            contender.turns.clear()
        rounds(given, [ours, *others], rate=rate)
        for contender in (ours, *others):
            found.line(f"{rate}, {contender.label}", *([turn[key] for turn in contender.turns] for key in ("wall", "waited", "host")))
        found.hold(f"{rate} a second: CPU s of Tapetum's drive besides", [turn["drive"] for turn in ours.turns])
        for contender in others:
            wall, host = ([mine[key] / theirs[key] for mine, theirs in zip(ours.turns, contender.turns)] for key in ("wall", "host"))
            found.hold(f"{rate}, {contender.label}: Tapetum's wall ÷ it", wall, most=WALL_MOST if rate == max(rates) else None)
            found.hold(f"{rate}, {contender.label}: Tapetum's host's CPU ÷ it", host, most=HOST_MOST)
    for contender in (ours, *others):
        contender.end()
    return found


def files_of_sizes(given):
    """JPEG files of the largest photograph, by the names of their sizes."""
    source = max(pictures.photographs(given.photographs).values(), key=lambda photograph: photograph.width * photograph.height)
    sizes = (64,) if given.smoke else (64, 128, 256, 512, 1024)
    return {f"{size} KiB": file_of(source, size << 10) for size in sizes}


def sizes_row(given, folder):
    """Table 1: the host reads a file out of the store and decodes it, or the drive decodes it and the host reads pixels."""
    columns = ["file", "µs, the host decodes", "µs, the drive decodes", "bytes across, the file", "bytes across, its pixels"]
    found = Found("single pictures decoded on the host and at the drive", columns)
    pipeline = tapetum.Pipeline("jpeg_decode")
    with tapetum.open(folder / "store-sizes", capacity=128 << 20) as store:
        keyspace = store.keyspace("images", create=True)
        for size, file in files_of_sizes(given).items():
            keyspace.put(size, file)
            took = {"host": [], "drive": []}
            for _ in range(given.rounds * 3):
                for path, work in (("host", lambda: tapetum.apply(pipeline, keyspace.get(size))), ("drive", lambda: tapetum.run(pipeline, keyspace, size))):
                    began = time.perf_counter()
                    made = work()
                    took[path].append((time.perf_counter() - began) * 1e6)
            found.line(f"{size}, {made.shape[1]}×{made.shape[0]}", took["host"], took["drive"], len(file), made.nbytes)
            found.hold(f"{size}: the drive's time ÷ the host's", [drive / host for drive, host in zip(took["drive"], took["host"])])
    return found


def file_of(photograph, wanted_bytes):
    """A JPEG file of nearly this size: a part of the photograph as large as it takes, at quality 90, or a higher one where all of it is too small."""

    def file(side, quality):
        content = io.BytesIO()
        photograph.crop((0, 0, side, side * 3 // 4)).save(content, "JPEG", quality=quality)
        return content.getvalue()

    low, high = 32, min(photograph.width, photograph.height * 4 // 3)
    quality = next((quality for quality in (90, 95, 98) if len(file(high, quality)) >= wanted_bytes), 100)
    while high - low > 8:
        side = (low + high) // 2
        low, high = (side, high) if len(file(side, quality)) <= wanted_bytes else (low, side)
    return file(low, quality)


def options():
    parsed = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsed.add_argument("--rows", default="small,large,stages,trainer,sizes,weights,sides")
    parsed.add_argument("--contenders", help="those beside tapetum; all that are installed if it is left out")
    parsed.add_argument("--rounds", type=int, default=7)
    parsed.add_argument("--pictures", type=int, default=512)
    parsed.add_argument("--core", type=int, default=os.cpu_count() - 1)
    parsed.add_argument("--seed", type=int, default=5)
    parsed.add_argument("--rates", default="400,800,1600", help="pictures a second that the trainer takes")
    parsed.add_argument("--photographs", action="append", metavar="DIR", help=f"{BACKGROUNDS} if it is there, or those of scikit-image")
    parsed.add_argument("--server", default="tapetum", help="the command whose drive the row sides starts")
    parsed.add_argument("--smoke", action="store_true", help="as small as can be: that it ends")
    parsed.add_argument("--out", type=Path, default=Path("images.json"))
    return parsed


def main():
    given = options().parse_args()
    if given.smoke:
        given.rounds, given.pictures, given.rates = 1, 8, "1600"
    if given.photographs is None:
        given.photographs = [BACKGROUNDS] if Path(BACKGROUNDS).is_dir() else []
    found = {}
    with tempfile.TemporaryDirectory(dir=given.out.parent) as folder:
        folder = Path(folder)
        rows = given.rows.split(",")
        small = Set(given, folder, (500, 375), SMALL_BYTES) if {"small", "stages", "trainer", "weights", "sides"} & set(rows) else None
        for row in rows:
            plain = PIPELINE.format("")
            if row == "small":
                found[row] = load_row(given, row, small, SMALL, plain)
            elif row == "large":
                large = Set(argparse.Namespace(**{**vars(given), "pictures": -(-given.pictures // 4)}), folder, (2000, 1500), None)
                found[row] = load_row(given, row, large, LARGE, PIPELINE.format(" scaled"))
            elif row == "stages":
                found[row] = stages_row(given, small, plain)
            elif row == "trainer":
                found[row] = trainer_row(given, small, plain)
            elif row == "sizes":
                found[row] = sizes_row(given, folder)
            elif row == "weights":
                found[row] = weights.row(given, small)
            elif row == "sides":
                found[row] = sides.row(given, small, folder, files_of_sizes(given))
            else:
                raise SystemExit(f"there is no row {row}: say small, large, stages, trainer, sizes, weights, sides")
    given.out.write_text(json.dumps({row: vars(of) for row, of in found.items()}))


if __name__ == "__main__":
    main()
