# SPDX-License-Identifier: Apache-2.0
"""A PLY file of Gaussians as a source that a model is read from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from gs_train.files.ply import count_ply, read_ply
from gs_train.rows.attributes import NAMES, row_shapes
from gs_train.rows.keys import KEYS, NEXT_KEY


class PlySource:
    """A `Source`: the six attributes of a binary PLY file, and each row's index as its key.

    Args:
        path: the file.
        transform: applied to each chunk of rows, for example into another frame.
        report: called with the number of rows read so far, after each chunk; what it raises ends
            the reading.

    Attributes:
        n_rows: Gaussians in the file.

    Raises:
        InputError: as :func:`gs_train.files.ply.read_ply`.
    """

    def __init__(
        self,
        path: Path,
        *,
        transform: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] = lambda rows: rows,
        report: Callable[[int], None] = lambda n_rows: None,
    ) -> None:
        self._path = path
        self._transform = transform
        self._report = report
        self.n_rows, k = count_ply(path)
        n = self.n_rows
        self.shapes: dict[str, tuple[int, ...]] = {
            name: (n, *shape) for name, shape in row_shapes(k).items()
        }
        self.shapes |= {KEYS: (n,), NEXT_KEY: ()}
        self.dtypes = dict.fromkeys(NAMES, torch.float32)
        self.dtypes |= {KEYS: torch.int32, NEXT_KEY: torch.int64}

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        """See `Source.fill`. One pass over the file, with memory for one chunk.

        Raises:
            InputError: the file became shorter meanwhile.
        """
        if KEYS in targets:
            targets[KEYS].copy_(torch.arange(self.n_rows, dtype=torch.int32))
        if NEXT_KEY in targets:
            targets[NEXT_KEY].fill_(self.n_rows)
        names = [name for name in NAMES if name in targets]
        start = 0
        for chunk in read_ply(self._path):
            rows = self._transform(chunk)
            stop = start + len(rows["means"])
            for name in names:
                targets[name][start:stop].copy_(rows[name])
            start = stop
            self._report(start)
