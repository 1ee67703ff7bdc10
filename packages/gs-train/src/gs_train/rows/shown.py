# SPDX-License-Identifier: Apache-2.0
"""Rows that can be looked at and saved, wherever they live; and those that are all in memory."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, Self

import torch
from torch import Tensor

from gs_train.renderers.protocol import Renderer, View
from gs_train.rows.keys import RowKeys

Point = tuple[float, float, float]

ViewsOf = Callable[[int], Sequence[View]]
"""The views of a step, counted from 0; none behind the last step."""


class RowsOfView(Protocol):
    """At least the rows that a view sees, in memory."""

    @property
    def device(self) -> torch.device:
        """Where ids and values are."""
        ...

    @property
    def sh_degree(self) -> int:
        """The highest degree of spherical harmonics that ``shN`` has room for."""
        ...

    @property
    def keys(self) -> RowKeys:
        """Of the rows, on ``device``."""
        ...

    @property
    def params(self) -> Mapping[str, Tensor]:
        """Present values, on ``device``: at least the geometry."""
        ...

    def snapshot(
        self, ids: slice | Tensor, *, device: torch.device | str | None = None
    ) -> dict[str, Tensor]:
        """Present values of the six attributes of some rows, copied; nothing is changed.

        Args:
            ids: a slice of step 1, or (R,) sorted and unique ids on ``device``.
            device: where the copies shall be; ``device`` of the rows when None.
        """
        ...


class ShownRows(Protocol):
    """Rows that can be looked at, wherever they live. Looking changes none."""

    @property
    def device(self) -> torch.device:
        """Where rows are drawn."""
        ...

    @property
    def n_rows(self) -> int:
        """N, the number of Gaussians."""
        ...

    @property
    def sh_degree(self) -> int:
        """The highest degree of spherical harmonics that ``shN`` has room for."""
        ...

    def within(self, view: View, renderer: Renderer) -> RowsOfView:
        """At least the rows that a renderer would draw in a view, on the device."""
        ...

    def chunks(self, chunk_rows: int) -> Iterator[dict[str, Tensor]]:
        """Present values of all rows in the order in which they lie, on the CPU.

        Yields:
            The six attributes of at most ``chunk_rows`` rows; one chunk without rows where there
            are none.
        """
        ...

    def reaching(self, low: Point, high: Point) -> ShownRows:
        """Fewer rows where that takes less to read: at least those in a box.

        Args:
            low, high: of means, ``low <= means <= high``.
        """
        ...

    def some_means(self) -> Tensor:
        """(R, 3) present means of rows evenly over the scene, neighbours among them."""
        ...

    def close(self) -> None:
        """End work in the background and give memory and files back."""
        ...


class SavingRows(Protocol):
    """Rows that are being saved apart from the tensors of a checkpoint."""

    @property
    def is_done(self) -> bool:
        """Whether they are saved, or could not be."""
        ...

    def wait(self) -> dict[str, Any]:
        """Wait for the end; return what the checkpoint's state says of them.

        Raises:
            InputError: they could not be saved.
        """
        ...


class TrainedRows(ShownRows, Protocol):
    """Rows in training, as a run sees them, wherever they live.

    Attributes:
        expected: the number of rows that growth is expected to end at, beyond which no memory of
            the device is taken ahead; None: not known.
    """

    expected: int | None

    def tensors(self) -> dict[str, Tensor]:
        """What the tensors of a checkpoint hold of the rows, not copied."""
        ...

    def foresee(self, views_of: ViewsOf, renderer: Renderer) -> None:
        """Hear of all steps to come. A hint that changes no result."""
        ...

    def begin_saving(self, kept: Collection[int]) -> SavingRows:
        """Begin to save what `tensors` does not give; training may go on.

        Args:
            kept: numbers of what was saved so and must stay.

        Raises:
            InputError: it cannot be saved.
        """
        ...

    def traffic(self) -> dict[str, float]:
        """Counts by name of what has moved since the process began, for the log; empty where the
        engine counts all."""
        ...

    def trouble(self) -> AbstractContextManager[None]:
        """Turns errors of a drive into an InputError of one line."""
        ...


class SavedInTensors:
    """A `SavingRows` of rows that the tensors of a checkpoint hold."""

    is_done = True

    def wait(self) -> dict[str, Any]:
        """Nothing is left to say."""
        return {}


class _Copied(Protocol):
    @property
    def n_rows(self) -> int: ...

    @property
    def params(self) -> Mapping[str, Tensor]: ...

    def snapshot(
        self, ids: slice | Tensor, *, device: torch.device | str | None = None
    ) -> dict[str, Tensor]: ...


class RowsAtHand:
    """What `TrainedRows` asks beside the rows themselves, of rows that are all in memory."""

    def within(self, view: View, renderer: Renderer) -> Self:
        """See `ShownRows.within`: all rows are."""
        return self

    def chunks(self: _Copied, chunk_rows: int) -> Iterator[dict[str, Tensor]]:
        """See `ShownRows.chunks`."""
        for start in range(0, max(self.n_rows, 1), chunk_rows):
            part = slice(start, min(self.n_rows, start + chunk_rows))
            yield self.snapshot(part, device="cpu")

    def reaching(self, low: Point, high: Point) -> Self:
        """See `ShownRows.reaching`: all."""
        return self

    def some_means(self: _Copied) -> Tensor:
        """See `ShownRows.some_means`: all."""
        return self.params["means"]

    def foresee(self, views_of: ViewsOf, renderer: Renderer) -> None:
        """Nothing: the engine hears of the batches that follow."""

    def begin_saving(self, kept: Collection[int]) -> SavedInTensors:
        """Nothing: `tensors` gives all."""
        return SavedInTensors()

    def traffic(self) -> dict[str, float]:
        """Empty: the engine counts all."""
        return {}

    def trouble(self) -> AbstractContextManager[None]:
        """Nothing: no drive is asked."""
        return contextlib.nullcontext()
