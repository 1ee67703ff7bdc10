# SPDX-License-Identifier: Apache-2.0
"""What a reader needs of a checkpoint on disk, whatever its format version."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from gs_train.checkpoint.blocks import Report
from gs_train.checkpoint.selection import RowSelection


@dataclass(frozen=True)
class Wanted:
    """Where rows of a tensor go.

    Attributes:
        target: (R, ...), of any device and strides.
        rows: the R rows of the whole tensor.
    """

    target: Tensor
    rows: RowSelection


@dataclass(frozen=True)
class SavedFile:
    """A shard of a checkpoint: its name and its size."""

    name: str
    n_bytes: int


class Content(Protocol):
    """The tensors of a checkpoint of one format version."""

    @property
    def version(self) -> int:
        """Of the format."""
        ...

    @property
    def step(self) -> int:
        """Optimizer steps done."""
        ...

    @property
    def state(self) -> dict[str, Any]:
        """The JSON-able rest of what the trainer saves."""
        ...

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """Of the tensors that can be read."""
        ...

    @property
    def dtypes(self) -> Mapping[str, torch.dtype]:
        """Of the tensors that can be read."""
        ...

    @property
    def n_rows(self) -> int | None:
        """Gaussians; None where no tensor has a row for each."""
        ...

    @property
    def by_row(self) -> frozenset[str]:
        """The tensors whose first dimension counts the Gaussians."""
        ...

    @property
    def files(self) -> tuple[SavedFile, ...]:
        """All shards."""
        ...

    @property
    def dropped(self) -> tuple[str, ...]:
        """Tensors that are in the files and cannot be read."""
        ...

    def fill(self, wanted: Mapping[str, Wanted], report: Report) -> None:
        """Read rows of tensors; ``report`` is called after each block.

        Raises:
            InputError: a file that holds some of them is damaged or cannot be read.
        """
        ...

    def verify(self, report: Report) -> None:
        """Read everything and check every checksum.

        Raises:
            InputError: a file is damaged or cannot be read.
        """
        ...
