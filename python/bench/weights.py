"""Two trainings with different pipelines on one drive, and what each gets of its units: the row ``weights`` of ``images.py``.

Both take batches as fast as they come, so pictures of both wait for a unit all the while; where nobody waits there is nothing to divide. What a
training got is the time that units worked for its pictures, as the store counts it by application.
"""

import threading
import time

import tapetum
from found import Found

#: By application. The second decodes all of a picture, and makes floats of it.
PIPELINES = {
    "crops": "jpeg_decode | random_resized_crop 224 | flip | layout chw",
    "whole": "jpeg_decode | resize 256x256 | center_crop 224 | normalize | layout chw",
}
#: Of the two.
WEIGHTS = ((1, 1), (2, 1), (1, 3))
DISTANCE_MOST = 0.10
WARM_UP_S, TURN_S, SMOKE_S = 1.0, 4.0, 0.5


class Training:
    """Takes batches on a thread of its own until it is stopped."""

    def __init__(self, images, application, batch):
        # Two threads, so that one has pictures at the drive while the other ends its batch.
        options = {"shuffle": True, "threads": 2, "prefetch": 4, "application": application}
        self.loader = tapetum.Loader(images, tapetum.Pipeline(PIPELINES[application]), batch, **options)
        self.stopped, self.failed = threading.Event(), None
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        try:
            while not self.stopped.is_set():
                for _ in self.loader:
                    if self.stopped.is_set():
                        break
        except tapetum.Error as error:
            self.failed = error

    def end(self):
        self.stopped.set()
        self.thread.join()
        if self.failed is not None:
            raise self.failed


def turn(path, weights, seconds):
    """Microseconds of units and pictures that each training got, by application. A pipeline is a picture."""
    named = dict(zip(PIPELINES, weights))
    with tapetum.open(path, units=1, weights=named, read_only=True) as store:
        images = store.images()
        trainings = {name: Training(images, name, min(16, len(images))) for name in named}

        def look():
            now = store.applications()
            return {name: (now[name]["unit_us"], now[name]["pipelines"]) for name in named}

        try:
            time.sleep(min(WARM_UP_S, seconds))
            before = look()
            time.sleep(seconds)
            after = look()
        finally:
            for training in trainings.values():
                training.end()
    return {name: tuple(late - early for late, early in zip(after[name], before[name])) for name in named}


def row(given, of):
    """What each training got, and how far the one that is furthest from its weight is from it, in each round."""
    found = Found(of.about(), ["weights of two trainings", "units' time, first ÷ second", "pictures, first ÷ second"])
    for weights in WEIGHTS:
        turns = [turn(of.store, weights, SMOKE_S if given.smoke else TURN_S) for _ in range(given.rounds)]
        ratios, pictures, distances = [], [], []
        for got in turns:
            (first_us, first), (second_us, second) = got.values()
            ratios.append(first_us / max(second_us, 1))
            pictures.append(first / max(second, 1))
            shares = [max(weight / sum(weights) * (first_us + second_us), 1) for weight in weights]
            distances.append(max(abs(us / share - 1) for us, share in zip((first_us, second_us), shares)))
        named = " : ".join(map(str, weights))
        found.line(named, ratios, pictures)
        found.hold(f"{named}: furthest from its weight, as a part of it", distances, most=DISTANCE_MOST)
    return found
