# SPDX-License-Identifier: Apache-2.0
"""Do photographs that do not fit memory arrive as fast as ones that fit?

Decides whether decoded photographs are kept in a file, and how the file is read. The feed delivers
epochs of shuffled photographs to the device, or to a buffer of the host where there is none: with
all of them in memory; with memory for a share of them and the file of raw pixels for the rest; and
with memory for the same share and decoding again whatever is not there. The first epoch of each
mode, in which all photographs are decoded, is a line of its own. The ceiling of the second mode is
the disk, measured here by reads of whole photographs and nothing else, divided by the share of
photographs that memory does not have when they are needed.

With ``--train`` the trainer itself runs on the same photographs, each mode a run, and a sample is
an epoch after the first. The rate that counts there is that of photographs in memory.

    PYTHONPATH=benchmarks python benchmarks/train/bench_photographs.py --json photographs.json
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import gs_train
from gs_order import ViewSampler
from gs_train.data import Capture, KeptPhotographs, PhotoReader, capture_from_arrays, read_image
from gs_train.data.pixel_file import PixelFile
from gs_train.data.pixels import decode_rgb
from gs_train.runs.feed import ImageFeed
from gs_train.sizing.photographs import decoded_bytes, training_sizes
from harness import Record, add_json_option

MODES = ("memory", "file", "decoding")
THREADS = (1, 2, 4)
_N_BASES = 8


class Stored:
    """JPEG files, each decoded whenever it is asked for."""

    def __init__(self, files: list[Path]) -> None:
        self._files = files

    def __len__(self) -> int:
        return len(self._files)

    def __getitem__(self, index: int) -> np.ndarray:
        return decode_rgb(self._files[index])


def write_photographs(folder: Path, n: int, size: tuple[int, int]) -> list[Path]:
    """Smooth pictures with fine noise, so that a JPEG takes as long to decode as a photograph."""
    width, height = size
    rng = np.random.default_rng(0)
    bases = []
    for _ in range(_N_BASES):
        coarse = Image.fromarray(rng.integers(0, 256, (18, 32, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.int16)
        noise = rng.normal(0, 8, (height, width, 1))
        bases.append(np.clip(smooth + noise, 0, 255).astype(np.uint8))

    def write(index: int) -> Path:
        path = folder / f"{index:05}.jpg"
        picture = np.roll(bases[index % _N_BASES], 8 * (index // _N_BASES), axis=0)
        Image.fromarray(picture).save(path, quality=92)
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(write, range(n)))


def capture_of(files: list[Path], size: tuple[int, int], n_points: int) -> Capture:
    """Cameras on a circle around a ball of points."""
    width, height = size
    n = len(files)
    poses = np.zeros((n, 4, 4))
    poses[:, 3, 3] = 1
    for pose, angle in zip(poses, np.linspace(0, 2 * np.pi, n, endpoint=False)):
        outward = np.array([np.cos(angle), np.sin(angle), 0])
        down = np.array([0, 0, -1])
        pose[:3, :3] = np.stack([np.cross(down, -outward), down, -outward])
        pose[:3, 3] = 0, 0, 4
    K = np.array([[width, 0, width / 2], [0, width, height / 2], [0, 0, 1.0]])
    points = np.random.default_rng(1).normal(0, 0.5, (n_points, 3))
    return capture_from_arrays(
        Stored(files), poses, K, points=points, sizes=[size] * n, test_every=0
    )  # fmt: skip


# ---------------------------------------------------------------------------- the feed alone


class Epochs:
    """One mode's feed, an epoch at a time.

    Args:
        scratch: folder for the file; None: photographs are decoded each time.
    """

    def __init__(
        self, capture: Capture, n_epochs: int, cache_bytes: int, scratch: Path | None, device: Any
    ) -> None:
        self._n = len(capture.train)
        self._device = device
        self._open = contextlib.ExitStack()
        file = None
        if scratch is not None:
            file = self._open.enter_context(PixelFile(scratch, training_sizes(capture)))
        kept = KeptPhotographs(PhotoReader(capture), file)
        sampler = ViewSampler(self._n, 1, seed=0, n_steps=n_epochs * self._n)
        views = [capture.views[index] for index in capture.train]
        largest = max(3 * view.width * view.height for view in views)
        self._buffer = np.empty(largest, np.uint8)
        self._feed = self._open.enter_context(
            ImageFeed(
                (capture.train[batch[0]] for batch in sampler),
                kept.load,
                shown=kept.shown,
                device=device,
                cache_bytes=cache_bytes,
                largest_bytes=largest,
            )
        )

    def run(self, check: Callable[[int, torch.Tensor], None] | None = None) -> float:
        """Images a second."""
        started = time.perf_counter()
        for _ in range(self._n):
            index, image = self._feed.next()
            if self._device.type == "cpu":
                self._buffer[: image.numel()] = image.view(-1).numpy()
            if check is not None:
                check(index, image)
        if self._device.type == "cuda":
            torch.cuda.synchronize()
        return self._n / (time.perf_counter() - started)

    def close(self) -> None:
        self._open.close()


def feed_rates(
    capture: Capture, n_epochs: int, share: float, scratch: Path, device: torch.device
) -> tuple[dict[str, float], dict[str, list[float]]]:
    """Images a second of the first epoch, and of each later one, by mode."""
    total = decoded_bytes(capture)
    part = max(1, int(share * total))
    settings = {"memory": (total, None), "file": (part, scratch), "decoding": (part, None)}
    first, later = {}, {mode: [] for mode in MODES}
    for mode, (cache, folder) in settings.items():  # one by one, or they would share the memory
        epochs = Epochs(capture, n_epochs + 1, cache, folder, device)
        try:
            first[mode] = epochs.run()
            later[mode] = [epochs.run() for _ in range(n_epochs)]
        finally:
            epochs.close()
    return first, later


def check_pixels(capture: Capture, share: float, scratch: Path, device: torch.device) -> None:
    """Two epochs with a file give what decoding gives, bit for bit."""

    def check(index: int, image: torch.Tensor) -> None:
        assert torch.equal(image.cpu(), torch.from_numpy(read_image(capture.views[index])))

    some = dataclasses.replace(capture, train=capture.train[:16])
    cache = max(1, int(share * decoded_bytes(some)))
    epochs = Epochs(some, 2, cache, scratch, device)
    try:
        for _ in range(2):
            epochs.run(check)
    finally:
        epochs.close()


def disk_rates(capture: Capture, scratch: Path) -> dict[int, float]:
    """Photographs a second that the disk gives, and nothing else, by threads."""
    sizes = training_sizes(capture)
    _, (height, width) = next(iter(sizes.items()))
    pixels = np.zeros((height, width, 3), np.uint8)
    rates = {}
    with PixelFile(scratch, sizes) as file:
        for index in sizes:
            file.write(index, pixels)
        for n_threads in THREADS:
            with ThreadPoolExecutor(n_threads) as pool:
                started = time.perf_counter()
                list(pool.map(lambda index: file.read(index).shape, sizes))
                rates[n_threads] = len(sizes) / (time.perf_counter() - started)
    return rates


# ---------------------------------------------------------------------------- the trainer


def train_rates(
    capture: Capture, options: argparse.Namespace, scratch: Path
) -> dict[str, list[float]]:
    """Images a second of each epoch after the first, by mode."""
    rates = {}
    total = decoded_bytes(capture)
    n_steps = len(capture.train) // options.batch
    for mode in MODES:
        ends: list[float] = []

        def on_step(report: gs_train.StepReport, ends: list[float] = ends) -> None:
            if report.step % n_steps == 0:
                float(report.loss)  # waits for the device
                ends.append(time.perf_counter())

        cache = total if mode == "memory" else max(1, int(options.share * total))
        # A capture whose photographs are in memory gets no file: each is asked for again.
        shown = dataclasses.replace(capture, in_memory=mode == "decoding")
        with tempfile.TemporaryDirectory() as out, contextlib.redirect_stderr(io.StringIO()):
            gs_train.fit(
                capture=shown,
                out=Path(out) / "run",
                on_step=on_step,
                steps=(options.epochs + 1) * n_steps,
                batch_size=options.batch,
                cap=options.gaussians,
                image_cache=str(cache),
                scratch=scratch,
                checkpoint_every=0,
            )
        spans = np.diff(ends)
        rates[mode] = [n_steps * options.batch / seconds for seconds in spans]
    return rates


# ---------------------------------------------------------------------------- tables


def table(title: str, rates: dict[str, list[float]]) -> None:
    print(f"{title:<24} images/s   spread   of memory")
    whole = statistics.median(rates["memory"])
    for mode, samples in rates.items():
        median = statistics.median(samples)
        spread = (max(samples) - min(samples)) / median
        print(f"{mode:<24} {median:8.1f} {spread:8.1%} {median / whole:11.2f}")


def lines(record: Record, name: str, rates: dict[str, list[float]], axes: Any) -> None:
    for mode, samples in rates.items():
        record.add(f"{name}, {mode}", samples, "images/s", axes=axes)


@contextlib.contextmanager
def places(folder: Path | None) -> Iterator[tuple[Path, Path]]:
    """Folders for the photographs and for the file."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        yield Path(made), Path(made)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--photographs", type=int, default=2000)
    parser.add_argument("--size", type=int, nargs=2, default=(1920, 1080))
    parser.add_argument("--share", type=float, default=0.25, help="of the photographs, in memory")
    parser.add_argument("--epochs", type=int, default=3, help="that are timed, after the first")
    parser.add_argument("--scratch", type=Path, help="folder on the disk in question")
    parser.add_argument("--train", action="store_true", help="run the trainer, too")
    parser.add_argument("--gaussians", type=int, default=100_000, help="of the trainer")
    parser.add_argument("--batch", type=int, default=1, help="of the trainer")
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    size = (options.size[0], options.size[1])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    axes = {"photographs": options.photographs, "size": list(size), "share": options.share}
    with places(options.scratch) as (folder, scratch):
        files = write_photographs(folder, options.photographs, size)
        capture = capture_of(files, size, options.gaussians)
        check_pixels(capture, options.share, scratch, device)
        gb = decoded_bytes(capture) / len(capture.train) / 1e9
        for n, rate in disk_rates(capture, scratch).items():
            print(f"the disk alone, {n} threads: {rate:.1f} images/s, {rate * gb:.2f} GB/s")
            record.add("disk", [rate], "images/s", axes={**axes, "threads": n})
        first, later = feed_rates(capture, options.epochs, options.share, scratch, device)
        table("the feed, first epoch", {mode: [rate] for mode, rate in first.items()})
        table("the feed", later)
        lines(record, "feed, first epoch", {mode: [rate] for mode, rate in first.items()}, axes)
        lines(record, "feed", later, axes)
        record.write()
        if options.train:
            rates = train_rates(capture, options, scratch)
            table("the trainer", rates)
            of_run = {"batch": options.batch, "gaussians": options.gaussians}
            lines(record, "trainer", rates, {**axes, **of_run})
            record.write()


if __name__ == "__main__":
    main()
