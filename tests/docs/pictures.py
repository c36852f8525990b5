"""Writes a small labelled set of JPEG files, in place of python/examples/pictures.py, which needs packages with photographs: FOLDER."""

import pathlib
import sys

from PIL import Image

for name, colour in (("cats", "orange"), ("dogs", "brown")):
    folder = pathlib.Path(sys.argv[1]) / name
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(10):
        Image.new("RGB", (80 + number, 60), colour).save(folder / f"{number}.jpg")
