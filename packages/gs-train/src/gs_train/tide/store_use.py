# SPDX-License-Identifier: Apache-2.0
"""A store that a process uses: made from the first rows, or opened at a snapshot."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from gs_pinned import BlockStore
from gs_train.blocks.stored_rows import StoredRows
from gs_train.names import printable
from gs_train.renderers import Rows
from gs_train.tide.block_room import BlockRoom
from gs_train.tide.store_folder import require_empty
from gs_train.tide.trouble import store_trouble


@dataclass(frozen=True)
class StoreUse:
    """Which store, and how much of it is in memory.

    Attributes:
        folder: of the store.
        room: in memory.
        named: the folder as checkpoints name it; None: within the folder of the run.
        snapshot: that is opened; None: the store is made.
    """

    folder: Path
    room: BlockRoom
    named: str | None = None
    snapshot: int | None = None

    def create(
        self, rows: Rows, *, betas: tuple[float, float], eps: float, ceilings: Mapping[str, float]
    ) -> None:
        """Make the store of rows whose keys are their indices. See `StoredRows.create`.

        Raises:
            InputError: the folder holds something, or the drive errs or becomes full.
        """
        require_empty(self.folder)
        keys = torch.arange(len(rows["means"]), dtype=torch.int32)
        with store_trouble(self.folder):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            StoredRows.create(
                self.folder,
                rows,
                keys,
                block_rows=self.room.block_rows,
                betas=betas,
                eps=eps,
                ceilings=ceilings,
            )

    def open(self, device: torch.device, *, read_only: bool = False) -> StoredRows:
        """Open the store; what it warns of is printed.

        Raises:
            InputError: it is damaged, of another version, or written by another process.
        """
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with store_trouble(self.folder):
                store = BlockStore.open(self.folder, snapshot=self.snapshot, read_only=read_only)
                try:
                    rows = StoredRows(
                        store,
                        slots=self.room.slots,
                        host_blocks=self.room.places,
                        device=device,
                    )
                except BaseException:
                    store.close()
                    raise
        for warning in told:
            print(printable(f"{self.folder}: {warning.message}"), file=sys.stderr)
        return rows
