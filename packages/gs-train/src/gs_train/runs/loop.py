# SPDX-License-Identifier: Apache-2.0
"""The training loop: batches in, steps, log, progress, checkpoints."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from gs_train.data import Capture, PhotoReader
from gs_train.data.pixel_file import pixel_bytes
from gs_train.engine.batch_drawing import Truth, Unreadable
from gs_train.engine.trace import BATCH
from gs_train.errors import CommonError, InputError
from gs_train.files.agreement import by_first
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.machine.out_of_memory import memory_for, memory_that_ran_out
from gs_train.machine.progress import Progress
from gs_train.options.config import FitConfig
from gs_train.rows.shown import ViewsOf
from gs_train.runs.endings import how_to_go_on, out_of_memory
from gs_train.runs.expectation import Expectation
from gs_train.runs.feed import ImageFeed
from gs_train.runs.folder import RunFolder
from gs_train.runs.held_out import HeldOut
from gs_train.runs.logs import RunLog
from gs_train.runs.parts import Parts
from gs_train.runs.photographs import Opened, opened
from gs_train.runs.run_state import Spent
from gs_train.runs.saver import Saver
from gs_train.runs.sight import BlindEpochError, Sight
from gs_train.runs.step_report import OnStep, StepReport, StopTraining
from gs_train.runs.trainer import StepResult, Trainer
from gs_train.scene.scene import Scene
from gs_train.scene.view_order import view_sampler
from gs_train.sizes import format_bytes
from gs_train.tide.trouble import StoreTroubleError
from gs_train.world import SharedStop, World
from gs_train.world.timed import noting

_LOG_EVERY = 20

_ANNOUNCED = 2
"""Batches that the backend knows ahead of need."""


def train(
    trainer: Trainer,
    scene: Scene,
    folder: RunFolder,
    stop: StopRequest | SharedStop,
    saver: Saver,
    photographs: PhotoReader,
    parts: Parts,
    world: World,
    held_out: HeldOut,
) -> Spent:
    """Run the remaining steps; a checkpoint is written at the end and when asked to stop.

    A collective. Where one rank of several meets an error of its own, nothing more is saved, unless
    it is a photograph that cannot be read.

    Args:
        stop: the request of all ranks, where there are several.
        saver: of this run, made for ``trainer`` as it is.
        parts: ``on_step`` is called after each step, before a checkpoint of the step is written.
        world: of the ranks, which save together; rank 0 writes the log.
        held_out: scored every so many steps, where the options say so.

    Returns:
        What the run has cost, earlier sessions included.

    Raises:
        InputError: a photograph cannot be read, or the disk is full. Steps done are saved; when
            there are none, nothing of the run is left but a store with its checkpoint. Or memory
            runs out: the step that failed may be half done, so that only what had been saved is
            left. Or no Gaussian is left, or a whole epoch saw none: again only what had been saved
            is left.
        OSError: something cannot be read or written between two steps (a terminal is gone). Steps
            done are saved.
        Interrupted, StopTraining: after a checkpoint was written.
        Exception: whatever ``on_step`` raised; the last checkpoint stays.
    """
    config, device = trainer.config, trainer.renderer.device
    if trainer.step >= config.steps:
        return saver.spent
    first_step = trainer.step
    # All the same; two are consumed ahead of need, in threads of their own.
    fed, known, decoded = (_view_batches(config, scene.capture, first_step) for _ in range(3))
    order = itertools.chain.from_iterable(decoded)
    present = next(known)
    upcoming = collections.deque(itertools.islice(known, _ANNOUNCED))
    sight = Sight(config, len(scene.capture.train), trainer.images_seen)
    n_rows = trainer.n_rows
    try:
        saver.save_store()
        with (
            _log(folder, first_step, world) as log,
            opened(trainer, scene.capture, folder, photographs, order, world) as photos,
            _feed(scene, fed, device, photos) as feed,
            Progress(
                config.steps,
                start=first_step,
                device_bytes=_device_bytes(device),
                more=lambda: _of_drive(trainer.model.traffic()),
            ) as bar,
        ):
            kept, trace = photos.photographs, trainer.backend.trace
            if config.trace is not None and world.rank == 0:
                trace.start(config.trace)
            saver.start_clock()

            def seen() -> int:
                return int(world.gather(trainer.backend.stats.seen).sum())

            together = trainer.backend.together
            if together is not None and isinstance(stop, SharedStop):
                together.planner.asides.append(stop)
            expectation = Expectation(trainer, scene, suggests=not parts.given)
            trainer.model.foresee(_views_of(scene, config, first_step), trainer.renderer)
            while trainer.step < config.steps:
                n_rows = trainer.n_rows
                with trace.host(BATCH), memory_for("the photographs of a batch"):
                    batch = _photographs(feed, present, world)
                with noting(world, saver.waits):
                    result = trainer.train_step(
                        [(scene.views[i], image) for i, image in batch],
                        [[scene.views[kept.shown(i)] for i in batch] for batch in upcoming],
                        meanwhile=feed.refill,
                    )
                batch.clear()  # before the next photographs come
                if upcoming:
                    present = upcoming.popleft()
                upcoming.extend(itertools.islice(known, 1))
                n_rows = trainer.n_rows
                if not n_rows:
                    raise CommonError(_nothing_left(trainer))
                sight.check(trainer.images_seen, seen)
                saver.pace.step(n_rows)
                for line in expectation.after_step():
                    bar.message(line)
                saver.foretold_s = expectation.seconds
                is_last = trainer.step == config.steps
                scores = {}
                if held_out.is_due(trainer.step):
                    with trace.host("evaluation"), saver.standing_still():
                        scores = held_out.scores(trainer, bar.message)
                with trace.host("log"):
                    bar.update(trainer.step, result.loss.item, n_rows, n_images=config.batch_size)
                    is_logged = trainer.step % _LOG_EVERY == 0 or is_last or scores
                    if log is not None and is_logged:
                        now = {"loss": result.loss, "n_gaussians": n_rows, **scores}
                        now |= trainer.model.traffic()
                        log.scalars(trainer.step, now)
                    trace.settle()
                for line in [*kept.news(), *trainer.news()]:
                    bar.message(line)
                asked = None if parts.on_step is None else _tell(parts.on_step, trainer, result)
                every = config.checkpoint_every
                is_stopping = stop.signal_number is not None  # asked once: it may come at any time
                is_ending = is_last or is_stopping or asked is not None
                if is_ending or (every and trainer.step % every == 0):
                    saver.save(is_last=is_last, waits=is_ending)
                else:
                    saver.settle()
                if is_stopping and not is_last:
                    stop.check("training")
                if asked is not None and not is_last:
                    raise asked
    except InputError as error:
        if not _is_common(error, world):
            raise
        # Nothing can go on from no rows, or from rows that no view sees.
        has_rows = trainer.n_rows > 0 and not isinstance(error, BlindEpochError)
        if saver.saved_step is None and (trainer.step == 0 or not has_rows):
            by_first(world, folder.discard)
        elif isinstance(error, StoreTroubleError):
            saver.settle(waits=True)  # what ended a snapshot says more
        else:
            saver.settle_quietly()
            if has_rows and trainer.is_whole and trainer.step > (saver.saved_step or 0):
                saver.save()
        raise
    except Interrupted:
        raise
    except Exception as error:
        saver.settle_quietly()
        is_alone = world.size == 1
        is_unsaved = trainer.is_whole and trainer.step > (saver.saved_step or 0)
        if isinstance(error, OSError) and is_unsaved and is_alone:
            saver.save()
        what = memory_that_ran_out(error)
        if what is None:
            error.add_note(how_to_go_on(trainer, saver.saved_step))
            raise
        if saver.saved_step is None and is_alone:
            folder.discard()
        raise InputError(out_of_memory(what, error, trainer, n_rows, saver.saved_step)) from error
    return saver.spent


def _photographs(feed: ImageFeed, views: Sequence[int], world: World) -> list[tuple[int, Truth]]:
    """The views of a batch with their photographs.

    Of several ranks, one that cannot read a photograph goes on to the step, which ends on all ranks
    before it changes anything.
    """
    batch: list[tuple[int, Truth]] = []
    for k, view in enumerate(views, 1):
        try:
            # The room of the last one is given back while the step waits for the device.
            batch.append(feed.next(refill=k < len(views)))
        except (InputError, OSError) as error:
            if world.size == 1:
                raise
            batch.append((view, Unreadable(error)))
    return batch


def _is_common(error: InputError, world: World) -> bool:
    """Whether all ranks have met it, so that they can still do something together."""
    return world.size == 1 or isinstance(error, CommonError)


def _log(
    folder: RunFolder, first_step: int, world: World
) -> contextlib.AbstractContextManager[RunLog | None]:
    """Of rank 0; None on the others."""
    if world.rank:
        return contextlib.nullcontext()
    return RunLog(folder.root, resume_step=first_step if first_step else None)


def _tell(on_step: OnStep, trainer: Trainer, result: StepResult) -> StopTraining | None:
    """Report a step to the caller; returns the request to stop, if that is what came."""
    report = StepReport(
        step=trainer.step,
        images_seen=trainer.images_seen,
        loss=result.loss,
        changed=result.changed,
        n_rows=trainer.n_rows,
        _backend=trainer.backend,
    )
    try:
        on_step(report)
    except StopTraining as asked:
        return asked
    return None


def _nothing_left(trainer: Trainer) -> str:
    config = trainer.config
    return (
        f"no Gaussian is left after step {trainer.step}: all were less opaque than --adc.prune-opa "
        f"{config.adc.prune_opa} (new ones begin at --init-opacity "
        f"{config.by_strategy('init_opacity')}) or too large; start again with a smaller one"
    )


def _feed(
    scene: Scene, batches: Iterator[tuple[int, ...]], device: torch.device, photographs: Opened
) -> ImageFeed:
    views = scene.capture.views
    return ImageFeed(
        itertools.chain.from_iterable(batches),
        photographs.photographs.load,
        shown=photographs.photographs.shown,
        device=device,
        cache_bytes=photographs.cache_bytes,
        largest_bytes=max(pixel_bytes(view.pixel_size) for view in views),
    )


def _views_of(scene: Scene, config: FitConfig, first_step: int) -> ViewsOf:
    """The views of the steps of a run, asked for one after the other."""
    batches = _view_batches(config, scene.capture, first_step)
    return lambda step: [scene.views[i] for i in next(batches, ())]


def _view_batches(
    config: FitConfig, capture: Capture, first_step: int
) -> Iterator[tuple[int, ...]]:
    """The views of the remaining steps."""
    n_steps = config.steps - first_step
    sampler = view_sampler(config, capture, first_step=first_step, n_steps=n_steps)
    return (tuple(capture.train[i] for i in batch) for batch in sampler)


def _of_drive(traffic: Mapping[str, float]) -> str:
    """What a drive has moved, for a line; nothing where there is none."""
    if not traffic:
        return ""
    read, written = (format_bytes(traffic[f"bytes_{name}"]) for name in ("read", "written"))
    return f"drive {read} read, {written} written"


def _device_bytes(device: torch.device) -> Callable[[], int] | None:
    return (lambda: torch.cuda.memory_allocated(device)) if device.type == "cuda" else None
