"""Makes a labelled set of JPEG files to train with: parts of photographs, in a folder for each photograph.

    python python/examples/pictures.py pictures

The photographs are those that scikit-image and scikit-learn bring (``pip install scikit-image scikit-learn``), or those below the folders
given with ``--photographs``, such as /usr/share/backgrounds/mate of Debian's mate-backgrounds. The same options make the same files.
"""

from __future__ import annotations

import argparse
import importlib.util
import random
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

#: Of the packages' pictures, colour photographs that differ from each other.
PACKAGED = {
    "skimage": ["data/" + name for name in ("astronaut.png", "chelsea.png", "coffee.png", "ihc.png", "rocket.jpg", "retina.jpg")],
    "sklearn": ["datasets/images/china.jpg", "datasets/images/flower.jpg"],
}
SUFFIXES = {".jpg", ".jpeg", ".png"}
#: The sides of a part are at least this share of the largest that fits in the photograph.
SHARE_LEAST = 0.4


def packaged() -> list[Path]:
    """The files of the installed packages."""
    files: list[Path] = []
    for package, names in PACKAGED.items():
        spec = importlib.util.find_spec(package)
        if spec is not None and spec.submodule_search_locations:
            files += [Path(spec.submodule_search_locations[0]) / name for name in names]
    return files


def photographs(folders: Iterable[str | Path], size: tuple[int, int] = (1, 1)) -> dict[str, Image.Image]:
    """The photographs below the folders, or the packages'; of those at least as large as ``size``. By name."""
    folders = list(folders)
    files = [file for folder in folders for file in sorted(Path(folder).rglob("*")) if file.suffix.lower() in SUFFIXES]
    found = {}
    for file in files if folders else packaged():
        with Image.open(file) as image:
            if image.width >= size[0] and image.height >= size[1]:
                found[file.stem.lower()] = image.convert("RGB")
    return found


def part(photograph: Image.Image, size: tuple[int, int], chance: random.Random, share_least: float = SHARE_LEAST) -> Image.Image:
    """A part of a photograph, of any place and scale, in this size."""
    largest = min(photograph.width / size[0], photograph.height / size[1])
    scale = largest * chance.uniform(share_least, 1.0)
    width, height = int(size[0] * scale), int(size[1] * scale)
    left, top = chance.randint(0, photograph.width - width), chance.randint(0, photograph.height - height)
    box = (left, top, left + width, top + height)
    return photograph.resize(size, Image.Resampling.BILINEAR, box, reducing_gap=None)


def make(
    folder: str | Path,
    photographs: dict[str, Image.Image],
    count: int,
    size: tuple[int, int],
    quality: int = 90,
    seed: int = 0,
    share_least: float = SHARE_LEAST,
) -> None:
    """Writes ``count`` parts of each photograph as FOLDER/NAME/NUMBER.jpg."""
    for name, photograph in photographs.items():
        chance = random.Random(f"{seed} {name}")
        (Path(folder) / name).mkdir(parents=True, exist_ok=True)
        for number in range(count):
            part(photograph, size, chance, share_least).save(Path(folder) / name / f"{number:04}.jpg", quality=quality)


def sizes(text: str) -> tuple[int, int]:
    width, height = text.split("x")
    return int(width), int(height)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path)
    options.add_argument("--count", type=int, default=200, help="parts of each photograph")
    options.add_argument("--size", type=sizes, default=(160, 120), help="of a part, as 160x120")
    options.add_argument("--quality", type=int, default=90)
    options.add_argument("--photographs", action="append", default=[], metavar="DIR", help="take those below this folder")
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    found = photographs(given.photographs, given.size)
    if len(found) < 2:
        raise SystemExit("found fewer than two photographs: pip install scikit-image scikit-learn, or give --photographs DIR")
    make(given.folder, found, given.count, given.size, given.quality, given.seed)
    print(f"{given.folder}: {len(found)} classes of {given.count} pictures")


if __name__ == "__main__":
    main()
