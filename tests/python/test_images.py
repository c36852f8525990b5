"""Pictures: pipelines, batches, and what goes wrong with them."""

import io
import itertools
import os
import pickle
import shutil
import signal
import struct
import subprocess
import sys
import zlib

import numpy
import pytest
from PIL import Image

import tapetum
from tapetum import Loader, Pipeline

COUNT = 24


def picture(number, size=(120, 90)):
    """Smooth, with an edge, and each of its own."""
    x, y = numpy.meshgrid(numpy.arange(size[0]), numpy.arange(size[1]))
    red = (x * 255 // size[0] + 9 * number) % 256
    green = y * 255 // size[1]
    blue = numpy.where(x > y, 200, 30)
    return Image.fromarray(numpy.stack([red, green, blue], axis=2).astype("uint8"))


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pictures")
    for number in range(COUNT):
        file = folder / ["cats", "dogs", "emus"][number % 3] / f"{number:02}.jpg"
        file.parent.mkdir(exist_ok=True)
        picture(number, (100 + number, 90)).save(file, quality=90)
    return folder


@pytest.fixture(scope="session", params=[0, 2], ids=["no units", "units"])
def store(request, tmp_path_factory, folder):
    path = tmp_path_factory.mktemp("store") / "data"
    with tapetum.Store.open(path, capacity=128 << 20, memory=128 << 20, units=request.param) as store:
        seen = []
        store.import_images(folder, progress=lambda files, total, size: seen.append((files, total)))
        assert seen[-1] == (COUNT, COUNT)
        yield store


def pixels(store, key):
    return numpy.asarray(Image.open(io.BytesIO(store.keyspace("images")[key])).convert("RGB"))


def test_decoding_first_batch_to_numpy(store):
    images = store.images()
    assert (len(images), images.classes) == (COUNT, ["cats", "dogs", "emus"])
    before = store.stages()["jpeg_decode"]["tasks"]
    loader = Loader(images, Pipeline("jpeg_decode | center_crop 80x64"), 4)
    batch = next(iter(loader))
    assert (batch.images.shape, batch.images.dtype) == ((4, 64, 80, 3), numpy.uint8)
    for row, item in enumerate(batch.items):
        whole = pixels(store, images.key(item))
        left, top = round((whole.shape[1] - 80) / 2), round((whole.shape[0] - 64) / 2)
        # PIL brings a libjpeg-turbo of its own, whose pixels may be a level apart.
        difference = numpy.abs(whole[top : top + 64, left : left + 80].astype(int) - batch.images[row])
        assert difference.max() <= 2
    assert list(batch.labels) == [0, 0, 0, 0]
    assert store.stages()["jpeg_decode"]["tasks"] >= before + 4
    assert batch.images.flags.writeable and batch.images.__dlpack__() is not None


def test_resizing_is_pils(store):
    image = tapetum.run(Pipeline("jpeg_decode | resize 50x40"), store.keyspace("images"), "cats/00.jpg")
    expected = Image.fromarray(pixels(store, "cats/00.jpg")).resize((50, 40), Image.BILINEAR)
    assert numpy.abs(numpy.asarray(expected).astype(int) - image).max() <= 3


def test_a_file_in_memory_becomes_what_one_of_the_store_becomes(store):
    pipeline, chance = Pipeline("jpeg_decode | random_resized_crop 40 | flip | layout chw"), {"seed": 1, "epoch": 2, "item": 3}
    keyspace = store.keyspace("images")
    of_store = tapetum.run(pipeline, keyspace, "cats/00.jpg", **chance)
    assert (tapetum.apply(pipeline, keyspace["cats/00.jpg"], **chance) == of_store).all()
    with pytest.raises(tapetum.PipelineError, match="stage 0, jpeg_decode: the file is a PNG, not a JPEG: write decode in place of jpeg_decode"):
        tapetum.apply(pipeline, b"\x89PNG\r\n\x1a\n")
    with pytest.raises(tapetum.PipelineError, match="stage 1, center_crop: the picture is smaller"):
        tapetum.apply(Pipeline("jpeg_decode | center_crop 400"), bytearray(keyspace["cats/00.jpg"]))


def file_of(image, kind, **options):
    """The bytes of a picture's file."""
    written = io.BytesIO()
    image.save(written, kind, **options)
    return written.getvalue()


def test_validation_has_no_chance_and_every_picture(store):
    images = store.images()
    loader = Loader(images, "decode | resize 48 | center_crop 40", 7, shuffle=False, drop_last=False)
    batches = list(loader)
    assert [len(batch) for batch in batches] == [7, 7, 7, COUNT - 21] and len(loader) == 4
    assert numpy.concatenate([batch.items for batch in batches]).tolist() == list(range(COUNT))
    # Another pass, epoch and seed: the same.
    other = Loader(images, "decode | resize 48 | center_crop 40", 7, seed=9)
    for again in (loader, other):
        again.set_epoch(5)
        assert all((one.images == two.images).all() for one, two in zip(batches, again, strict=True))
    for item in (0, 13, COUNT - 1):
        image = Image.fromarray(pixels(store, images.key(item)))
        # As torchvision's Resize and CenterCrop.
        image = image.resize((48 * image.width // image.height, 48), Image.BILINEAR)
        left, top = round((image.width - 40) / 2), 4
        expected = numpy.asarray(image.crop((left, top, left + 40, top + 40))).astype(int)
        assert numpy.abs(expected - batches[item // 7].images[item % 7]).max() <= 3


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "transparent palette", "16 bits"])
def test_a_png_has_the_pixels_that_pil_reads(mode):
    image = picture(1, (37, 23))
    options = {}
    if mode == "transparent palette":
        image, options = image.convert("P"), {"transparency": 3}
    elif mode == "16 bits":
        image = Image.fromarray(numpy.asarray(image.convert("L")).astype("uint16") * 257)
    else:
        image = image.convert(mode)
    if mode == "RGBA":
        image.putalpha(image.getchannel("R"))
    file = file_of(image, "PNG", **options)
    expected = numpy.asarray(picture(1, (37, 23)).convert("L").convert("RGB") if mode == "16 bits" else Image.open(io.BytesIO(file)).convert("RGB"))
    assert (tapetum.apply("decode", file) == expected).all()
    grey = tapetum.apply(Pipeline.decode(grey=True), file)
    assert grey.shape == (23, 37, 1) and (grey[..., 0] == numpy.asarray(Image.fromarray(expected).convert("L"))).all()
    cut = tapetum.apply("decode | center_crop 20x10", file)
    assert (cut == expected[6:16, 8:28]).all()


def interlaced(grey):
    """A PNG of grey pixels by Adam7, which PIL does not write."""

    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    height, width = grey.shape
    passes = [(0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2)]
    rows = [grey[y, left::across].tobytes() for left, top, across, down in passes for y in range(top, height, down) if left < width]
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 1))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b"")


def test_interlaced_and_animated_pngs_are_read():
    grey = numpy.asarray(picture(1, (21, 13)).convert("L"))
    file = interlaced(grey)
    assert (numpy.asarray(Image.open(io.BytesIO(file))) == grey).all(), "PIL reads it"
    assert (tapetum.apply("decode grey", file)[..., 0] == grey).all()
    image = picture(1, (21, 13))
    animated = file_of(image, "PNG", save_all=True, append_images=[picture(2, (21, 13))])
    assert (tapetum.apply("decode", animated) == numpy.asarray(image)).all()


def test_a_webp_has_the_pixels_that_pil_reads():
    image = picture(1, (61, 45))
    for options, levels in [({"lossless": True}, 0), ({"quality": 90}, 2), ({"quality": 20}, 2)]:
        for mode in ("RGB", "RGBA"):
            image = picture(1, (61, 45)).convert(mode)
            if mode == "RGBA":
                image.putalpha(image.getchannel("G"))
            file = file_of(image, "WEBP", exact=True, **options)
            expected = numpy.asarray(Image.open(io.BytesIO(file)).convert("RGB")).astype(int)
            found = tapetum.apply("decode", file)
            assert numpy.abs(found - expected).max() <= levels, (options, mode)
    animated = file_of(image, "WEBP", save_all=True, append_images=[picture(2, (61, 45))])
    with pytest.raises(tapetum.PipelineError, match="stage 0, decode: the WebP is an animation: save one of its pictures by itself"):
        tapetum.apply("decode", animated)


def test_pictures_of_all_kinds_are_a_set(tmp_path):
    folder = tmp_path / "pictures" / "class"
    folder.mkdir(parents=True)
    for number, name in enumerate(["a.jpg", "b.png", "c.WEBP"]):
        picture(number, (40, 30)).save(folder / name, **({"lossless": True} if name.endswith("WEBP") else {}))
    with tapetum.open(tmp_path / "data", capacity="64MiB", memory="64MiB") as store:
        images = store.import_images(tmp_path / "pictures")
        batch = next(iter(Loader(images, "decode | random_resized_crop 16 | flip", 3, seed=1)))
        assert batch.images.shape == (3, 16, 16, 3) and all(row.any() for row in batch.images)
        whole = tapetum.run("decode", store.keyspace("images"), "class/b.png")
        assert (whole == numpy.asarray(picture(1, (40, 30)))).all()
        cut = tapetum.apply("decode | random_resized_crop 16 | flip", (folder / "c.WEBP").read_bytes(), seed=1, item=2)
        assert (cut == batch.images[2]).all()


def test_hostile_files_are_refused():
    png = file_of(picture(1, (8, 8)), "PNG")
    webp = file_of(picture(1, (8, 8)), "WEBP")
    for file in (png, webp):
        with pytest.raises(tapetum.PipelineError, match="stage 0, decode: the file ends before its picture does"):
            tapetum.apply("decode", file[:-20])
        with pytest.raises(tapetum.PipelineError, match="stage 1, center_crop: the picture is smaller"):
            tapetum.apply("decode | center_crop 9", file)
    header = struct.pack(">II", 100_000, 100_000) + png[24:29]
    huge = png[:16] + header + struct.pack(">I", zlib.crc32(b"IHDR" + header)) + png[33:]
    with pytest.raises(tapetum.PipelineError, match="more than 67,108,864 pixels"):
        tapetum.apply("decode", huge)


def test_floats_and_planes(store):
    pipeline = Pipeline.jpeg_decode().resize((30, 40)).normalize().layout("chw")
    assert pipeline.batch(2).batch_shape == (2, (3, 30, 40), "float32")
    image = tapetum.run(pipeline, store.keyspace("images"), "cats/00.jpg")
    plain = tapetum.run(Pipeline("jpeg_decode | resize 40x30"), store.keyspace("images"), "cats/00.jpg")
    mean, std = numpy.array([0.485, 0.456, 0.406]), numpy.array([0.229, 0.224, 0.225])
    numpy.testing.assert_allclose(image, ((plain / 255 - mean) / std).transpose(2, 0, 1), rtol=1e-4, atol=1e-5)


def test_pipelines_are_composed_printed_and_checked():
    composed = Pipeline.jpeg_decode().random_resized_crop(224).flip().batch(128)
    assert str(composed) == "jpeg_decode | random_resized_crop 224 | flip | batch 128"
    assert composed == Pipeline.resnet50().batch(128)
    assert repr(Pipeline.alexnet()) == 'Pipeline("jpeg_decode | resize 256 | random_crop 224 | flip")'
    assert composed.programs == ["jpeg_decode", "resize", "flip", "batch"]
    assert pickle.loads(pickle.dumps(composed)) == composed
    for text, told in [
        ("flip", "stage 0, flip: its input is a file"),
        ("jpeg_decode | blur", "stage 1, blur: there is no such stage"),
        ("jpeg_decode | normalize | resize 8", "stage 2, resize: it takes pixels"),
        ("jpeg_decode | batch 8", "stage 1, batch: pictures have sizes"),
        ("jpeg_decode | resize 20000x20000", "stage 1, resize: a picture of 400000000 pixels, 1145MiB, is too large: 67108864 .* 64MiB"),
    ]:
        with pytest.raises(tapetum.PipelineError, match=told):
            Pipeline(text)
    with pytest.raises(tapetum.PipelineError, match="stage 2, flip"):
        Pipeline.jpeg_decode().normalize().flip()
    with pytest.raises(TypeError):
        Pipeline.jpeg_decode().resize("large")


def loader(store, **options):
    """As a training has it."""
    options = {"shuffle": True, "drop_last": True, **options}
    return Loader(store.images(), Pipeline("jpeg_decode | random_resized_crop 32 | flip"), 5, seed=7, **options)


def test_an_epoch_shows_each_item_once_and_the_next_others(store):
    epochs = loader(store, drop_last=False)
    assert len(epochs) == 5
    first, second = list(epochs), list(epochs)
    assert [len(batch) for batch in first] == [5, 5, 5, 5, 4]
    items = [numpy.concatenate([batch.items for batch in epoch]) for epoch in (first, second)]
    assert sorted(items[0]) == sorted(items[1]) == list(range(COUNT))
    assert list(items[0]) != list(items[1])
    assert epochs.epoch == 2
    again = loader(store, drop_last=False, threads=3, prefetch=4)
    for batch, other in zip(first, again, strict=True):
        assert (batch.images == other.images).all() and (batch.labels == other.labels).all()
    other_epoch = {item: image for batch in second for item, image in zip(batch.items, batch.images)}
    assert any((image != other_epoch[item]).any() for batch in first for item, image in zip(batch.items, batch.images))
    assert again.stats()["pictures"] == COUNT and again.stats()["failed"] == 0


@pytest.fixture
def both(store, folder, tmp_path):
    """The same pictures in a hashed and in an ordered keyspace, of which one takes more than a MiB."""
    pictures = shutil.copytree(folder, tmp_path / "pictures")
    noise = numpy.random.default_rng(1).integers(0, 256, (1100, 1400, 3), dtype="uint8")
    Image.fromarray(noise).save(pictures / "dogs" / "large.jpg", quality=95)
    Image.fromarray(noise[:200, :300]).save(pictures / "cats" / "long.jpg", quality=95)
    assert (pictures / "dogs" / "large.jpg").stat().st_size > 1 << 20
    names = {"plain": False, "sorted": True}
    for name, ordered in names.items():
        store.keyspace(name, create=True, ordered=ordered)
    yield [store.import_images(pictures, keyspace=name) for name in names]
    for name in names:
        store.drop_keyspace(name)


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_ordered_keyspace_gives_the_batches_of_a_hashed_one(both, shuffle):
    for text in ["jpeg_decode | random_resized_crop 32 | flip", "jpeg_decode | resize 24x24 | normalize | layout chw"]:
        options = {"shuffle": shuffle, "seed": 7, "threads": 2}
        plain, ordered = (Loader(images, Pipeline(text), 5, **options) for images in both)
        for _ in range(2):
            for one, other in zip(plain, ordered, strict=True):
                assert one.images.tobytes() == other.images.tobytes()
                assert list(one.labels) == list(other.labels) and list(one.items) == list(other.items)
        assert plain.stats()["pictures"] == ordered.stats()["pictures"] == len(both[0])
        assert plain.stats()["failed"] == ordered.stats()["failed"] == 0


def test_defaults_are_those_of_torch(store):
    batches = list(Loader(store.images(), "jpeg_decode | resize 8x8", 5))
    assert [len(batch) for batch in batches] == [5, 5, 5, 5, 4]
    assert [int(item) for batch in batches for item in batch.items] == list(range(COUNT))
    assert len(Loader(store.images(), "jpeg_decode | resize 8x8", 100)) == 1
    assert len(next(iter(Loader(store.images(), "jpeg_decode | resize 8x8", 100)))) == COUNT


def test_a_loader_that_would_give_nothing_is_refused(store):
    images, pipeline = store.images(), "jpeg_decode | resize 8x8"
    with pytest.raises(ValueError, match="drop_last=True leaves nothing: the set has 24 pictures, and one batch takes 32"):
        Loader(images, pipeline, 32, drop_last=True)
    with pytest.raises(ValueError, match="one batch for each of 2 ranks takes 32: .* smaller batch_size"):
        Loader(images, pipeline, 16, drop_last=True, world_size=2)


def test_a_loader_names_the_argument_that_is_wrong(store):
    def make(batch_size=4, images=None, **options):
        return Loader(store.images() if images is None else images, "jpeg_decode | resize 8x8", batch_size, **options)

    wrong = [
        (TypeError, "images is a Store: give the set that store.images", {"images": store}),
        (TypeError, "images is a list: give the set that store.images", {"images": []}),
        (ValueError, "batch_size is 0: give 1 to 65536", {"batch_size": 0}),
        (ValueError, "batch_size is 65537: give 1 to 65536", {"batch_size": 65_537}),
        (TypeError, "batch_size is 1.5: give a whole number", {"batch_size": 1.5}),
        (ValueError, "threads is 65: give 1 to 64", {"threads": 65}),
        (ValueError, "prefetch is 0: give 1 or more", {"prefetch": 0}),
        (ValueError, "seed is -1: give 0 to", {"seed": -1}),
        (TypeError, "seed is '1': give a whole number", {"seed": "1"}),
        (ValueError, "rank is -1: give 0 or more", {"rank": -1}),
        (ValueError, "rank 1 of 1: ranks are counted from 0", {"rank": 1}),
        (ValueError, "world_size is 0", {"world_size": 0}),
        (TypeError, "timeout is '5': give seconds", {"timeout": "5"}),
        (TypeError, "timeout is None: give seconds", {"timeout": None}),
        (ValueError, "timeout is -1: give 0 or more seconds", {"timeout": -1}),
    ]
    for error, told, options in wrong:
        with pytest.raises(error, match=told):
            make(**options)
    for error, epoch in [(ValueError, -1), (TypeError, 0.5), (ValueError, 2**64 - 1)]:
        with pytest.raises(error, match="epoch is "):
            make().set_epoch(epoch)
    make(numpy.int64(4), seed=numpy.uint64(2**64 - 1), timeout=numpy.float32(9)).set_epoch(numpy.int32(3))
    for count in (0, -1, 65_537):
        with pytest.raises(ValueError, match=f"a batch of {count} pictures: give 1 to 65536"):
            Pipeline("jpeg_decode | resize 8x8").batch(count)


def test_scaled_is_an_argument_of_jpeg_decode():
    scaled = Pipeline.jpeg_decode(scaled=True)
    assert scaled.resize((8, 9)) == Pipeline("jpeg_decode scaled | resize 9x8")
    with pytest.raises(tapetum.PipelineError, match="stage 0, jpeg_decode: scaled needs the size"):
        scaled.flip()


def test_a_batch_beyond_the_machines_memory_is_an_error(store):
    # One of its pictures fits, and 65,536 do not.
    several = Loader(store.images(), "jpeg_decode | resize 4000x4000", 65_536)
    native = tapetum.batches.NativeLoader(store.images(), several.pipeline, 1, application="default")
    native.submit([0] * 65_536, 0, 0)
    with pytest.raises(tapetum.Error, match="a batch of 65536 pictures takes 2.9TiB, which this machine does not have"):
        native.next(5.0, False)


def test_text_is_a_pipeline_everywhere(store):
    text, keyspace = "jpeg_decode | resize 8x8", store.keyspace("images")
    pipeline = Pipeline(text)
    assert (tapetum.run(text, keyspace, "cats/00.jpg") == tapetum.run(pipeline, keyspace, "cats/00.jpg")).all()
    assert (tapetum.apply(text, keyspace["cats/00.jpg"]) == tapetum.apply(pipeline, keyspace["cats/00.jpg"])).all()
    assert len(next(iter(Loader(store.images(), text + " | batch 3")))) == 3
    with pytest.raises(tapetum.PipelineError, match="stage 1, blur"):
        Loader(store.images(), "jpeg_decode | blur", 4)
    uses = [
        lambda: Loader(store.images(), 224, 4),
        lambda: tapetum.run(None, keyspace, "cats/00.jpg"),
        lambda: tapetum.apply(b"jpeg_decode", b""),
        lambda: Pipeline(7),
    ]
    for use in uses:
        with pytest.raises(TypeError, match="a pipeline is a tapetum.Pipeline or its text, such as 'decode"):
            use()


def test_both_spellings_of_grey(store):
    grey = Pipeline("jpeg_decode grey")
    assert grey == Pipeline("jpeg_decode gray") == Pipeline.jpeg_decode(gray=True) == Pipeline.jpeg_decode(grey=True)
    assert str(grey) == "jpeg_decode grey"
    assert tapetum.run("jpeg_decode gray | resize 8x8", store.keyspace("images"), "cats/00.jpg").shape == (8, 8, 1)


def test_a_pass_resumes_with_the_same_pixels_and_another_world(store):
    def seen(batches):
        return {int(item): image.tobytes() for batch in batches for item, image in zip(batch.items, batch.images)}

    whole = seen(loader(store, drop_last=False))
    begun = loader(store, drop_last=False)
    steps = iter(begun)
    first = [next(steps), next(steps)]
    state = pickle.loads(pickle.dumps(begun.state_dict()))
    rest = []
    for rank in range(2):
        resumed = loader(store, drop_last=False, rank=rank, world_size=2)
        resumed.load_state_dict(state)
        rest.append(list(resumed))
    assert len(rest[0]) == len(rest[1]) == 2
    assert [len(batch) for batch in rest[0]] == [len(batch) for batch in rest[1]]
    assert seen(first) | seen(rest[0]) | seen(rest[1]) == whole
    state["items"] = 3
    with pytest.raises(tapetum.Error, match="same set"):
        begun.load_state_dict(state)


def items_of(batches):
    return [int(item) for batch in batches for item in batch.items]


def test_a_pass_that_was_left_at_its_end_is_over(store):
    whole = items_of(loader(store)), items_of(passes := loader(store)), items_of(passes)
    assert whole[0] == whole[1] != whole[2]
    for drop_last in (True, False):
        left = loader(store, drop_last=drop_last)
        first = list(itertools.islice(left, len(left)))
        assert items_of(first)[:20] == whole[0] and left.state_dict()["epoch"] == 1
        resumed = loader(store, drop_last=drop_last)
        resumed.load_state_dict(left.state_dict())
        second = [batch for _, batch in zip(range(len(left)), left)]
        assert items_of(second)[:20] == items_of(resumed)[:20] == whole[2]
        # The one that was chosen comes again, whole.
        left.set_epoch(1)
        assert items_of(left) == items_of(second) and left.epoch == 2
        assert len(list(left)) == len(left)


def test_an_older_iterator_says_that_another_pass_has_begun(store):
    state = loader(store).state_dict()
    for begin in [iter, lambda one: one.set_epoch(7), lambda one: one.load_state_dict(state)]:
        one = loader(store)
        older = iter(one)
        next(older)
        begun = begin(one)
        with pytest.raises(RuntimeError, match="another pass over this loader has begun"):
            next(older)
        assert begin is not iter or items_of(begun) == items_of(loader(store))[5:]
    # One that has given all is over, as others are.
    whole = iter(whole_of := loader(store))
    for number, batch in enumerate(whole):
        if number == len(whole_of) - 1:
            whole_of.set_epoch(3)
    assert whole_of.epoch == 3 and items_of(whole_of) == items_of(loader_at(store, 3))


def loader_at(store, epoch):
    at = loader(store)
    at.set_epoch(epoch)
    return at


def test_ranks_share_an_epoch(store):
    of_ranks = [list(loader(store, rank=rank, world_size=2)) for rank in range(2)]
    assert [len(batches) for batches in of_ranks] == [2, 2]
    items = [int(item) for batches in of_ranks for batch in batches for item in batch.items]
    assert len(set(items)) == 20


def test_pictures_that_fail(store, folder):
    bad = store.keyspace("bad", create=True)
    files = {"a.jpg": picture(1), "b.jpg": b"\x89PNG\r\n\x1a\n", "c.jpg": b"", "d.jpg": picture(2)}
    images = folder.parent / "bad"
    images.mkdir(exist_ok=True)
    for name, content in files.items():
        if isinstance(content, bytes):
            (images / name).write_bytes(content)
        else:
            content.convert("CMYK" if name == "d.jpg" else "RGB").save(images / name)
    assert len(bad) >= 0
    bad = store.import_images(images, keyspace="bad")
    pipeline = Pipeline("jpeg_decode | resize 16x16")

    def batch(**options):
        return next(iter(Loader(bad, pipeline, 4, **options)))

    with pytest.raises(tapetum.PipelineError, match="b.jpg: stage 0, jpeg_decode: the file is a PNG"):
        batch()
    skipped, filled = batch(on_error="skip"), batch(on_error="fill")
    assert list(skipped.items) == [0, 3] and skipped.images.shape == (2, 16, 16, 3)
    assert filled.images.shape == (4, 16, 16, 3) and not filled.images[1:3].any()
    assert (filled.images[[0, 3]] == skipped.images).all() and filled.images[3].any()
    assert [row for row, _ in filled.failures] == [1, 2]
    with pytest.raises(ValueError, match="raise, skip, fill"):
        batch(on_error="ignore")
    # Of four pictures, of which the middle two fail, each of two ranks has two batches.
    assert [len(batch) for batch in Loader(bad, pipeline, 1, on_error="skip")] == [1, 1]
    of_ranks = [list(Loader(bad, pipeline, 1, on_error="skip", rank=rank, world_size=2)) for rank in range(2)]
    assert [[len(batch) for batch in batches] for batches in of_ranks] == [[1, 0], [0, 1]]
    assert of_ranks[0][1].images.shape == (0, 16, 16, 3) and "c.jpg" in of_ranks[0][1].failures[0][1]


def test_batches_that_are_never_freed_are_named(store):
    bytes_of_one = 5 * 32 * 32 * 3
    leaking = loader(store, hold=3 * bytes_of_one, timeout=0.5)
    held = []
    with pytest.raises(tapetum.Error, match="holds batches 0 of epoch 0, 1 of epoch 0, 2 of epoch 0, and hold is"):
        for batch in leaking:
            # A part of an array holds all of it.
            held.append(batch.images[:1])
    assert len(held) == 3
    held.clear()
    # It goes on where it was, and with a caller that frees as it goes nobody waits.
    assert len(list(leaking)) == 1
    assert sum(len(batch) for batch in loader(store, hold=bytes_of_one)) == 20
    assert len(list(loader(store, hold=4 * bytes_of_one, timeout=0.5))) == 4
    with pytest.raises(ValueError, match="is not a size"):
        loader(store, hold="much")


def test_a_batch_that_no_memory_holds_is_refused_when_the_loader_is_made(store, monkeypatch):
    of_one = 32 * 32 * 3

    def of(batch_size, **options):
        return Loader(store.images(), "jpeg_decode | resize 32x32", batch_size, **options)

    monkeypatch.setattr("tapetum.batches._memory_bytes", lambda: 12 * of_one)
    assert len(of(12)) == 2
    told = f"a batch of 13 pictures takes {13 * of_one:,} bytes, and this machine has {12 * of_one:,} .* give a smaller batch_size"
    with pytest.raises(MemoryError, match=told):
        of(13)
    # No batch has more than the set, or a rank's share of it.
    assert len(of(1000, world_size=2)) == 1
    with pytest.raises(MemoryError, match=f"a batch of {COUNT} pictures"):
        of(1000)
    monkeypatch.undo()
    assert len(of(1000)) == 1


def script(path, text):
    """A program of its own, with a store of pictures."""
    head = f"""
import signal, sys, tapetum
# A background job of a shell begins with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
store = tapetum.open({str(path)!r})
loader = tapetum.Loader(store.images(), tapetum.Pipeline("jpeg_decode | resize 32x32"), 2, prefetch=4, threads=2)
"""
    return subprocess.Popen([sys.executable, "-c", head + text], stdout=subprocess.PIPE, text=True)


@pytest.fixture
def path(tmp_path, folder):
    with tapetum.Store.open(tmp_path / "data", capacity="64MiB", memory="64MiB") as store:
        store.import_images(folder)
    return tmp_path / "data"


def test_an_interpreter_that_ends_within_an_epoch(path):
    child = script(path, "steps = iter(loader); next(steps); print('ends')")
    assert child.communicate(timeout=120) == ("ends\n", None) and child.returncode == 0
    tapetum.Store.open(path).close()


def test_ctrl_c_within_an_epoch(path):
    child = script(
        path,
        """
try:
    print("begins", flush=True)
    while True:
        for batch in loader:
            pass
except KeyboardInterrupt:
    pass
# It goes on where it was.
print(len(next(iter(loader))))
store.close()
""",
    )
    assert child.stdout.readline() == "begins\n"
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=120) == ("2\n", None) and child.returncode == 0


def test_a_loader_that_went_through_a_fork_raises(store):
    steps = iter(loader(store))
    next(steps)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            next(steps)
        except tapetum.ClosedError:
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(next(steps)) == 5


def bomb(image, passes):
    """A progressive file with so many passes beside its own."""
    content = io.BytesIO()
    image.save(content, format="JPEG", progressive=True)
    file = content.getvalue()
    scans = [at for at in range(len(file) - 1) if file[at : at + 2] == b"\xff\xda"]
    return file[: scans[2]] + passes * file[scans[1] : scans[2]] + file[scans[2] :]


def test_a_progressive_file_of_many_passes_is_refused(store, tmp_path):
    (tmp_path / "bomb.jpg").write_bytes(bomb(picture(3), 600))
    bombs = store.import_images(tmp_path, keyspace="bombs")
    with pytest.raises(tapetum.PipelineError, match="bomb.jpg: stage 0, jpeg_decode: the progressive JPEG has more passes"):
        next(iter(Loader(bombs, Pipeline("jpeg_decode | resize 8x8"), 1)))


def test_a_decode_that_takes_too_long_is_that_pictures_error(store, tmp_path):
    # A file of few passes over few pixels is not even asked, and one of a hundred over a megapixel is not decoded in a millisecond.
    (tmp_path / "late.jpg").write_bytes(bomb(picture(3, (1200, 900)), 100))
    picture(4).save(tmp_path / "small.jpg")
    late = store.import_images(tmp_path, keyspace="late")
    pipeline = Pipeline("jpeg_decode | resize 8x8")

    def batch(**options):
        return next(iter(Loader(late, pipeline, 2, deadline=0.001, **options)))

    told = "late.jpg: stage 0, jpeg_decode: the decode did not end by its deadline"
    with pytest.raises(tapetum.DeadlineError, match=told):
        batch()
    skipped, filled = batch(on_error="skip"), batch(on_error="fill")
    assert list(skipped.items) == [1] and [row for row, reason in skipped.failures if told in reason] == [0]
    assert not filled.images[0].any() and (filled.images[1] == skipped.images[0]).all()
    hasty = pipeline.with_deadline(0.001)
    with pytest.raises(tapetum.DeadlineError, match=told):
        tapetum.run(hasty, late.keyspace, "late.jpg")
    with pytest.raises(tapetum.DeadlineError, match="stage 0, jpeg_decode"):
        tapetum.apply(hasty, late.keyspace["late.jpg"])


def test_deadlines_are_a_part_of_a_pipeline():
    assert str(Pipeline.resnet50().with_deadline(1.5)) == "jpeg_decode deadline=1.5 | random_resized_crop 224 | flip"
    assert Pipeline.jpeg_decode(deadline=2) == Pipeline("jpeg_decode deadline=2")
    assert Pipeline("jpeg_decode deadline=20") == Pipeline("jpeg_decode")
    for wrong in (0, -1, 1e9, float("nan")):
        with pytest.raises(ValueError, match="0.001 to 86400"):
            Pipeline("jpeg_decode").with_deadline(wrong)


def test_applications_share_the_units_of_a_drive(tmp_path, folder):
    options = {"capacity": "64MiB", "memory": "128MiB"}
    for wrong, error, told in [
        ({"weights": {"train": 1}}, ValueError, "give units too"),
        ({"weights": {"train": 0}, "units": 1}, tapetum.Error, "a weight of 1 to 1024"),
        ({"weights": {"": 1}, "units": 1}, tapetum.Error, "no name"),
    ]:
        with pytest.raises(error, match=told):
            tapetum.open(tmp_path / "data", **options, **wrong)
    with tapetum.open(tmp_path / "data", units=1, weights={"train": 3, "look": 1}, **options) as store:
        store.import_images(folder)
        train, look = loader(store, application="train"), loader(store, application="look")
        assert sum(len(batch) for batch in train) == sum(len(batch) for batch in look) == 20
        assert (train.stats()["application"], train.stats()["weight"]) == ("train", 3)
        shares = store.applications()
        assert {name: (of["weight"], of["pipelines"]) for name, of in shares.items()} == {
            "default": (1, 0),
            "train": (3, 20),
            "look": (1, 20),
        }
        assert train.stats()["unit_us"] == shares["train"]["unit_us"] > 0
        with pytest.raises(tapetum.Error, match="there are default, look, train"):
            next(iter(loader(store, application="trian")))


def test_a_closed_store_ends_its_loaders(path):
    store = tapetum.open(path, memory="64MiB")
    images, left = store.images(), loader(store, prefetch=4, threads=2)
    steps = iter(left)
    next(steps)
    store.close()
    # Nothing holds the store any more, so it opens beside what was made of it.
    with tapetum.Store.open(path, memory="64MiB") as again:
        assert len(list(loader(again))) == 4
        for use in (
            lambda: next(steps),
            lambda: next(iter(left)),
            lambda: left.stats(),
            lambda: images.keyspace,
            lambda: next(iter(Loader(images, Pipeline.resnet50(), 2))),
        ):
            with pytest.raises(tapetum.ClosedError, match="the store was closed: open it again"):
                use()
    assert len(images) == COUNT and images.label(0) == 0


def test_a_loader_is_told_what_files_take(store):
    told = Loader(store.images(), Pipeline("jpeg_decode | resize 8x8"), 4, file_bytes="1MiB")
    assert len(next(iter(told))) == 4
    with pytest.raises(ValueError, match="is not a size"):
        Loader(store.images(), Pipeline("jpeg_decode | resize 8x8"), 4, file_bytes="much")


def test_a_loader_that_is_left_ends(store):
    for _ in range(3):
        steps = iter(loader(store, prefetch=8))
        next(steps)
    del steps
    assert store.keyspace("images").get("cats/00.jpg") is not None


def test_files_that_are_no_pictures_are_told(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "cats").mkdir(parents=True)
    for name in ["cats/a.gif", "cats/b.GIF", "cats/notes", "cats/c.jpg", "beside.jpg"]:
        picture(1).save(folder / name, format="JPEG")
    with tapetum.Store.open(tmp_path / "data", capacity="64MiB", memory="64MiB") as store:
        told = "4 files were left out: 2 .gif, 1 .jpg outside the folders of classes, 1 without an ending; pictures are .jpg, .jpeg, .png or .webp files"
        with pytest.warns(UserWarning, match=told) as warned:
            assert len(store.import_images(folder, keyspace="some")) == 1
        assert warned[0].filename == __file__
        (folder / "cats" / "c.jpg").unlink()
        (folder / "beside.jpg").unlink()
        with pytest.raises(tapetum.Error, match="no .jpg, .jpeg, .png or .webp files in .*, but 2 .gif, 1 without an ending: .* JPEG, PNG or WebP"):
            store.import_images(folder, keyspace="none")


def test_a_class_without_pictures_is_refused_and_links_are_followed(tmp_path):
    folder, elsewhere = tmp_path / "pictures", tmp_path / "elsewhere"
    for path in [folder / "ants", folder / "cats", elsewhere]:
        path.mkdir(parents=True)
    picture(1).save(folder / "ants" / "a.jpg")
    picture(2).save(elsewhere / "d.jpg")
    with tapetum.Store.open(tmp_path / "data", capacity="64MiB", memory="64MiB") as store:
        with pytest.raises(tapetum.Error, match="each folder is a class, and .*/cats has no .jpg, .jpeg, .png or .webp files: put some there"):
            store.import_images(folder)
        picture(3).save(folder / "cats" / "c.gif")
        with pytest.raises(tapetum.Error, match="/cats has no .* files, but 1 .gif: convert them to JPEG, PNG or WebP, or take the folder away"):
            store.import_images(folder)
        assert store.keyspaces() == ["default"]
        picture(3).save(folder / "cats" / "c.jpg")
        (folder / "dogs").symlink_to(elsewhere)
        (folder / "cats" / "round").symlink_to(folder)
        with pytest.warns(UserWarning, match="2 files were left out"):
            images = store.import_images(folder)
        assert images.classes == ["ants", "cats", "dogs"] and images.key(2) == b"dogs/d.jpg"


def test_a_failed_import_names_the_file_and_leaves_nothing(tmp_path):
    folder = tmp_path / "pictures"
    (folder / "cats").mkdir(parents=True)
    (folder / "cats" / "a.jpg").write_bytes(bytes(5 << 20))
    with tapetum.Store.open(tmp_path / "data", capacity="64MiB", memory="64MiB") as store:
        with pytest.raises(tapetum.Error, match=r"cats/a.jpg: the value is larger than \d+ bytes"):
            store.import_images(folder)
        assert store.keyspaces() == ["default"]
        with pytest.raises(ZeroDivisionError):
            picture(1).save(folder / "cats" / "a.jpg")
            store.import_images(folder, progress=lambda files, total, size: 1 / 0)
        assert store.keyspaces() == ["default"]
        # One that was there before stays, with what it has.
        store.keyspace("images", create=True)["key"] = b"value"
        (folder / "cats" / "b.jpg").symlink_to(tmp_path / "none")
        with pytest.raises(tapetum.Error, match="cannot read .*/cats/b.jpg: No such file"):
            store.import_images(folder)
        assert store.keyspace("images")["key"] == b"value"


@pytest.mark.filterwarnings("error")
def test_a_folder_of_jpeg_files_warns_of_nothing(path, folder):
    with tapetum.Store.open(path) as store:
        store.import_images(folder)


def test_without_pictures(store):
    with pytest.raises(tapetum.Error, match=r"the keyspace default has no pictures: store.import_images\(folder, keyspace=.default.\)"):
        store.images("default")
    with pytest.raises(tapetum.PipelineError, match="no batch"):
        Loader(store.images(), Pipeline.resnet50())
