"""Trains a classifier of pictures, from a Tapetum store or from files through a DataLoader, and says what loading cost.

    python python/examples/pictures.py pictures
    python python/examples/train.py pictures --loader tapetum
    python python/examples/train.py pictures --loader torch --workers 2

Both begin with the same weights and show each picture as often. ``--model resnet50 --size 224 --batch 16 --steps 5`` is the training of the
papers, in small; on a GPU it is ``--model resnet50 --size 224 --batch 64 --device cuda --half``. It needs torch and torchvision: the Debian
packages python3-torch and python3-torchvision do, or those of PyPI.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torchvision
from torchvision import transforms

MEGABYTE = 1 << 20


#: Threads of Tapetum that stand for a device: of the drive, of its compute units, and what moves bytes for these.
DRIVE = ("drive-", "tapetum-unit", "tapetum-mover")


class ThreadSeconds:
    """CPU time of the threads of processes whose names begin so, those included that have ended since they were looked at."""

    def __init__(self, names: str | tuple[str, ...]) -> None:
        self.names = names
        self.is_ours: dict[Path, bool] = {}
        self.taken: dict[Path, float] = {}

    def look(self, process: int | str = "self") -> None:
        for task in Path(f"/proc/{process}/task").iterdir():
            try:
                if task not in self.is_ours:
                    self.is_ours[task] = (task / "comm").read_text().startswith(self.names)
                if self.is_ours[task]:
                    self.taken[task] = int((task / "schedstat").read_text().split()[0]) / 1e9
            except (FileNotFoundError, ProcessLookupError):
                # It ended meanwhile.
                pass

    def seconds(self) -> float:
        return sum(self.taken.values())


class FromTapetum:
    """Pictures of the store, made by its drive's programs on threads of this process."""

    def __init__(self, given: argparse.Namespace) -> None:
        import tapetum
        import tapetum.torch

        self.store = tapetum.open(given.data, capacity=given.capacity * MEGABYTE, units=given.units)
        try:
            images = self.store.images()
        except tapetum.Error:
            images = self.store.import_images(given.folder)
        pipeline = f"jpeg_decode | random_resized_crop {given.size} | flip | layout chw"
        options: dict[str, Any] = {"shuffle": True, "drop_last": True, "seed": given.seed}
        options |= {"threads": max(given.workers, 1), "pin_memory": given.device == "cuda"}
        self.loader = tapetum.torch.Loader(images, pipeline, given.batch, **options)
        self.classes, self.picture_bytes = images.classes, 3 * given.size**2
        self.host, self.drive = ThreadSeconds("tapetum-loader"), ThreadSeconds(DRIVE)

    def look(self) -> None:
        self.host.look()
        self.drive.look()

    def seconds(self) -> tuple[float, float]:
        return self.host.seconds(), self.drive.seconds()

    def stages(self) -> dict[str, float]:
        """Microseconds a picture of each of the drive's programs."""
        stages = {name: of for name, of in self.store.stages().items() if of["tasks"] > 0}
        pictures = stages["batch"]["bytes_out"] / self.picture_bytes
        return {name: of["unit_us"] / pictures for name, of in stages.items()}

    def close(self) -> None:
        self.store.close()


class FromFiles:
    """The same of files through a DataLoader, decoded by PIL as most do, or by torchvision."""

    def __init__(self, given: argparse.Namespace) -> None:
        steps = [transforms.RandomResizedCrop(given.size), transforms.RandomHorizontalFlip()]
        if given.loader == "torch":
            dataset = torchvision.datasets.ImageFolder(given.folder, transforms.Compose([*steps, transforms.PILToTensor()]))
        else:
            dataset = torchvision.datasets.ImageFolder(given.folder, transforms.Compose(steps), loader=self.read)
        self.classes = dataset.classes
        self.loader = torch.utils.data.DataLoader(
            dataset,
            given.batch,
            shuffle=True,
            drop_last=True,
            num_workers=given.workers,
            persistent_workers=given.workers > 0,
            worker_init_fn=self.started,
            pin_memory=given.device == "cuda",
        )
        self.host = ThreadSeconds("")

    @staticmethod
    def read(file: str) -> torch.Tensor:
        return torchvision.io.decode_jpeg(torchvision.io.read_file(file), torchvision.io.ImageReadMode.RGB)

    @staticmethod
    def started(_worker: int) -> None:
        torch.set_num_threads(1)

    def look(self) -> None:
        for worker in getattr(self.loader._iterator, "_workers", []):
            if worker.is_alive():
                self.host.look(worker.pid)

    def seconds(self) -> tuple[float, float]:
        return self.host.seconds(), 0.0

    def stages(self) -> dict[str, float]:
        return {}

    def close(self) -> None:
        pass


@contextlib.contextmanager
def held_to(core: int | None) -> Iterator[None]:
    """Threads and processes that are started within are held to this core."""
    before = os.sched_getaffinity(0)
    if core is not None:
        os.sched_setaffinity(0, {core})
    yield
    os.sched_setaffinity(0, before)


def endless(source: FromTapetum | FromFiles, core: int | None) -> Iterator[Any]:
    while True:
        # What loads is started with the first batch of a pass, and threads of the one before end then.
        source.look()
        with held_to(core):
            batches = iter(source.loader)
            batch = next(batches)
        yield batch
        yield from batches


class Trainer:
    """A model and what a step does with a batch."""

    def __init__(self, given: argparse.Namespace, classes: int) -> None:
        torch.manual_seed(given.seed)
        self.device, self.is_half = torch.device(given.device), given.half
        memory = torch.channels_last if given.half else torch.contiguous_format
        self.model = getattr(torchvision.models, given.model)(num_classes=classes).train().to(self.device, memory_format=memory)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=given.rate, momentum=0.9, weight_decay=1e-4)
        of_channels = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
        self.mean, self.deviation = (torch.tensor(of, device=self.device).view(1, 3, 1, 1) * 255 for of in of_channels)
        self.memory = memory

    def step(self, pictures: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        pictures, labels = (tensor.to(self.device, non_blocking=True) for tensor in (pictures, labels))
        normal = ((pictures.float() - self.mean) / self.deviation).contiguous(memory_format=self.memory)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_half):
            loss = torch.nn.functional.cross_entropy(self.model(normal), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def finish(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Meter:
    """Wall and CPU time from ``begin`` on. Loading is this thread's time in the loader, and that of the loader's threads or processes."""

    def __init__(self, source: FromTapetum | FromFiles) -> None:
        self.source = source
        self.begin()

    def begin(self) -> None:
        self.source.look()
        self.steps, self.called, self.waited = 0, 0.0, 0.0
        self.began, self.process, self.seconds = time.perf_counter(), time.process_time(), self.source.seconds()

    def next(self, batches: Iterator[Any]) -> Any:
        cpu, wall = time.thread_time(), time.perf_counter()
        batch = next(batches)
        self.called += time.thread_time() - cpu
        self.waited += time.perf_counter() - wall
        self.steps += 1
        return batch

    def end(self, batch: int) -> dict[str, Any]:
        """Figures of all steps, as JSON has them."""
        self.source.look()
        wall, process = time.perf_counter() - self.began, time.process_time() - self.process
        host, drive = (now - before for now, before in zip(self.source.seconds(), self.seconds))
        # Workers are processes of their own.
        workers = host if isinstance(self.source, FromFiles) else 0.0
        return {
            "pictures": self.steps * batch,
            "wall_s": wall,
            "waited_s": self.waited,
            "host_cpu_s": self.called + host,
            "drive_cpu_s": drive,
            "all_cpu_s": process + workers,
        }


def train(given: argparse.Namespace) -> tuple[list[float], dict[str, Any]]:
    torch.manual_seed(given.seed)
    source: FromTapetum | FromFiles = FromTapetum(given) if given.loader == "tapetum" else FromFiles(given)
    trainer = Trainer(given, len(source.classes))
    losses: list[torch.Tensor] = []
    batches, meter = endless(source, given.loading_core), Meter(source)
    for step in range(given.steps):
        if step == given.warm_up:
            trainer.finish()
            meter.begin()
        pictures, labels = meter.next(batches)
        losses.append(trainer.step(pictures, labels))
        if step % given.print_every == 0 or step == given.steps - 1:
            print(f"step {step:4}  loss {statistics.mean(loss.item() for loss in losses[-given.print_every :]):.3f}", flush=True)
    trainer.finish()
    took = meter.end(given.batch)
    took["stages_us"] = source.stages()
    source.close()
    return [loss.item() for loss in losses], took


def told(given: argparse.Namespace, took: dict[str, Any]) -> Iterator[str]:
    pictures, cpu = took["pictures"], took["host_cpu_s"] + took["drive_cpu_s"]
    yield (
        f"{given.loader}: {pictures} pictures in {took['wall_s']:.1f} s, of which {took['waited_s']:.2f} s waited for a batch; "
        f"loading took {cpu:.2f} s of CPU time, {cpu / pictures * 1e6:.0f} µs a picture"
    )
    if took["drive_cpu_s"] > 0:
        yield f"of that the drive's threads took {took['drive_cpu_s']:.2f} s, the host {took['host_cpu_s']:.2f} s"
    stages = ", ".join(f"{name} {of:.0f}" for name, of in took["stages_us"].items())
    if stages:
        yield f"by stage, µs a picture: {stages}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("folder", type=Path, help="pictures, in a folder for each class")
    options.add_argument("--loader", choices=["tapetum", "torch", "torchvision"], default="tapetum", help="torchvision: its decoder in place of PIL")
    options.add_argument("--data", type=Path, default=Path("tapetum-data"), help="where the store lies")
    options.add_argument("--capacity", type=int, default=1024, help="MiB of flash that a new store takes")
    options.add_argument("--model", default="resnet18", help="a name in torchvision.models")
    options.add_argument("--size", type=int, default=64, help="pixels a side")
    options.add_argument("--batch", type=int, default=32)
    options.add_argument("--steps", type=int, default=200)
    options.add_argument("--rate", type=float, default=0.02, help="the learning rate")
    options.add_argument("--workers", type=int, default=0, help="threads of Tapetum's loader, processes of torch's; 0: one thread, none")
    options.add_argument("--units", type=int, default=0, help="threads of Tapetum's drive")
    options.add_argument("--loading-core", type=int, metavar="CORE", help="threads and processes that load are held to it, but not the drive's units")
    options.add_argument("--device", default="cpu", help="cuda: train on a GPU")
    options.add_argument("--half", action="store_true", help="bfloat16 where that serves, and channels last in memory")
    options.add_argument("--warm-up", type=int, default=0, help="steps at the beginning whose time does not count")
    options.add_argument("--report", type=Path, metavar="FILE", help="figures and losses as JSON")
    options.add_argument("--threads", type=int, default=0, help="threads of torch; 0: as it wants")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--print-every", type=int, default=20)
    given = options.parse_args()
    if given.threads > 0:
        torch.set_num_threads(given.threads)
    if not 0 <= given.warm_up < given.steps:
        options.error("--warm-up leaves no steps to measure")
    losses, took = train(given)
    print("\n".join(told(given, took)))
    few = max(min(20, given.steps // 4), 1)
    first, last = statistics.mean(losses[:few]), statistics.mean(losses[-few:])
    print(f"loss: {first:.3f} in the first {few} steps, {last:.3f} in the last")
    if given.report:
        given.report.write_text(json.dumps({**took, "loss_first": first, "loss_last": last}))


if __name__ == "__main__":
    main()
