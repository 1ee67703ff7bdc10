# SPDX-License-Identifier: Apache-2.0
"""A renderer for the CPU whose splats travel from rows where they lie, as those of a device do."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from gs_train.densify.statistics import Statistics
from gs_train.renderers import RenderOptions, Splats, View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.cpu_records import CpuRecords
from gs_train.renderers.records import SplatRecords
from gs_train.renderers.tables import Direct, TableRows
from gs_train.rows.copies import add_rows, take_rows


class Projected(NamedTuple):
    """Rows that were projected."""

    rows: TableRows
    leaves: dict[str, Tensor]
    splats: Splats


class CpuTableRecords(CpuRecords):
    """A `TableRecordRenderer`."""

    def __init__(self, renderer: CpuRenderer, *, absgrad: bool) -> None:
        super().__init__(absgrad=absgrad)
        self._renderer = renderer

    def project(
        self, rows: TableRows, view: View, out: SplatRecords, *, sh_degree: int
    ) -> Projected:
        """See `TableRecordRenderer`."""
        taken = take_rows(rows.columns, rows.ids, rows.slots)
        leaves = {name: leaf.requires_grad_() for name, leaf in taken.items()}
        keys = rows.keys.index_select(0, rows.ids)
        splats = self._renderer.project(leaves, view, sh_degree=sh_degree, keys=keys)
        splats.means2d.retain_grad()
        self.write(splats, out)
        return Projected(rows, leaves, splats)

    def project_backward(
        self,
        projected: Projected,
        gradients: Tensor,
        view: View,
        *,
        sh_degree: int,
        direct: Direct | None = None,
    ) -> Splats | None:
        """See `TableRecordRenderer`."""
        rows, leaves, splats = projected
        self.backward(splats, gradients)
        parts = {name: leaf.grad for name, leaf in leaves.items()}
        add_rows(rows.sums, parts, rows.place, rows.place)
        if direct is None:
            return splats
        if direct.sums is not None:
            assert isinstance(direct.sums, Statistics)
            direct.sums.observe(rows.ids, splats, batch_size=direct.batch_size)
        return None


class TableRecordCpuRenderer(CpuRenderer):
    """The CPU renderer with such records.

    Attributes:
        tables: that of a device has some, which several ranks do not call.
    """

    tables = object()

    def __init__(self, *, absgrad: bool = False) -> None:
        super().__init__(RenderOptions(), absgrad=absgrad)
        self.records = CpuTableRecords(self, absgrad=absgrad)
