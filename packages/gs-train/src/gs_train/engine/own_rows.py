# SPDX-License-Identifier: Apache-2.0
"""A rank's own rows in the views of a batch: their splats go out, gradients of splats come back."""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from gs_train.engine.drawing import Drawing
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.placement import Placement, Taken
from gs_train.renderers import Splats
from gs_train.renderers.records import RecordRenderer, SplatRecords, TableRecordRenderer
from gs_train.renderers.tables import Direct, TableRows


class OwnRows(Protocol):
    """Projects rows of microbatches, and adds their gradients.

    Each microbatch is projected once and then given back once, both in the batch's order.
    """

    def project(self, k: int, microbatch: Microbatch, out: SplatRecords) -> None:
        """Write the splats of the k-th microbatch, and empty records behind them."""
        ...

    def give_back(self, k: int, microbatch: Microbatch, gradients: Tensor) -> None:
        """Add gradients, one for each record, and tell density control."""
        ...


class CopiedRows:
    """`OwnRows` as copies, through autograd.

    Args:
        placement: that the batch runs in.
        drawing: of the batch.
        records: of the renderer.
    """

    def __init__(self, placement: Placement, drawing: Drawing, records: RecordRenderer) -> None:
        self._placement = placement
        self._drawing = drawing
        self._records = records
        self._out: dict[int, tuple[Taken, Splats | None]] = {}

    def project(self, k: int, microbatch: Microbatch, out: SplatRecords) -> None:
        """See `OwnRows`."""
        taken, splats = self._placement.take(k), None
        if len(taken.ids):
            splats = self._drawing.project(taken.ids, taken.leaves, microbatch.crop.view)
            self._records.write(splats, out)
        else:
            out.make_empty(0)
        self._out[k] = taken, splats

    def give_back(self, k: int, microbatch: Microbatch, gradients: Tensor) -> None:
        """See `OwnRows`."""
        taken, splats = self._out.pop(k)
        if splats is not None:
            self._records.backward(splats, gradients)
        self._drawing.statistics.note(microbatch, taken.ids, splats)
        self._placement.give(k, taken)


class TabledRows:
    """`OwnRows` where they lie.

    Args:
        placement: that the batch runs in; it has tables.
        drawing: of the batch.
        records: of the renderer.
        direct: takes the views, which are whole, if given.
        sh_degree: bands of spherical harmonics in use.
    """

    def __init__(
        self,
        placement: Placement,
        drawing: Drawing,
        records: TableRecordRenderer,
        direct: Direct | None,
        *,
        sh_degree: int,
    ) -> None:
        self._direct = direct
        self._placement = placement
        self._statistics = drawing.statistics
        self._records = records
        self._sh_degree = sh_degree
        self._out: dict[int, tuple[TableRows, Any]] = {}

    def project(self, k: int, microbatch: Microbatch, out: SplatRecords) -> None:
        """See `OwnRows`."""
        rows, projected = self._placement.tables(k), None
        assert rows is not None  # of this placement
        if rows.ids.shape[0]:
            projected = self._records.project(
                rows, microbatch.crop.view, out, sh_degree=self._sh_degree
            )
        else:
            out.make_empty(0)
        self._out[k] = rows, projected

    def give_back(self, k: int, microbatch: Microbatch, gradients: Tensor) -> None:
        """See `OwnRows`."""
        rows, projected = self._out.pop(k)
        splats = None
        if projected is not None:
            splats = self._records.project_backward(
                projected,
                gradients,
                microbatch.crop.view,
                sh_degree=self._sh_degree,
                direct=self._direct,
            )
        if self._direct is None:
            self._statistics.note(microbatch, rows.ids, splats)
