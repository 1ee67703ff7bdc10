# SPDX-License-Identifier: Apache-2.0
"""A store that a process uses: made from the first rows, or opened at a snapshot."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
        cloud: makes the store of rows that are not in memory; takes its folder, and by name what
            `create` does and ``block_rows``.
    """

    folder: Path
    room: BlockRoom
    named: str | None = None
    snapshot: int | None = None
    cloud: Callable[..., object] | None = None

    def create(
        self,
        rows: Rows | None,
        *,
        betas: tuple[float, float],
        eps: float,
        ceilings: Mapping[str, float],
    ) -> None:
        """Make the store of rows whose keys are their indices. See `StoredRows.create`.

        Args:
            rows: None where ``cloud`` has them.

        Raises:
            InputError: the folder holds something, or the drive errs or becomes full.
        """
        require_empty(self.folder)
        how: dict[str, Any] = {"betas": betas, "eps": eps, "ceilings": ceilings}
        how["block_rows"] = self.room.block_rows
        with store_trouble(self.folder, is_new=True):
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            if self.cloud is not None:
                self.cloud(self.folder, **how)
                return
            assert rows is not None
            keys = torch.arange(len(rows["means"]), dtype=torch.int32)
            StoredRows.create(self.folder, rows, keys, **how)

    def open(self, device: torch.device, *, read_only: bool = False) -> StoredRows:
        """Open the store; what it warns of is printed.

        Raises:
            InputError: it is damaged, of another version, or written by another process.
        """
        with told(self.folder), store_trouble(self.folder):
            store = BlockStore.open(self.folder, snapshot=self.snapshot, read_only=read_only)
            try:
                return StoredRows(
                    store,
                    slots=self.room.slots,
                    host_blocks=self.room.places,
                    device=device,
                )
            except BaseException:
                store.close()
                raise


@contextlib.contextmanager
def told(folder: Path) -> Iterator[None]:
    """Print what is warned of a store as lines on stderr."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        yield
    for warning in found:
        print(printable(f"{folder}: {warning.message}"), file=sys.stderr)
