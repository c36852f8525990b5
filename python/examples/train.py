"""Trains a classifier of pictures, from a Tapetum store or from files through a DataLoader, and says what loading cost.

    python python/examples/pictures.py pictures
    python python/examples/train.py pictures --loader tapetum
    python python/examples/train.py pictures --loader torch --workers 2

Both begin with the same weights and show each picture as often. ``--model resnet50 --size 224 --batch 16 --steps 5`` is the training of the
papers, in small. It needs torch and torchvision: the Debian packages python3-torch and python3-torchvision do, or those of PyPI.
"""

import argparse
import statistics
import time
from pathlib import Path

import torch
import torchvision
from torchvision import transforms

MEGABYTE = 1 << 20


def thread_seconds(names, process="self"):
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


class FromTapetum:
    """Pictures of the store, made by its drive's programs on threads of this process."""

    def __init__(self, given):
        import tapetum
        import tapetum.torch

        self.store = tapetum.open(given.data, capacity=given.capacity * MEGABYTE, units=given.units)
        try:
            images = self.store.images()
        except tapetum.Error:
            images = self.store.import_images(given.folder)
        pipeline = tapetum.Pipeline(f"jpeg_decode | random_resized_crop {given.size} | flip | layout chw")
        self.loader = tapetum.torch.Loader(images, pipeline, given.batch, seed=given.seed, threads=max(given.workers, 1))
        self.classes = images.classes

    def worker_seconds(self):
        return thread_seconds(("tapetum", "drive-"))

    def stages(self):
        """Microseconds a picture of each of the drive's programs."""
        stages = self.store.stages()
        return {name: of["unit_us"] / of["tasks"] for name, of in stages.items() if of["tasks"] > 0}

    def close(self):
        self.store.close()


class FromFiles:
    """The same of files, decoded by PIL: what torchvision's users do."""

    def __init__(self, given):
        steps = [transforms.RandomResizedCrop(given.size), transforms.RandomHorizontalFlip(), transforms.PILToTensor()]
        dataset = torchvision.datasets.ImageFolder(given.folder, transforms.Compose(steps))
        self.classes = dataset.classes
        self.loader = torch.utils.data.DataLoader(
            dataset,
            given.batch,
            shuffle=True,
            drop_last=True,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
            worker_init_fn=self.started,
        )
        self.processes = set()

    def started(self, _worker):
        torch.set_num_threads(1)

    def worker_seconds(self):
        workers = getattr(self.loader._iterator, "_workers", [])
        return sum(thread_seconds("", worker.pid) for worker in workers if worker.is_alive())

    def stages(self):
        return {}

    def close(self):
        pass


def endless(loader):
    while True:
        yield from loader


def train(given):
    torch.manual_seed(given.seed)
    source = {"tapetum": FromTapetum, "torch": FromFiles}[given.loader](given)
    model = getattr(torchvision.models, given.model)(num_classes=len(source.classes)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=given.rate, momentum=0.9, weight_decay=1e-4)
    mean, deviation = (torch.tensor(of).view(1, 3, 1, 1) * 255 for of in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    losses, loading, waiting, worker_seconds, began = [], 0.0, 0.0, 0.0, time.perf_counter()
    batches = endless(source.loader)
    for step in range(given.steps):
        # Loading: this thread's time in the loader, and that of the loader's threads or processes.
        cpu, wall = time.thread_time(), time.perf_counter()
        pictures, labels = next(batches)
        loading += time.thread_time() - cpu
        waiting += time.perf_counter() - wall
        loss = torch.nn.functional.cross_entropy(model((pictures.float() - mean) / deviation), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        worker_seconds = max(worker_seconds, source.worker_seconds())
        if step % given.print_every == 0 or step == given.steps - 1:
            print(f"step {step:4}  loss {statistics.mean(losses[-given.print_every :]):.3f}", flush=True)
    wall = time.perf_counter() - began
    pictures = given.steps * given.batch
    cpu = loading + worker_seconds
    print(
        f"{given.loader}: {pictures} pictures in {wall:.1f} s, of which {waiting:.2f} s waited for a batch; "
        f"loading took {cpu:.2f} s of CPU time, {cpu / pictures * 1e6:.0f} µs a picture"
    )
    stages = ", ".join(f"{name} {of:.0f}" for name, of in source.stages().items())
    if stages:
        print(f"by stage, µs a picture: {stages}")
    source.close()
    return losses


def main():
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="pictures, in a folder for each class")
    options.add_argument("--loader", choices=["tapetum", "torch"], default="tapetum")
    options.add_argument("--data", type=Path, default=Path("tapetum-data"), help="where the store lies")
    options.add_argument("--capacity", type=int, default=1024, help="MiB of flash that a new store takes")
    options.add_argument("--model", default="resnet18", help="a name in torchvision.models")
    options.add_argument("--size", type=int, default=64, help="pixels a side")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--rate", type=float, default=0.02, help="the learning rate")
    options.add_argument("--workers", type=int, default=0, help="threads of Tapetum's loader, processes of torch's; 0: one thread, none")
    options.add_argument("--units", type=int, default=0, help="threads of Tapetum's drive")
    options.add_argument("--threads", type=int, default=0, help="threads of torch; 0: as it wants")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--print-every", type=int, default=20)
    given = options.parse_args()
    if given.threads > 0:
        torch.set_num_threads(given.threads)
    losses = train(given)
    few = max(min(20, given.steps // 4), 1)
    first, last = statistics.mean(losses[:few]), statistics.mean(losses[-few:])
    print(f"loss: {first:.3f} in the first {few} steps, {last:.3f} in the last")


if __name__ == "__main__":
    main()
