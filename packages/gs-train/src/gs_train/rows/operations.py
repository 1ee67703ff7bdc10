# SPDX-License-Identifier: Apache-2.0
"""What others ask of the rows, wherever they live: editing, looking and saving."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.keys import RowKeys
from gs_train.rows.shown import RowsOfView, TrainedRows


class RowOperations(Protocol):
    """A model's rows with their optimizer state, wherever they live.

    Densification is written against these operations alone and never holds the whole model, so
    that it works on tensors of one device and on tables in several memory tiers alike. Tensors
    that go in and come out are on ``device``; ids are (R,) int32 or int64. A call that is
    refused changes nothing.
    """

    @property
    def device(self) -> torch.device:
        """Where ids and values are exchanged."""
        ...

    @property
    def n_rows(self) -> int:
        """N, the number of Gaussians."""
        ...

    @property
    def keys(self) -> RowKeys:
        """Of the rows, on ``device``: what random numbers and ties depend on."""
        ...

    def read(self, name: str, ids: Tensor | None = None) -> Tensor:
        """Present values of one attribute.

        Args:
            name: of the attribute.
            ids: rows in any order, repeats allowed; None means all.

        Returns:
            (R, ...) copied rows; with None (N, ...), the stored values themselves where they are
            on ``device``, not to be written to.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids of another type
                or shape, or out of range, which is looked at on the CPU and by rows of the host.
        """
        ...

    def read_rows(self, ids: Tensor) -> dict[str, Tensor]:
        """Copies of the present values of all attributes, by name. Nothing is changed, so training
        goes on to the same bits.

        Args:
            ids: rows in any order, repeats allowed.

        Raises:
            TypeError, ValueError, IndexError: as `read`.
        """
        ...

    def replace(
        self,
        removed: Tensor,
        rows: Rows | None = None,
        keys: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> None:
        """Remove rows and add others, with zero moments and awake.

        Only rows that change are touched. New rows take the places of removed ones, spread evenly
        over them in their order; the others come to the end. Where more are removed than added,
        the last rows move to the places that are left, and keep their moments.

        Args:
            removed: sorted and unique.
            rows: all attributes of A new rows, float32, on any device, K as here; None for none.
            keys: (A,) int32 of the new rows, of `RowKeys.born`; None for the next free ones.
            labels: (A,) uint8 of the new rows, of `RowKeys.labels_of` their parents.

        Raises:
            TypeError, ValueError, IndexError: other names, types or shapes; ids not sorted and
                unique, or out of range.
            MemoryError: the memory is not there, or beyond the capacity.
            InputError: no more keys are left.

        Synchronises.
        """
        ...

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` row i, with its moments and its sleep.

        Args:
            order: (N,), a permutation.

        Raises:
            TypeError, ValueError: it is not one.

        Cost: one pass over the rows. Synchronises.
        """
        ...

    def overwrite(self, ids: Tensor | None, rows: Rows) -> None:
        """Write values of some attributes; moments stay, and rows are up to date then.

        Args:
            ids: sorted and unique; None means all.
            rows: any of the attributes, R rows each, on any device.

        Raises:
            TypeError, ValueError, IndexError: as `replace`.
        """
        ...

    def in_place(self, name: str) -> Tensor:
        """The stored values of one attribute of the geometry, to be written to before an operation
        that changes rows; moments stay.

        Args:
            name: means, scales, quats or opacities, which are on ``device`` wherever the other
                attributes live.

        Returns:
            (N, ...) on ``device``.

        Raises:
            KeyError: another name.
        """
        ...

    def zero_moments(
        self, ids: Tensor | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """Forget what the optimizer gathered about some rows, which are up to date then; the step
        count stays.

        Args:
            ids: sorted and unique; None means all.
            names: attributes; None means all.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids as for `replace`.
        """
        ...


class Model(RowOperations, RowsOfView, TrainedRows, Protocol):
    """Rows that can be looked at and saved, wherever they live.

    Attributes:
        edits: grows with every operation that changes values or the order of rows.
        before_replacing: called when rows are about to be replaced, before memory is taken for
            them: memory that is kept, and can be taken again, is given back.
    """

    edits: int
    before_replacing: Callable[[], None]

    def states(self, ids: Tensor) -> dict[str, Tensor]:
        """All that belongs to some rows but keys and labels, copied to ``device``: values, moments
        and last steps by the names of `tensors`. Rows that sleep are as they are.

        Args:
            ids: rows in any order.
        """
        ...

    def write_states(self, ids: Tensor, states: Mapping[str, Tensor]) -> None:
        """Make some rows what they were where `states` read them.

        Args:
            ids: (R,) distinct rows, in any order.
            states: of R rows.
        """
        ...
