# SPDX-License-Identifier: Apache-2.0
"""A run that several ranks look at together: each holds the rows that it owns."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from gs_train.checkpoint import SavedCheckpoint, is_newer
from gs_train.checkpoint.row_names import MEANS
from gs_train.data import Capture
from gs_train.data.frame import FrameChoice
from gs_train.errors import CommonError, InputError
from gs_train.files.agreement import by_each, by_first
from gs_train.machine.interrupt import StopRequest
from gs_train.renderers import Renderer
from gs_train.rows.operations import Model
from gs_train.rows.own_rows import lattice_of, own_rows
from gs_train.runs.all_ranks import by_first_unless_stopped
from gs_train.runs.record import RunRecord
from gs_train.runs.run import Run
from gs_train.scene.export_frame import ExportFrame
from gs_train.scene.scene import capture_digest
from gs_train.world import World

Result = TypeVar("Result")

_TRIES = 10  # to find all ranks at one checkpoint, beside a run that saves others


class SharedRun:
    """The newest state of a run, the same on all ranks. All methods are collectives.

    Args:
        run: as this rank has opened it.
        world: of the ranks.

    Attributes:
        run: of the newest checkpoint; a newer one once `read` has found that.
    """

    def __init__(self, run: Run, world: World) -> None:
        self.run = run
        self._world = world

    @classmethod
    def open(cls, root: Path, world: World) -> SharedRun:
        """:meth:`gs_train.runs.run.Run.open` by all ranks.

        Raises:
            CommonError: a rank cannot open the run, or its rows are in a store.
        """
        run = _opened(root, world)
        if run.store is not None:
            raise CommonError(
                f"the Gaussians of {root} are in a store on a drive, which is for one process: "
                "leave --gpus out"
            )
        return cls(run, world)

    def renderer(self, name: str) -> Renderer:
        """See :meth:`gs_train.runs.run.Run.renderer`.

        Raises:
            CommonError: the renderer is for one rank.
        """
        renderer = self.run.renderer(name)
        self._world.agree("the renderer", renderer.name)
        if not hasattr(renderer, "records"):
            raise CommonError(
                f"the renderer {renderer.name} is for one GPU: several take --renderer raster, or "
                "cpu"
            )
        return renderer

    def capture(self, stop: StopRequest, *, data: Path | None) -> Capture:
        """See :meth:`gs_train.runs.run.Run.capture`; rank 0 prepares images before the others look
        at them.

        Raises:
            CommonError: rank 0 cannot use the capture.
            Interrupted: rank 0 was asked to stop; on all ranks.
        """
        found: list[Capture] = []
        by_first_unless_stopped(
            self._world, lambda: found.append(self.run.capture(stop, data=data))
        )
        capture = found[0] if found else self.run.capture(StopRequest(), data=data)
        self._world.agree("views, poses and held-out images", capture_digest(capture))
        return capture

    def cameras(self, stop: StopRequest, *, data: Path | None) -> RunRecord:
        """See :meth:`gs_train.runs.run.Run.cameras`."""
        if data is None and self.run.record is not None:
            return self.run.record
        return RunRecord.of(self.capture(stop, data=data), self.run.id)

    def read(self, device: torch.device) -> Model:
        """The rows whose strands this rank owns, for looking at, and :attr:`run` as of the
        checkpoint that they are from.

        Raises:
            CommonError: the checkpoint is damaged, or gone without a newer one; on all ranks.
        """
        return self._read(self._of_own_strands, device)

    def read_piece(self) -> Model:
        """:meth:`read`, but for one of as many pieces of the checkpoint as there are ranks, in
        the order of ranks; on the CPU."""
        return self._read(self._of_own_piece, torch.device("cpu"))

    def export_frame(self, choice: FrameChoice) -> ExportFrame:
        """The frame that one rank exports to; rank 0 looks at the positions of all rows.

        Cost: on rank 0 memory for 12 bytes of each row.
        """

        def found() -> list[Any]:
            means = self.run.checkpoint.read([MEANS])[MEANS]
            frame = ExportFrame.of_means(choice, self.run.frame, means)
            return [frame.name, frame.shift, frame.because]

        name, (x, y, z), because = by_first(self._world, found)
        return ExportFrame(name, self.run.frame, (x, y, z), because)

    def _read(
        self, own_rows_of: Callable[[SavedCheckpoint], Tensor], device: torch.device
    ) -> Model:
        """
        Args:
            own_rows_of: finds this rank's rows, as `OwnRows.ids`; a collective.
        """
        while True:
            try:
                own = own_rows_of(self.run.checkpoint)
                return cast(
                    Model, _own(self._world, functools.partial(self.run.model, device, own))
                )
            except InputError:  # on all ranks alike
                run = _opened_again(self.run, self._world)
                if run is None:
                    raise
                self.run = run

    def _of_own_strands(self, saved: SavedCheckpoint) -> Tensor:
        lattice, world = lattice_of(saved, self._world), self._world
        find = functools.partial(own_rows, saved, lattice, rank=world.rank, n_ranks=world.size)
        return _own(world, find).ids

    def _of_own_piece(self, saved: SavedCheckpoint) -> Tensor:
        rank, size, n_rows = self._world.rank, self._world.size, saved.n_rows or 0
        return torch.arange(n_rows * rank // size, n_rows * (rank + 1) // size)


def _own(world: World, work: Callable[[], Result]) -> Result:
    """What this rank gets from some work that all ranks do. A collective.

    Raises:
        CommonError: a rank met an InputError; on all ranks.
    """
    found: list[Result] = []
    by_each(world, lambda: found.append(work()))
    return found[0]


def _opened(root: Path, world: World) -> Run:
    """The run as of one checkpoint, which a ``fit`` may remove at any moment. A collective."""
    for _ in range(_TRIES):
        run = _own(world, functools.partial(Run.open, root))
        steps = world.gather(run.checkpoint.step)
        if (steps == steps[0]).all():  # else one was saved while ranks looked
            break
    world.agree("the newest checkpoint", run.checkpoint.path.name)
    world.agree("the run", run.id)
    return run


def _opened_again(old: Run, world: World) -> Run | None:
    """The run as of a newer checkpoint, where the old one is gone; else None. A collective."""
    if not world.gather(int(not old.checkpoint.path.exists())).any():
        return None
    run = _opened(old.folder.root, world)
    if run.id != old.id:
        raise CommonError(f"{old.folder.root} holds another run by now")
    return run if is_newer(run.checkpoint.path, old.checkpoint.path) else None
