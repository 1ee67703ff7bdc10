# SPDX-License-Identifier: Apache-2.0
"""A rank's own rows in the views of a batch: their splats go out, gradients of splats come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from gs_train.engine.drawing import Drawing
from gs_train.engine.microbatches import Microbatch
from gs_train.engine.placement import Placement, Taken
from gs_train.renderers import Splats
from gs_train.renderers.records import (
    Outgoing,
    RecordRenderer,
    SplatRecords,
    TableRecordRenderer,
)
from gs_train.renderers.tables import Direct


class Own(NamedTuple):
    """One microbatch as the owner of some of its rows sees it.

    Attributes:
        k: of the batch.
        microbatch: itself.
        segment: where its splats are among those of its round.
    """

    k: int
    microbatch: Microbatch
    segment: range


class OwnRows(Protocol):
    """Projects rows of microbatches, and adds their gradients.

    Each microbatch is projected once and then given back once, both in the batch's order and with
    the same others.
    """

    def project(self, own: Sequence[Own], out: SplatRecords) -> None:
        """Write the splats of microbatches, and empty records behind them."""
        ...

    def give_back(self, own: Sequence[Own], gradients: Tensor) -> None:
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

    def project(self, own: Sequence[Own], out: SplatRecords) -> None:
        """See `OwnRows`."""
        for k, microbatch, segment in own:
            taken, splats = self._placement.take(k), None
            if len(taken.ids):
                splats = self._drawing.project(taken.ids, taken.leaves, microbatch.crop.view)
                self._records.write(splats, out.part(segment))
            else:
                out.part(segment).make_empty(0)
            self._out[k] = taken, splats

    def give_back(self, own: Sequence[Own], gradients: Tensor) -> None:
        """See `OwnRows`."""
        for k, microbatch, segment in own:
            taken, splats = self._out.pop(k)
            if splats is not None:
                self._records.backward(splats, gradients[segment.start : segment.stop])
            self._drawing.statistics.note(microbatch, taken.ids, splats)
            self._placement.give(k, taken)


class TabledRows:
    """`OwnRows` where they lie: those of a round in one call each way.

    Args:
        placement: that the batch runs in; it has tables.
        drawing: of the batch.
        records: of the renderer.
        direct: takes the microbatches instead of `observe`, if given.
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
        self._out: dict[int, tuple[list[Outgoing], Any]] = {}

    def project(self, own: Sequence[Own], out: SplatRecords) -> None:
        """See `OwnRows`."""
        outgoing = []
        for k, microbatch, segment in own:
            rows = self._placement.tables(k)
            assert rows is not None  # of this placement
            outgoing.append(Outgoing(rows, microbatch.crop.view, segment))
        projected = self._records.project_views(outgoing, out, sh_degree=self._sh_degree)
        self._out[own[0].k] = outgoing, projected

    def give_back(self, own: Sequence[Own], gradients: Tensor) -> None:
        """See `OwnRows`."""
        outgoing, projected = self._out.pop(own[0].k)
        told = self._records.project_views_backward(projected, gradients, direct=self._direct)
        if told is None:
            return
        for one, (rows, *_), splats in zip(own, outgoing, told, strict=True):
            self._statistics.note(one.microbatch, rows.ids, splats if rows.ids.shape[0] else None)
