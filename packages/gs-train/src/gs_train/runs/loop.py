# SPDX-License-Identifier: Apache-2.0
"""The training loop: batches in, steps, log, progress, checkpoints."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gs_train.checkpoint import save_by_ranks
from gs_train.data import Capture, PhotoReader
from gs_train.data.pixel_file import pixel_bytes
from gs_train.engine.batch_drawing import Truth, Unreadable
from gs_train.engine.trace import BATCH
from gs_train.errors import CommonError, InputError
from gs_train.files.agreement import by_first
from gs_train.machine.device_peaks import DevicePeaks
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.machine.memory import peak_host_bytes
from gs_train.machine.out_of_memory import in_short, memory_that_ran_out
from gs_train.machine.progress import Progress
from gs_train.options.config import FitConfig
from gs_train.rows.shown import SavingRows, ViewsOf
from gs_train.runs.expectation import Expectation
from gs_train.runs.feed import ImageFeed
from gs_train.runs.figures import Pace, figures
from gs_train.runs.folder import RunFolder
from gs_train.runs.held_out import HeldOut
from gs_train.runs.logs import RunLog
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.runs.parts import Parts
from gs_train.runs.photographs import Opened, opened
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Spent, checkpoint_state
from gs_train.runs.sight import BlindEpochError, Sight
from gs_train.runs.step_report import OnStep, StepReport, StopTraining
from gs_train.runs.trainer import StepResult, Trainer
from gs_train.scene.scene import Scene, capture_digest
from gs_train.scene.view_order import view_sampler
from gs_train.sizes import format_bytes
from gs_train.sizing.choice import Choice
from gs_train.tide.trouble import StoreTroubleError
from gs_train.world import SharedStop, World

_LOG_EVERY = 20

_ANNOUNCED = 2
"""Batches that the backend knows ahead of need."""


def train(
    trainer: Trainer,
    scene: Scene,
    folder: RunFolder,
    before: Spent,
    stop: StopRequest | SharedStop,
    choice: Choice,
    record: RunRecord,
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
        parts: ``on_step`` is called after each step, before a checkpoint of the step is written.
        world: of the ranks, which save together; rank 0 writes the log.
        held_out: scored every so many steps, where the options say so.

    Returns:
        What the run has cost, ``before`` included.

    Raises:
        InputError: a photograph cannot be read, or the disk is full. Steps done are saved; when
            there are none, nothing of the run is left. Or memory runs out: the step that failed
            may be half done, so that only what had been saved is left. Or no Gaussian is left, or
            a whole epoch saw none: again only what had been saved is left.
        OSError: something cannot be read or written between two steps (a terminal is gone). Steps
            done are saved.
        Interrupted, StopTraining: after a checkpoint was written.
        Exception: whatever ``on_step`` raised; the last checkpoint stays.
    """
    config, device = trainer.config, trainer.renderer.device
    if trainer.step >= config.steps:
        return before
    first_step = trainer.step
    # All the same; two are consumed ahead of need, in threads of their own.
    fed, known, decoded = (_view_batches(config, scene.capture, first_step) for _ in range(3))
    order = itertools.chain.from_iterable(decoded)
    present = next(known)
    upcoming = collections.deque(itertools.islice(known, _ANNOUNCED))
    saver = _Saver(trainer, scene, folder, before, choice, record, photographs, parts, world)
    sight = Sight(config, len(scene.capture.train), trainer.images_seen)
    n_rows = trainer.n_rows
    try:
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
                with trace.host(BATCH):
                    batch = _photographs(feed, present, world)
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
        if trainer.step == 0 or not (has_rows or saver.saved_step):
            by_first(world, folder.discard)
        elif isinstance(error, StoreTroubleError):
            saver.settle(waits=True)  # what ended a snapshot says more
        else:
            saver.settle_quietly()
            if has_rows and trainer.is_whole and trainer.step > saver.saved_step:
                saver.save()
        raise
    except Interrupted:
        raise
    except Exception as error:
        saver.settle_quietly()
        is_alone = world.size == 1
        is_unsaved = trainer.is_whole and trainer.step > saver.saved_step
        if isinstance(error, OSError) and is_unsaved and is_alone:
            saver.save()
        what = memory_that_ran_out(error)
        if what is None:
            error.add_note(_how_to_go_on(trainer, saver.saved_step))
            raise
        if not saver.saved_step and is_alone:
            folder.discard()
        raise InputError(_out_of_memory(what, error, trainer, n_rows, saver.saved_step)) from error
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


def _how_to_go_on(trainer: Trainer, saved_step: int) -> str:
    remedy = "there is no checkpoint yet (--checkpoint-every)"
    if saved_step:
        remedy = f"go on from the checkpoint of step {saved_step} with --resume"
    return f"training ended after step {trainer.step}; {remedy}"


def _out_of_memory(
    what: str, error: BaseException, trainer: Trainer, n_rows: int, saved_step: int
) -> str:
    """
    Args:
        n_rows: before the step that ended so, perhaps in the middle of a refinement.
    """
    remedy = f"more memory (a larger --{what}-memory) or another --offload"
    if saved_step:  # whose --cap stays
        remedy = f"go on from the checkpoint of step {saved_step} with --resume and {remedy}"
    else:
        again = "there is no checkpoint yet (--checkpoint-every), so start again with"
        remedy = f"{again} a smaller --cap, {remedy}"
    return (
        f"{what} memory ran out after step {trainer.step}, with {n_rows:,} Gaussians"
        f"{in_short(error)}; {remedy}"
    )


class _Coming(NamedTuple):
    """A checkpoint that is written once its rows are saved.

    Attributes:
        step: of the checkpoint.
        rows: that are being saved.
        write: with what is said of the rows.
    """

    step: int
    rows: SavingRows
    write: Callable[[Mapping[str, Any]], object]


class _Saver:
    """Writes checkpoints, and knows what the run has cost at each.

    Attributes:
        spent: until the last checkpoint.
        pace: of the steps.
        peaks: of device memory.
    """

    def __init__(
        self,
        trainer: Trainer,
        scene: Scene,
        folder: RunFolder,
        before: Spent,
        choice: Choice,
        record: RunRecord,
        photographs: PhotoReader,
        parts: Parts,
        world: World,
    ) -> None:
        self._trainer = trainer
        self._scene = scene
        self._digest = capture_digest(scene.capture)
        self._folder = folder
        self._before = before
        self._choice = choice
        self._record = record
        self._photographs = photographs
        self._given = parts.given
        self._world = world
        self._first_step = self.saved_step = trainer.step
        self._started = time.perf_counter()
        self.spent = before
        self._coming: _Coming | None = None
        self.pace = Pace(trainer.config.batch_size)
        self.peaks = DevicePeaks(trainer.renderer.device)

    def start_clock(self) -> None:
        """Leave what has been prepared so far out of the time."""
        self._started = time.perf_counter()

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """Leave what happens meanwhile out of the time, and out of the memory of training."""
        started = time.perf_counter()
        with self.peaks.beside_training():
            yield
        seconds = time.perf_counter() - started
        self._started += seconds
        self.pace.leave_out(seconds)

    def save(self, *, is_last: bool = False, waits: bool = True) -> None:
        """Write a checkpoint; after the last step also what training took is gathered.

        Args:
            waits: for rows that are saved apart from the checkpoint; else `settle` writes it once
                these are there.
        """
        started = time.perf_counter()
        trace = self._trainer.backend.trace
        with trace.host("checkpoint"):
            self.settle(waits=True)
            self._save(is_last=is_last)
            self.settle(waits=waits)
        with trace.host("write trace"):
            trace.write()
        self.pace.leave_out(time.perf_counter() - started)

    def settle(self, *, waits: bool = False) -> None:
        """Write the checkpoint that waits for its rows, if these are saved by now.

        Args:
            waits: until they are.
        """
        coming = self._coming
        if coming is None or not (waits or coming.rows.is_done):
            return
        self._coming = None
        coming.write(coming.rows.wait())
        self.saved_step = coming.step

    def settle_quietly(self) -> None:
        """Write the checkpoint that waits for its rows, where that can be done: something else has
        ended the run, and says more."""
        with contextlib.suppress(Exception):
            self.settle(waits=True)

    def _save(self, *, is_last: bool) -> None:
        trainer = self._trainer
        n_steps = trainer.step - self._first_step
        by_first(self._world, lambda: self._folder.keep(trainer.config, self._record))
        rows = trainer.model.begin_saving(named_snapshots(self._folder.checkpoints))
        try:
            self.spent, ranks = self._spent(n_steps)
            if is_last:
                seconds = self.spent.seconds - self._before.seconds
                of = figures(
                    trainer,
                    self._scene,
                    self._choice,
                    n_steps=n_steps,
                    seconds=seconds,
                    pace=self.pace,
                    peaks=self.peaks,
                )
                if ranks is not None:
                    of["ranks"] = ranks
                self.spent = dataclasses.replace(self.spent, figures=of)
        finally:  # whatever comes between, Ctrl-C included: the training is done
            self._coming = _Coming(trainer.step, rows, self._writer())
            self.settle()

    def _writer(self) -> Callable[[Mapping[str, Any]], object]:
        """What writes a checkpoint of the present step, once its rows are saved."""
        trainer, dealing = self._trainer, self._trainer.dealing
        step, spent, tensors = trainer.step, self.spent, trainer.tensors()
        data = self._photographs.fingerprint()

        def write(apart: Mapping[str, Any]) -> None:
            save_by_ranks(
                self._folder.checkpoints,
                world=self._world,
                step=step,
                tensors=tensors,
                state=checkpoint_state(
                    self._scene.frame,
                    spent,
                    self._digest,
                    self._choice,
                    data=data,
                    run_id=self._record.id,
                    recipe=trainer.config.recipe,
                    given=self._given,
                    lattice=None if dealing is None else dealing.lattice,
                    apart=apart,
                ),
                keep=trainer.config.keep_checkpoints,
            )

        return write

    def _spent(self, n_steps: int) -> tuple[Spent, list[dict[str, int]] | None]:
        """And what each rank has taken, where there are several."""
        device, before = self._trainer.renderer.device, self._before
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        peak, reserved = self.peaks.allocated_bytes, self.peaks.reserved_bytes
        names = ("peak_device_bytes", "peak_device_reserved_bytes", "peak_host_bytes")
        of_ranks = self._world.gather([peak, reserved, peak_host_bytes()])
        spent = Spent(
            before.seconds + time.perf_counter() - self._started,
            before.images + n_steps * self._trainer.config.batch_size,
            *(max(getattr(before, name), int(n)) for name, n in zip(names, of_ranks.max(axis=0))),
        )
        if self._world.size == 1:
            return spent, None
        return spent, [dict(zip(names, own)) for own in of_ranks.tolist()]


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
