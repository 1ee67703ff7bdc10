# SPDX-License-Identifier: Apache-2.0
"""A renderer for the CPU whose splats travel from rows where they lie, as those of a device do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from gs_train.densify.statistics import Statistics
from gs_train.renderers import RenderOptions, Splats, View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.cpu_records import CpuRecords
from gs_train.renderers.records import Outgoing, SplatRecords
from gs_train.renderers.tables import Direct, TableRows
from gs_train.rows.copies import add_rows, take_rows


class Projected(NamedTuple):
    """Rows that were projected."""

    rows: TableRows
    segment: range
    leaves: dict[str, Tensor]
    splats: Splats | None


class CpuTableRecords(CpuRecords):
    """A `TableRecordRenderer`."""

    def __init__(self, renderer: CpuRenderer, *, absgrad: bool) -> None:
        super().__init__(absgrad=absgrad)
        self._renderer = renderer

    def project_views(
        self, outgoing: Sequence[Outgoing], out: SplatRecords, *, sh_degree: int
    ) -> list[Projected]:
        """See `TableRecordRenderer`."""
        return [
            self._project(rows, view, out.part(segment), segment, sh_degree)
            for rows, view, segment in outgoing
        ]

    def _project(
        self, rows: TableRows, view: View, out: SplatRecords, segment: range, sh_degree: int
    ) -> Projected:
        if not len(rows.ids):
            out.make_empty(0)
            return Projected(rows, segment, {}, None)
        taken = take_rows(rows.columns, rows.ids, rows.slots)
        leaves = {name: leaf.requires_grad_() for name, leaf in taken.items()}
        keys = rows.keys.index_select(0, rows.ids)
        splats = self._renderer.project(leaves, view, sh_degree=sh_degree, keys=keys)
        splats.means2d.retain_grad()
        self.write(splats, out)
        return Projected(rows, segment, leaves, splats)

    def project_views_backward(
        self, projected: list[Projected], gradients: Tensor, *, direct: Direct | None = None
    ) -> list[Splats] | None:
        """See `TableRecordRenderer`."""
        for rows, segment, leaves, splats in projected:
            if splats is None:
                continue
            self.backward(splats, gradients[segment.start : segment.stop])
            parts = {name: leaf.grad for name, leaf in leaves.items()}
            add_rows(rows.sums, parts, rows.place, rows.place)
            if direct is not None and direct.sums is not None:
                assert isinstance(direct.sums, Statistics)
                direct.sums.observe(rows.ids, splats, batch_size=direct.batch_size)
        return None if direct is not None else [one.splats for one in projected]


class TableRecordCpuRenderer(CpuRenderer):
    """The CPU renderer with such records.

    Attributes:
        tables: that of a device has some, which several ranks do not call.
    """

    tables = object()

    def __init__(self, *, absgrad: bool = False) -> None:
        super().__init__(RenderOptions(), absgrad=absgrad)
        self.records = CpuTableRecords(self, absgrad=absgrad)
