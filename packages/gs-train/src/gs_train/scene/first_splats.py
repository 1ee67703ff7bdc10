# SPDX-License-Identifier: Apache-2.0
"""Gaussians of elsewhere that a run begins with: their values and keys, without moments."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from gs_train.data.frame import Frame
from gs_train.data.ranges import FARTHEST_POINT
from gs_train.errors import InputError
from gs_train.machine.interrupt import StopRequest
from gs_train.machine.progress import task_progress
from gs_train.names import printable
from gs_train.options.config import FitConfig
from gs_train.rows.attributes import row_shapes
from gs_train.rows.keys import RowKeys
from gs_train.rows.morton import morton_order
from gs_train.rows.saved_rows import KeyedRows, SavedRows

CHUNK_ROWS = 1 << 16
"""Rows that are read at once, where memory does not say."""

_FOR_POINTS = ("init_opacity", "init_scale")


@dataclass(frozen=True)
class FirstSplats:
    """Gaussians in the frame of a run that they begin, with harmonics of its degree.

    Attributes:
        path: what ``--init`` names.
        saved: where the Gaussians are.
        frame: of the run.
        shift, scale: of the frame that they were saved in: ``captured = saved / scale - shift``.
        n_bases: K of the run; harmonics that the saved ones lack are zero.
    """

    path: Path
    saved: SavedRows
    frame: Frame
    shift: Sequence[float]
    scale: float
    n_bases: int

    @property
    def n_rows(self) -> int:
        """Gaussians there; some may not be usable."""
        return self.saved.n_rows

    def check(self, config: FitConfig) -> None:
        """Check that a run with these options may begin so.

        Raises:
            InputError: there are more Gaussians than its cap, or harmonics than its degree; fewer
                than four; or it has options that are for points.
        """
        for name in _FOR_POINTS:
            if getattr(config, name) is not None:
                raise InputError(
                    f"--{name.replace('_', '-')} is for points, and --init {self.path} holds "
                    "Gaussians: leave it out"
                )
        if self.saved.n_bases > self.n_bases:
            degree = round((self.saved.n_bases + 1) ** 0.5) - 1
            raise InputError(
                f"--sh-degree must be at least {degree}, the degree of --init {self.path}, got "
                f"{config.sh_degree}"
            )
        cap = config.row_cap
        if cap is not None and self.n_rows > cap:
            raise InputError(
                f"--cap must be at least {self.n_rows:,}, the Gaussians of --init {self.path}, "
                f"got {cap:,}"
            )
        if self.n_rows < 4:
            raise InputError(
                f"--init {self.path} must hold at least 4 Gaussians, got {self.n_rows}"
            )

    def chunks(self, chunk_rows: int = CHUNK_ROWS) -> Iterator[KeyedRows]:
        """Those that are finite and within reach, see :func:`gs_train.data.ranges.in_reach`.

        Raises:
            InputError: they are damaged, or gone.
        """
        for keys, saved in self.saved.chunks(chunk_rows):
            rows = self.frame.rows_in(saved, self.shift, self.scale)
            rows["shN"] = pad(rows["shN"], (0, 0, 0, self.n_bases - rows["shN"].shape[1]))
            stays = (rows["means"].abs() <= FARTHEST_POINT).all(1)
            for values in rows.values():
                width = math.prod(values.shape[1:])
                stays &= torch.isfinite(values.reshape(len(keys), width)).all(1)
            if not stays.all():
                keys, rows = keys[stays], {name: values[stays] for name, values in rows.items()}
            yield KeyedRows(keys, rows)

    def in_memory(self, config: FitConfig, stop: StopRequest) -> tuple[dict[str, Tensor], RowKeys]:
        """All of them, along the Morton curve where the run sorts rows, and their keys.

        Raises:
            InputError: as `chunks`, and fewer than four are usable.
            Interrupted: a stop was asked for meanwhile.

        Memory: for the rows, and for one attribute of all.
        """
        n = 0
        shapes = row_shapes(self.n_bases)
        every = {name: torch.empty(self.n_rows, *shape) for name, shape in shapes.items()}
        all_keys = torch.empty(self.n_rows, dtype=torch.int32)
        with task_progress("reading Gaussians:", self.n_rows) as progress:
            for keys, rows in self.chunks():
                stop.check(self.what)
                part = slice(n, n + len(keys))
                all_keys[part] = keys
                for name, values in rows.items():
                    every[name][part] = values
                n = part.stop
                progress.update(n)
        self.tell(n)
        every = {name: values[:n] for name, values in every.items()}
        all_keys = all_keys[:n]
        if config.resort_every:
            order = morton_order(every["means"])
            all_keys = all_keys[order]
            for name in every:
                every[name] = every[name][order]
        return every, RowKeys(all_keys, int(all_keys.max()) + 1)

    def means(self, most: int) -> np.ndarray:
        """(P, 3) float64 of at most so many, evenly over all. Reads all."""
        every = max(1, -(-self.n_rows // most))
        found, n = [np.empty((0, 3))], 0
        for keys, rows in self.chunks():
            found.append(rows["means"][-n % every :: every].double().numpy())
            n += len(keys)
        return np.concatenate(found)

    @property
    def what(self) -> str:
        """What a stop ends."""
        return printable(f"the reading of {self.path}")

    def tell(self, n_usable: int) -> None:
        """Say how many were left out.

        Raises:
            InputError: fewer than four were not.
        """
        if n_usable < self.n_rows:
            why = "not finite, or too far away for float32"
            line = f"{self.path}: {self.n_rows - n_usable:,} Gaussians left out: {why}"
            print(printable(line), file=sys.stderr)
        if n_usable < 4:
            raise InputError(
                f"--init {self.path} must hold at least 4 Gaussians that are finite, got {n_usable}"
            )
