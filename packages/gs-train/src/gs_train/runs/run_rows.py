# SPDX-License-Identifier: Apache-2.0
"""The rows of a run where its checkpoint says that they are: read for looking at them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gs_train.checkpoint import SavedCheckpoint
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.options.tide import TideConfig
from gs_train.rows.attributes import GEOMETRY, NAMES
from gs_train.rows.checks import check_rows
from gs_train.rows.own_rows import OwnSource
from gs_train.rows.restore import Part, Source, restored_to_look_at
from gs_train.rows.shown import ShownRows
from gs_train.sizing.blocks import block_room
from gs_train.sizing.memory import caps_of, free_on
from gs_train.tide.model import StoredModel
from gs_train.tide.store_folder import SavedStore, block_rows_of
from gs_train.tide.store_use import StoreUse


@dataclass(frozen=True)
class RunRows:
    """The rows that a checkpoint holds, or refers to in a store on a drive.

    Attributes:
        checkpoint: of the run.
        store: where the rows are; None: in the checkpoint.
        root: folder of the run.
        config: of the run; its caps on memory hold for looking too.
    """

    checkpoint: SavedCheckpoint
    store: SavedStore | None
    root: Path
    config: FitConfig

    def check(self) -> None:
        """Check names, types and shapes of the rows in the checkpoint without reading it.

        Raises:
            InputError: they are not a model's.
        """
        if self.store is not None:
            return
        with damage_of(self.checkpoint):
            source = Part(self.checkpoint, "model/")
            check_rows(
                {
                    name: torch.empty(source.shapes[name], dtype=source.dtypes[name], device="meta")
                    for name in NAMES
                }
            )

    def geometry(self, own: Tensor | None = None) -> dict[str, Tensor]:
        """Means, scales, quats and opacities on the CPU.

        Args:
            own: (R,) int64, sorted: the rows of this rank; None: all.

        Raises:
            InputError: the checkpoint is damaged.
        """
        with damage_of(self.checkpoint):
            read = self.checkpoint.read([f"model/{name}" for name in GEOMETRY], rows=own)
        return {name: read[f"model/{name}"] for name in GEOMETRY}

    def shown(
        self,
        device: torch.device,
        own: Tensor | None = None,
        *,
        stop: StopRequest | None = None,
    ) -> ShownRows:
        """The model for looking at, without state that only training needs.

        Appearance is in host memory where rows were saved asleep, and where the whole model would
        take more than half of the device's memory.

        Args:
            own: (R,) int64, sorted: the rows of this rank; None: all.
            stop: looked at between blocks of a file, where all rows are read.

        Raises:
            InputError: the checkpoint is damaged.
            Interrupted: a stop was asked for.
        """
        if self.store is not None:
            return self._shown_from(self.store, device)
        saved: Source = self.checkpoint
        if own is not None:
            saved = OwnSource(self.checkpoint, own)
        elif stop is not None:
            saved = _StoppableSource(self.checkpoint, stop)
        with damage_of(self.checkpoint):
            return restored_to_look_at(
                Part(saved, "model/"), device=device, room=self._room_on(device)
            )

    def _shown_from(self, store: SavedStore, device: torch.device) -> ShownRows:
        """The rows where they are: those that a look needs come to the device, into no more memory
        than the options of the run give."""
        folder, caps = store.folder(self.root, self.config.store), caps_of(self.config, device)
        store.require_in(folder)
        caps = dataclasses.replace(caps, device=self._room_on(device))
        config = dataclasses.replace(self.config, tide=TideConfig())
        room = block_room(config, store.n_rows, caps, block_rows=block_rows_of(folder))
        given = self.config.tide  # which the device may no longer hold, beside a training
        room = room.for_looks(slots=given.slots, arena_bytes=given.arena_bytes)
        use = StoreUse(folder, room, store.path, store.snapshot)
        return StoredModel(use.open(device, read_only=True))

    def _room_on(self, device: torch.device) -> int:
        """Bytes of a device for looking at the run, beside a training that may still have some."""
        room = caps_of(self.config, device).device
        return min(room, free_on(device)) if device.type == "cuda" else room


class _StoppableSource:
    """A `Source` of all rows of a checkpoint, whose reading a stop ends."""

    def __init__(self, saved: SavedCheckpoint, stop: StopRequest) -> None:
        self._saved = saved
        self._stop = stop
        self.shapes = saved.shapes
        self.dtypes = saved.dtypes

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See `Source.fill`."""
        work = printable(f"the reading of {self._saved.path}")
        self._saved.fill(targets, report=lambda _: self._stop.check(work))


@contextlib.contextmanager
def damage_of(checkpoint: SavedCheckpoint) -> Iterator[None]:
    """What tensors that are missing, or of other shapes, raise where they are used."""
    try:
        yield
    except (LookupError, TypeError, ValueError) as error:
        raise InputError(
            f"{checkpoint.path} does not hold what its run needs: "
            f"{' '.join(str(error).split())}; remove it and resume from an earlier one"
        ) from error
