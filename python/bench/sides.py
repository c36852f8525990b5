"""Pictures decoded by a drive in a process of its own, or by the host that reads their files out of the same store: the row ``sides`` of
``images.py``. ProcPIPE's figures 7 to 9, with the CPU time of each side as the kernel counts it, and the bytes that come to the host.

The drive sleeps as soon as it has nothing to do; host and drive share the machine's cores.
"""

import contextlib
import queue
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import tapetum
from found import Found

CAPACITY = 512 << 20
#: Of the store; the drive has more for it.
MEMORY, DRIVE_MEMORY = 256 << 20, 512 << 20
START_MAX_S = 60
#: Of figure 8: each pipeline, and the next with one stage more.
STAGES = ("jpeg_decode", "random_resized_crop 224", "flip", "normalize", "layout chw")
#: Of figure 9.
TRAINING = "jpeg_decode | random_resized_crop 224 | flip"
AHEAD_BATCHES = 4
SIDES = ("the drive", "the host")


@contextlib.contextmanager
def process(binary, folder):
    """``tapetum drive`` over a file in this folder: its socket, which lies elsewhere, because a socket's path is short."""
    folder.mkdir()
    sockets = tempfile.TemporaryDirectory()
    socket, log = Path(sockets.name) / "drive.sock", folder / "log"
    words = [binary, "drive", "--file", folder / "flash", "--capacity", str(CAPACITY), "--memory", str(DRIVE_MEMORY), "--socket", socket]
    with log.open("w") as out:
        drive = subprocess.Popen(words, stdout=out, stderr=out)
    try:
        until = time.monotonic() + START_MAX_S
        while not socket.exists():
            if drive.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"the drive did not start: {log.read_text()}")
            time.sleep(0.01)
        yield socket
    finally:
        drive.kill()
        drive.wait()
        sockets.cleanup()


class Meter:
    """What work took on both sides, a picture."""

    def __init__(self, store):
        self.store, self.turns = store, []

    def measure(self, work):
        """Runs ``work``, which returns how many pictures it made."""
        before, cpu, began = self.store.stats(), time.process_time(), time.perf_counter()
        pictures = work()
        wall, cpu, after = time.perf_counter() - began, time.process_time() - cpu, self.store.stats()
        moved = {key: (after[key] - before[key]) / pictures for key in ("drive_process_cpu_us", "local_to_host_bytes")}
        self.turns.append((wall / pictures * 1e6, cpu / pictures * 1e6, *moved.values()))

    def figures(self):
        return [list(figure) for figure in zip(*self.turns)]


def both(found, store, rounds, what, works):
    """A line for the drive's way and one for the host's, and the first ÷ the second."""
    meters = [Meter(store) for _ in SIDES]
    for _ in range(rounds):
        for meter, work in zip(meters, works):
            meter.measure(work)
    for side, meter in zip(SIDES, meters):
        found.line(f"{what}, {side}", *meter.figures())
    (wall, cpu, of_drive, _), (wall_host, cpu_host, of_drive_host, _) = (meter.figures() for meter in meters)
    found.hold(f"{what}: time, by the drive ÷ by the host", [one / other for one, other in zip(wall, wall_host)])
    found.hold(f"{what}: the host's CPU, by the drive ÷ by the host", [one / other for one, other in zip(cpu, cpu_host)])
    all_of = zip(cpu, of_drive, cpu_host, of_drive_host)
    found.hold(f"{what}: CPU of both, by the drive ÷ by the host", [(a + b) / (c + d) for a, b, c, d in all_of])


def singles(found, store, rounds, files):
    """Figure 7: one file after the other, by size."""
    pipeline, keyspace = tapetum.Pipeline("jpeg_decode"), store.keyspace("files", create=True)
    for size, content in files.items():
        keyspace.put(size, content)
        repeats = range(max(1, (8 << 20) // len(content)))

        def by_drive():
            for _ in repeats:
                tapetum.run(pipeline, keyspace, size)
            return len(repeats)

        def by_host():
            for _ in repeats:
                tapetum.apply(pipeline, keyspace.get(size))
            return len(repeats)

        both(found, store, rounds, f"a JPEG file of {size} decoded", (by_drive, by_host))


def stages(found, store, images, rounds, seed):
    """Figure 8: an epoch of small pictures, with one stage more each time."""
    keyspace = store.keyspace("images")
    for count in range(1, len(STAGES) + 1):
        pipeline = tapetum.Pipeline(" | ".join(STAGES[:count]))

        def by_drive():
            for item in range(len(images)):
                tapetum.run(pipeline, keyspace, images.key(item), seed=seed, item=item)
            return len(images)

        def by_host():
            for item in range(len(images)):
                tapetum.apply(pipeline, keyspace.get(images.key(item)), seed=seed, item=item)
            return len(images)

        both(found, store, rounds, f"small pictures: {', '.join(STAGES[:count])}", (by_drive, by_host))


def training(found, store, images, rounds, batch, rates, seed):
    """Figure 9: a trainer that is busy with each batch for as long as a GPU of such a rate is."""
    pipeline, keyspace = tapetum.Pipeline(TRAINING), store.keyspace("images")
    loader = tapetum.Loader(images, pipeline, batch, seed=seed, drop_last=False)

    def by_host():
        """Batches of a thread that loads ahead."""
        made = queue.Queue(AHEAD_BATCHES)

        def load():
            for start in range(0, len(images), batch):
                items = range(start, min(start + batch, len(images)))
                made.put([tapetum.apply(pipeline, keyspace.get(images.key(item)), seed=seed, item=item) for item in items])
            made.put(None)

        threading.Thread(target=load, daemon=True).start()
        return iter(made.get, None)

    def trained(batches, rate):
        free, pictures = time.perf_counter(), 0
        for loaded in batches:
            count = len(loaded)
            free, pictures = max(free, time.perf_counter()) + count / rate, pictures + count
            time.sleep(max(free - time.perf_counter(), 0.0))
        return pictures

    for rate in rates:
        works = (lambda: trained((batch.images for batch in loader), rate), lambda: trained(by_host(), rate))
        both(found, store, rounds, f"a training of {rate} pictures a second", works)


def row(given, of, folder, files):
    """The row; ``of`` is a set of small pictures, ``files`` JPEG files by the name of their size."""
    columns = ["work, by", "µs a picture", "CPU µs, host", "CPU µs, drive", "bytes to the host"]
    found = Found(of.about(), columns)
    with process(given.server, folder / "drive") as socket, tapetum.open(socket / "pictures", capacity=CAPACITY // 2, memory=MEMORY) as store:
        images = store.import_images(of.folder)
        singles(found, store, given.rounds, files)
        stages(found, store, images, given.rounds, given.seed)
        training(found, store, images, given.rounds, 16, [int(rate) for rate in given.rates.split(",")], given.seed)
    return found
