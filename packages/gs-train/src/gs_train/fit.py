# SPDX-License-Identifier: Apache-2.0
"""``gs-train fit``: from a folder of photographs to a trained, scored and written model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from gs_order import ViewSampler
from gs_train.checkpoint import save_checkpoint
from gs_train.config import FitConfig
from gs_train.data import read_image
from gs_train.evaluate import report
from gs_train.feed import ImageFeed
from gs_train.interrupt import Interrupted, StopRequest
from gs_train.logs import RunLog
from gs_train.lpips import load_lpips
from gs_train.ply import write_ply
from gs_train.progress import Progress
from gs_train.run import Run, Spent, checkpoint_state, open_capture, renderer_for
from gs_train.run_folder import RunFolder
from gs_train.scene import Scene
from gs_train.sizes import parse_bytes
from gs_train.trainer import Trainer

_LOG_EVERY = 20


def fit(config: FitConfig) -> dict[str, Any]:
    """Train, checkpoint, evaluate and write the model; what metrics.json holds is returned.

    Raises:
        InputError: something that the user can correct, found before anything of a run is written.
        Interrupted: Ctrl-C or SIGTERM, after a checkpoint was written.
    """
    folder = RunFolder(config.out)
    folder.check(config)
    renderer = renderer_for(config)
    lpips = load_lpips(backbone=config.lpips_backbone, device=renderer.device)
    with StopRequest() as stop:
        run = Run.open(config.out) if config.resume else None
        capture = open_capture(config, folder, stop)
        _say(
            f"{len(capture.train)} training and {len(capture.test)} test images, "
            f"{len(capture.points):,} points; rendering with {renderer.name} on {renderer.device}"
        )
        scene = Scene.load(capture, renderer.device, run.frame if run else None)
        if run is None:
            rows = scene.initial_rows(config)
            folder.prepare(config)
            trainer = Trainer(config, rows, renderer=renderer, extent=scene.frame.extent)
            spent = Spent()
        else:
            trainer, spent = run.trainer(renderer, config), run.spent
            folder.prepare(config)
            _say(f"resuming after step {trainer.step:,}")
        spent = _train(trainer, scene, folder, spent, stop)
        write_ply(
            folder.point_cloud(trainer.step),
            {name: trainer.model.read(name) for name in trainer.model.params},
            transform=scene.frame.rows_out,
        )
        return report(trainer, scene, folder, spent, lpips=lpips, stop=stop)


def _train(
    trainer: Trainer, scene: Scene, folder: RunFolder, before: Spent, stop: StopRequest
) -> Spent:
    """Run the remaining steps; a checkpoint is written at the end and when asked to stop."""
    config, device = trainer.config, trainer.renderer.device
    views = scene.capture.views
    started, first_step = time.perf_counter(), trainer.step

    def load(index: int) -> np.ndarray:
        return read_image(views[index])

    def save() -> Spent:
        peak = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            peak = torch.cuda.max_memory_allocated(device)
        spent = Spent(
            before.seconds + time.perf_counter() - started,
            before.images + (trainer.step - first_step) * config.batch_size,
            max(before.peak_device_bytes, peak),
        )
        save_checkpoint(
            folder.checkpoints,
            step=trainer.step,
            tensors=trainer.tensors(),
            state=checkpoint_state(scene.frame, spent),
            keep=config.keep_checkpoints,
        )
        return spent

    if trainer.step >= config.steps:
        return before
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with (
        RunLog(folder.root, resume_step=trainer.step if trainer.step else None) as log,
        ImageFeed(
            _view_sequence(config, scene.capture.train, trainer.step),
            load,
            device=device,
            cache_bytes=parse_bytes(config.image_cache, option="--image-cache"),
            largest_bytes=max(v.width * v.height * 3 for v in views),
        ) as feed,
        Progress(config.steps, start=trainer.step, device_bytes=_device_bytes(device)) as progress,
    ):
        while trainer.step < config.steps:
            batch = [feed.next() for _ in range(config.batch_size)]
            result = trainer.train_step([(scene.views[index], image) for index, image in batch])
            n_rows = trainer.model.n_rows
            progress.update(trainer.step, result.loss.item, n_rows, n_images=len(batch))
            if trainer.step % _LOG_EVERY == 0 or trainer.step == config.steps:
                log.scalars(trainer.step, {"loss": result.loss, "n_gaussians": n_rows})
            if stop.signal_number is not None:
                save()
                raise Interrupted(
                    stop.signal_number,
                    f"stopped after step {trainer.step:,} of {config.steps:,}, checkpoint written; "
                    f"go on with: gs-train fit {config.data} --out {config.out} --resume",
                )
            if config.checkpoint_every and trainer.step % config.checkpoint_every == 0:
                save()
        return save()


def _view_sequence(config: FitConfig, train: tuple[int, ...], first_step: int) -> Iterator[int]:
    """The views of the remaining steps: a function of the seed and the step alone."""
    sampler = ViewSampler(
        len(train),
        config.batch_size,
        seed=config.seed,
        first_step=first_step,
        n_steps=config.steps - first_step,
    )
    return (train[i] for batch in sampler for i in batch)


def _device_bytes(device: torch.device) -> Callable[[], int] | None:
    return (lambda: torch.cuda.memory_allocated(device)) if device.type == "cuda" else None


def _say(line: str) -> None:
    print(line, file=sys.stderr)
