"""The examples in python/examples, as a user runs them, and the bench in python/bench, as small as it goes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from served import SERVER
from test_images import picture

PYTHON = Path(__file__).parents[2] / "python"


def run(script, *words):
    folder = "bench" if script == "images.py" else "examples"
    command = [sys.executable, PYTHON / folder / script, *map(str, words)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A set made of two photographs."""
    photographs, folder = tmp_path_factory.mktemp("photographs"), tmp_path_factory.mktemp("parts")
    for name, number in [("One", 1), ("two", 14)]:
        picture(number, (300, 200)).save(photographs / f"{name}.png")
    picture(3, (40, 30)).save(photographs / "small.jpg")
    options = ["--photographs", photographs, "--count", 8, "--size", "48x40"]
    assert "2 classes of 8 pictures" in run("pictures.py", folder, *options)
    return folder


def test_pictures_are_the_same_each_time(folder, tmp_path):
    files = sorted(file.relative_to(folder) for file in folder.rglob("*.jpg"))
    assert [len(files), files[0].as_posix(), files[-1].as_posix()] == [16, "one/0000.jpg", "two/0007.jpg"]
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for name, number in [("one", 1), ("two", 14)]:
        picture(number, (300, 200)).save(photographs / f"{name}.png")
    run("pictures.py", tmp_path / "again", "--photographs", photographs, "--count", 8, "--size", "48x40")
    assert all((folder / file).read_bytes() == (tmp_path / "again" / file).read_bytes() for file in files)


@pytest.mark.parametrize("loader", ["tapetum", "torch", "torchvision"])
def test_a_few_steps_of_training(folder, tmp_path, loader):
    reason = "torch and torchvision do not import: apt-get install python3-torchvision, or pip install torch torchvision"
    pytest.importorskip("torch", reason=reason, exc_type=ImportError)
    pytest.importorskip("torchvision", reason=reason, exc_type=ImportError)
    options = ["--data", tmp_path / "data", "--capacity", 128, "--size", 32, "--batch", 4, "--steps", 4, "--threads", 1]
    report = tmp_path / "report.json"
    told = run("train.py", folder, "--loader", loader, *options, "--warm-up", 1, "--loading-core", 0, "--report", report)
    assert f"{loader}: 12 pictures" in told and "loss:" in told
    took = json.loads(report.read_text())
    assert took["pictures"] == 12 and took["host_cpu_s"] > 0 and took["wall_s"] >= took["waited_s"]
    assert ("jpeg_decode" in told) == (loader == "tapetum")


def test_the_bench_draws_the_same_crops_and_ends(tmp_path):
    picture(5, (2400, 1800)).save(tmp_path / "large.png")
    if SERVER is None:
        pytest.skip("TAPETUM_SERVER names no server")
    options = ["--contenders", "bare", "--photographs", tmp_path, "--out", tmp_path / "images.json", "--server", SERVER]
    run("images.py", "--smoke", *options)
    found = json.loads((tmp_path / "images.json").read_text())
    lines = {row: [line["name"] for line in of["lines"]] for row, of in found.items()}
    assert lines["small"] == lines["large"] == ["tapetum", "bare"] and lines["trainer"] == ["1600, tapetum"]
    assert lines["sizes"][0].startswith("64 KiB, ") and "2 : 1" in lines["weights"]
    assert "jpeg_decode" in lines["stages"]
    assert lines["sides"][:2] == [f"a JPEG file of 64 KiB decoded, {side}" for side in ("the drive", "the host")]
    held = {held["what"]: held["turns"] for held in found["stages"]["held"]}
    assert held["bytes a picture: a uint8 tensor (Tapetum)"] == [150_528]


def notebook():
    return json.loads((PYTHON / "examples" / "store.ipynb").read_text())


def test_the_notebook_runs_from_top_to_bottom(tmp_path, monkeypatch):
    """Its code cells, in their order and in one namespace, as Jupyter runs them; without its kernel, which is no part of what is shown."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    names = {"__name__": "__main__"}
    for cell in notebook()["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), cell["id"], "exec"), names)
    assert names["table"].num_rows == 5 and names["figures"]["keyspace_items:images"] > 0
    assert names["store"].closed and not list(tmp_path.iterdir())


def test_the_notebook_is_kept_without_outputs():
    whole = notebook()
    assert (whole["nbformat"], whole["metadata"]["kernelspec"]["name"]) == (4, "python3")
    for cell in whole["cells"]:
        assert cell["source"] and (cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None))
