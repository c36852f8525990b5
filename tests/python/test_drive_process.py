"""A store whose drive is another process: pictures are decoded there."""

import subprocess
import time

import numpy
import pytest
from PIL import Image
from served import SERVER

import tapetum
from tapetum import Loader


@pytest.fixture
def drive(tmp_path):
    if SERVER is None:
        pytest.skip("TAPETUM_SERVER names no server")
    socket, log = tmp_path / "drive.sock", tmp_path / "log"
    words = [SERVER, "drive", "--file", tmp_path / "flash", "--capacity", "192MiB", "--socket", socket]
    with log.open("w") as out:
        process = subprocess.Popen(words, stdout=out, stderr=out)
    while "stores find the drive at" not in log.read_text():
        assert process.poll() is None, log.read_text()
        time.sleep(0.02)
    yield socket
    process.kill()
    process.wait()


def batches(path, folder):
    with tapetum.Store.open(path, capacity=64 << 20, memory=64 << 20) as store:
        store.import_images(folder)
        loader = Loader(store.images(), "jpeg_decode | random_resized_crop 40 | flip", 4, seed=3)
        return [batch.images.copy() for batch in loader]


def test_pictures_are_those_of_one_process(tmp_path, drive):
    folder = tmp_path / "pictures"
    random = numpy.random.default_rng(7)
    for number in range(12):
        file = folder / f"class{number % 3}" / f"{number}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (90, 100, 3), dtype=numpy.uint8)).save(file)
    here, there = batches(tmp_path / "data", folder), batches(drive / "pictures", folder)
    assert len(here) == 3
    assert all((one == other).all() for one, other in zip(here, there, strict=True))
