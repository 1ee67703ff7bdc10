# SPDX-License-Identifier: Apache-2.0
"""The checkpoints of a run that trains: written at once, or when the rows on a drive are saved."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch

from gs_train.checkpoint import save_by_ranks
from gs_train.data import PhotoReader
from gs_train.files.agreement import by_first
from gs_train.machine.device_peaks import DevicePeaks
from gs_train.machine.memory import peak_host_bytes
from gs_train.machine.out_of_memory import memory_for
from gs_train.rows.shown import SavingRows
from gs_train.runs.figures import Pace, figures
from gs_train.runs.folder import RunFolder
from gs_train.runs.metrics import NOT_AVAILABLE
from gs_train.runs.named_snapshots import named_snapshots
from gs_train.runs.parts import Parts
from gs_train.runs.record import RunRecord
from gs_train.runs.run_state import Spent, checkpoint_state
from gs_train.runs.trainer import Trainer
from gs_train.scene.scene import Scene, capture_digest
from gs_train.sizing.choice import Choice
from gs_train.world import World
from gs_train.world.timed import Waits

_TICK_S = 1e-6
"""Seconds travel in whole ones of these."""


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


class Saver:
    """Writes checkpoints, and knows what the run has cost at each.

    Attributes:
        spent: until the last checkpoint.
        saved_step: of the last checkpoint; None: the run has none.
        foretold_s: of all steps, as it was said when the first had been taken; None: it was not.
        pace: of the steps.
        waits: for other ranks, in the steps.
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
        self._first_step = trainer.step
        self.saved_step: int | None = trainer.step if trainer.config.resume else None
        self._started = time.perf_counter()
        self.spent = before
        self.foretold_s: float | None = None
        self._coming: _Coming | None = None
        self.pace = Pace(trainer.config.batch_size)
        self.waits = Waits()
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

    def save_store(self) -> None:
        """Write the checkpoint of a store that has just been made: making it may have taken longer
        than many steps, so that a run that dies in its first steps goes on from it.

        Raises:
            Exception: it cannot be written. The trainer is closed, so that the store, which nobody
                writes any longer, can be removed with the rest of the run.
        """
        if self.saved_step is not None or self._choice.blocks is None:
            return
        try:
            self.save()
        except Exception:
            self._trainer.close()
            raise

    def save(self, *, is_last: bool = False, waits: bool = True) -> None:
        """Write a checkpoint; after the last step also what training took is gathered.

        Args:
            waits: for rows that are saved apart from the checkpoint; else `settle` writes it once
                these are there.
        """
        started = time.perf_counter()
        trace = self._trainer.backend.trace
        with trace.host("checkpoint"), memory_for("a checkpoint"):
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
                foretold_s = NOT_AVAILABLE if self.foretold_s is None else self.foretold_s
                of["predicted"]["seconds"] = foretold_s
                of["real"]["seconds"] = self.spent.seconds
                if ranks is not None:
                    of["ranks"] = ranks
                self.spent = dataclasses.replace(self.spent, figures=of)
        finally:  # whatever comes between, Ctrl-C included: the training is done
            self._coming = _Coming(trainer.step, rows, self._writer(is_now=rows.is_done))
            self.settle()

    def _writer(self, *, is_now: bool) -> Callable[[Mapping[str, Any]], object]:
        """What writes a checkpoint of the present step, once its rows are saved.

        Args:
            is_now: it is called before the next step; else steps may change the state meanwhile.
        """
        trainer, dealing = self._trainer, self._trainer.dealing
        step, spent, tensors = trainer.step, self.spent, trainer.tensors()
        if not is_now:
            tensors = {name: values.clone() for name, values in tensors.items()}
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

    def _spent(self, n_steps: int) -> tuple[Spent, list[dict[str, float]] | None]:
        """And what each rank has taken and waited for, where there are several."""
        device, before = self._trainer.renderer.device, self._before
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        peak, reserved = self.peaks.allocated_bytes, self.peaks.reserved_bytes
        names = ("peak_device_bytes", "peak_device_reserved_bytes", "peak_host_bytes")
        self.waits.settle()
        waited = (round(s / _TICK_S) for s in (self.waits.device_s, self.waits.host_s))
        of_ranks = self._world.gather([peak, reserved, peak_host_bytes(), *waited])
        spent = Spent(
            before.seconds + time.perf_counter() - self._started,
            before.images + n_steps * self._trainer.config.batch_size,
            *(max(getattr(before, name), int(n)) for name, n in zip(names, of_ranks.max(axis=0))),
        )
        if self._world.size == 1:
            return spent, None
        return spent, [
            dict(zip(names, of_bytes))
            | {"waited_device_s": on_device * _TICK_S, "waited_host_s": on_host * _TICK_S}
            for *of_bytes, on_device, on_host in of_ranks.tolist()
        ]
