"""One contender of ``images.py``, as a process: it loads an epoch when it is told to, and says what that took.

A line of JSON in, one out. All draw the same crops, and give batches of uint8 pictures unless their names end in "float". Each is held to one
thread for its work, in a process that ``images.py`` pins to one core.
"""

import json
import os
import sys
import time
from pathlib import Path

import crops

#: ImageNet's, as everybody normalises with.
MEAN, DEVIATION = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Work:
    """What is loaded: files, their size, and what becomes of them."""

    def __init__(self, given):
        self.files = [Path(file) for file in given["files"]]
        self.size, self.out, self.batch, self.seed = tuple(given["size"]), given["out"], given["batch"], given["seed"]
        self.store, self.pipeline, self.units = given["store"], given["pipeline"], given["units"]
        self.workers = given["workers"]
        self.boxes, self.flips = [], []

    def draw(self, epoch):
        self.boxes, self.flips = crops.drawn(self.size, self.seed, epoch, len(self.files))


def tapetum_loader(work, more=""):
    import tapetum

    # As the ranks of a training open it: several beside each other.
    store = tapetum.open(work.store, units=work.units, read_only=True)
    pipeline, options = tapetum.Pipeline(work.pipeline + more), {"shuffle": False, "seed": work.seed, "drop_last": False}
    loader = tapetum.Loader(store.images(), pipeline, work.batch, **options)

    def load(epoch):
        loader.set_epoch(epoch)
        for batch in loader:
            yield batch.images

    load.stages = store.stages
    return load


def bare_loop(work):
    """The decoder and what follows it, called in a loop over files in memory: no store, no batch."""
    import tapetum

    pipeline = tapetum.Pipeline(work.pipeline)
    contents = [file.read_bytes() for file in work.files]

    def load(epoch):
        for start in range(0, len(contents), work.batch):
            items = enumerate(contents[start : start + work.batch], start)
            yield [tapetum.apply(pipeline, content, seed=work.seed, epoch=epoch, item=item) for item, content in items]

    return load


def of_torch(work, read):
    """A DataLoader over ``read(item)``. With no workers there is nothing that sends pictures from process to process."""
    import torch

    torch.set_num_threads(1)

    class Files(torch.utils.data.Dataset):
        def __len__(self):
            return len(work.files)

        def __getitem__(self, item):
            return read(item)

    def load(_epoch):
        options = {"num_workers": work.workers, "worker_init_fn": lambda _: torch.set_num_threads(1)}
        yield from torch.utils.data.DataLoader(Files(), work.batch, **options)

    return load


def pil(work, finish):
    from PIL import Image

    out = (work.out, work.out)

    def read(item):
        left, top, width, height = work.boxes[item]
        with Image.open(work.files[item]) as image:
            cut = image.convert("RGB").crop((left, top, left + width, top + height))
        cut = cut.resize(out, Image.BILINEAR)
        if work.flips[item]:
            cut = cut.transpose(Image.FLIP_LEFT_RIGHT)
        return finish(cut)

    return of_torch(work, read)


def pil_u8(work):
    from torchvision import transforms

    return pil(work, transforms.PILToTensor())


def pil_float(work):
    from torchvision import transforms

    return pil(work, transforms.Compose([transforms.ToTensor(), transforms.Normalize(MEAN, DEVIATION)]))


def torchvision_old(work, is_float):
    """The functions of torchvision before its v2, as Debian has it."""
    import torch
    import torchvision
    from torchvision.transforms import functional

    out = [work.out, work.out]

    def read(item):
        left, top, width, height = work.boxes[item]
        image = torchvision.io.decode_jpeg(torchvision.io.read_file(str(work.files[item])), torchvision.io.ImageReadMode.RGB)
        image = functional.resized_crop(image, top, left, height, width, out, antialias=True)
        if is_float:
            image = functional.normalize(functional.convert_image_dtype(image, torch.float32), MEAN, DEVIATION)
        return functional.hflip(image) if work.flips[item] else image

    return of_torch(work, read)


def torchvision_v2(work, is_float):
    import torch
    import torchvision
    from torchvision.transforms.v2 import functional

    out = [work.out, work.out]

    def read(item):
        left, top, width, height = work.boxes[item]
        image = torchvision.io.decode_jpeg(torchvision.io.read_file(str(work.files[item])), torchvision.io.ImageReadMode.RGB)
        if is_float:
            image = functional.to_dtype(functional.crop(image, top, left, height, width), torch.float32, scale=True)
            image = functional.normalize(functional.resize(image, out, antialias=True), MEAN, DEVIATION)
        else:
            image = functional.resized_crop(image, top, left, height, width, out, antialias=True)
        return functional.horizontal_flip(image) if work.flips[item] else image

    return of_torch(work, read)


def simplejpeg_cv(work):
    """The decoder alone in C, with its scaling where the pictures are large, and OpenCV; without a DataLoader."""
    import cv2
    import numpy
    import simplejpeg

    cv2.setNumThreads(1)
    is_scaled = "scaled" in work.pipeline

    def read(item):
        left, top, width, height = work.boxes[item]
        content, scale = work.files[item].read_bytes(), 1
        if is_scaled:
            scale = next((scale for scale in (8, 4, 2) if width // scale >= work.out and height // scale >= work.out), 1)
        least = {"min_width": work.size[0] // scale, "min_height": work.size[1] // scale} if scale > 1 else {}
        image = simplejpeg.decode_jpeg(content, colorspace="RGB", **least)
        cut = image[top // scale : -(-(top + height) // scale), left // scale : -(-(left + width) // scale)]
        shrinks = cut.shape[0] > work.out and cut.shape[1] > work.out
        cut = cv2.resize(cut, (work.out, work.out), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)
        return cut[:, ::-1] if work.flips[item] else cut

    def load(_epoch):
        for start in range(0, len(work.files), work.batch):
            yield numpy.stack([read(item) for item in range(start, min(start + work.batch, len(work.files)))])

    return load


def spdl_ffmpeg(work):
    """SPDL: FFmpeg's decoder, with its scaling where the pictures are large, and FFmpeg's filters; a batch is one buffer. Without threads."""
    import spdl.io

    is_scaled = "scaled" in work.pipeline
    # By the halvings of its scaling.
    decoders = [spdl.io.decode_config(decoder_options={"threads": "1", "lowres": str(halvings)}) for halvings in range(4)]

    def read(item):
        left, top, width, height = work.boxes[item]
        halvings = 0
        while is_scaled and halvings < 3 and min(width, height) >> halvings + 1 >= work.out:
            halvings += 1
        cut = ":".join(str(side >> halvings) for side in (width, height, left, top))
        flip = "hflip," if work.flips[item] else ""
        filters = f"crop={cut}:exact=1,scale={work.out}:{work.out}:flags=bilinear,{flip}format=pix_fmts=rgb24"
        return spdl.io.decode_packets(spdl.io.demux_image(str(work.files[item])), decode_config=decoders[halvings], filter_desc=filters)

    def load(_epoch):
        for start in range(0, len(work.files), work.batch):
            frames = [read(item) for item in range(start, min(start + work.batch, len(work.files)))]
            yield spdl.io.to_numpy(spdl.io.convert_frames(frames))

    return load


def dali(work):
    import numpy
    from nvidia.dali import fn, pipeline_def, types

    @pipeline_def(batch_size=work.batch, num_threads=1, device_id=None)
    def composed():
        anchor = fn.external_source(lambda info: places(info, 0), batch=False, dtype=types.FLOAT)
        shape = fn.external_source(lambda info: places(info, 2), batch=False, dtype=types.FLOAT)
        flipped = fn.external_source(lambda info: numpy.int32(work.flips[at(info)]), batch=False, dtype=types.INT32)
        content, _ = fn.readers.file(files=[str(file) for file in work.files], random_shuffle=False)
        image = fn.decoders.image_slice(content, anchor, shape, axes=[1, 0], normalized_anchor=False, normalized_shape=False)
        image = fn.resize(image, size=[work.out, work.out], interp_type=types.INTERP_TRIANGULAR)
        return fn.flip(image, horizontal=flipped)

    def at(info):
        return info.idx_in_epoch % len(work.files)

    def places(info, first):
        return numpy.array(work.boxes[at(info)][first : first + 2], dtype=numpy.float32)

    def load(_epoch):
        # Built anew, as it draws its inputs ahead of the batches.
        built = composed(prefetch_queue_depth=1)
        built.build()
        for _ in range(-(-len(work.files) // work.batch)):
            yield built.run()[0].as_array()

    return load


def tensorflow(work):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)

    def one(file, box, flipped):
        image = tf.io.decode_and_crop_jpeg(tf.io.read_file(file), tf.stack([box[1], box[0], box[3], box[2]]), channels=3)
        image = tf.image.resize(image, [work.out, work.out], antialias=True)
        image = tf.cast(tf.clip_by_value(tf.round(image), 0, 255), tf.uint8)
        return tf.cond(flipped, lambda: tf.reverse(image, [1]), lambda: image)

    def load(_epoch):
        items = ([str(file) for file in work.files], work.boxes, work.flips)
        for batch in tf.data.Dataset.from_tensor_slices(items).map(one).batch(work.batch):
            yield batch.numpy()

    return load


CONTENDERS = {
    "tapetum": tapetum_loader,
    "tapetum-chw": lambda work: tapetum_loader(work, " | layout chw"),
    "bare": bare_loop,
    "pil": pil_u8,
    "pil-float": pil_float,
    "torchvision-debian": lambda work: torchvision_old(work, False),
    "torchvision-debian-float": lambda work: torchvision_old(work, True),
    "v2-float": lambda work: torchvision_v2(work, True),
    "v2-u8": lambda work: torchvision_v2(work, False),
    "simplejpeg": simplejpeg_cv,
    "spdl": spdl_ffmpeg,
    "dali": dali,
    "tensorflow": tensorflow,
}


#: Threads that stand for a device: of the drive, of its compute units, and what moves bytes for these.
DRIVE = ("drive-", "tapetum-unit", "tapetum-mover")


def thread_seconds(process, names):
    """CPU time of the threads of a process whose names begin so."""
    seconds = 0.0
    for task in Path(f"/proc/{process}/task").iterdir():
        try:
            if (task / "comm").read_text().startswith(names):
                seconds += int((task / "schedstat").read_text().split()[0]) / 1e9
        except (FileNotFoundError, ProcessLookupError):
            # It ended meanwhile.
            pass
    return seconds


def children():
    tasks = Path("/proc/self/task").iterdir()
    return [int(pid) for task in tasks for pid in (task / "children").read_text().split()]


def all_seconds():
    """CPU time of this process and those that it started, with threads and processes that have ended."""
    ended = os.times()
    return time.process_time() + sum(thread_seconds(child, "") for child in children()) + ended[2] + ended[3]


def turn(load, work, asked):
    """One epoch; with a rate, as a trainer takes batches that is busy with each for a while."""
    epoch, rate = asked["epoch"], asked.get("rate")
    work.draw(epoch)
    began, cpu, drive = time.perf_counter(), all_seconds(), thread_seconds("self", DRIVE)
    free, waited, pictures, shown = began, 0.0, 0, None
    batches = iter(load(epoch))
    while True:
        asked_at = time.perf_counter()
        batch = next(batches, None)
        waited += time.perf_counter() - asked_at
        if batch is None:
            break
        pictures += len(batch)
        if pictures <= work.batch and asked.get("show"):
            shown = show(batch, asked["show"])
        if rate:
            free = max(free, time.perf_counter()) + len(batch) / rate
            time.sleep(max(free - time.perf_counter(), 0.0))
    wall = time.perf_counter() - began
    # Its worker ends with it.
    del batches
    cpu, drive = all_seconds() - cpu, thread_seconds("self", DRIVE) - drive
    return {
        "pictures": pictures,
        "wall": wall,
        "cpu": cpu,
        "host": cpu - drive,
        "drive": drive,
        "waited": waited,
        "shown": shown,
        "stages": load.stages() if hasattr(load, "stages") else None,
    }


def show(batch, file):
    """Leaves the first pictures for a comparison, as numpy has them, rows of pixels of bytes."""
    import numpy

    pictures = []
    for picture in list(batch)[:8]:
        picture = numpy.asarray(picture)
        planes = picture if picture.shape[0] == 3 else picture.transpose(2, 0, 1)
        if planes.dtype != numpy.uint8:
            mean, deviation = (numpy.array(of).reshape(3, 1, 1) for of in (MEAN, DEVIATION))
            planes = numpy.clip(numpy.rint((planes * deviation + mean) * 255), 0, 255)
        pictures.append(planes.astype("uint8"))
    numpy.save(file, numpy.stack(pictures))
    return file


def main():
    name, given = sys.argv[1], json.loads(Path(sys.argv[2]).read_text())
    # What libraries print is not an answer.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    work = Work(given)
    try:
        load = CONTENDERS[name](work)
    except (ImportError, RuntimeError) as error:
        # SPDL raises the latter where it finds no FFmpeg.
        print(json.dumps({"missing": str(error)}), file=answers)
        return
    print(json.dumps({"ready": True}), file=answers)
    for line in sys.stdin:
        print(json.dumps(turn(load, work, json.loads(line))), file=answers)


if __name__ == "__main__":
    main()
