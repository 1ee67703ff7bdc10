# SPDX-License-Identifier: Apache-2.0
"""The geometry of a batch's rows: copies to draw, sums of gradients, and the step of all rows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from gs_train.engine.placement import Tools
from gs_train.engine.settings import StepSettings
from gs_train.rows import rowwise
from gs_train.rows.attributes import columns
from gs_train.rows.copies import add_rows, take_rows
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.initial_sums import InitialSums

Penalties = dict[str, tuple[str, float]]
"""By attribute: weight times the sum of ``exp`` or ``sigmoid`` of its values; see `DeviceAdam`."""


class BatchGeometry:
    """Geometry on the device, with gradients compact over the rows that a batch sees.

    Rows of appearance, which placements keep, join it in `take` and `add`.

    Args:
        rows: the geometry; its optimizer takes compact gradients, as `gs_adam.DeviceAdam` does.
        ids: (U,) int32, sorted: the batch's rows.
        settings: of the step.
        tools: of the engine.
        sums: (U, ...) by attribute, added to.
        n_rows: rows of the model, of all ranks.

    Attributes:
        sums: (U, ...) gradients by attribute.
    """

    def __init__(
        self,
        rows: Gaussians,
        ids: Tensor,
        settings: StepSettings,
        tools: Tools,
        sums: Mapping[str, Tensor],
        n_rows: int,
    ) -> None:
        self._rows = rows
        self._n_rows = n_rows
        self._ids = ids
        self._settings = settings
        self._tools = tools
        self.sums = sums
        set_options(rows.optimizer, settings)

    def places(self, ids: Tensor) -> Tensor:
        """(R,) int64 where rows, some of the batch's, are among them."""
        return torch.searchsorted(self._ids, ids)

    def take(self, ids: Tensor, values: Tensor, slots: Tensor) -> dict[str, Tensor]:
        """Copies of rows that collect gradients.

        Args:
            ids: (R,) rows of the geometry.
            values: (C, W) rows of appearance.
            slots: (R,) where the same rows lie in it.
        """
        taken = take_rows({**self._rows.columns, **columns(values)}, ids, slots)
        return {name: leaf.requires_grad_() for name, leaf in taken.items()}

    def add(
        self,
        leaves: Mapping[str, Tensor],
        place: Tensor | None,
        appearance: Tensor,
        slots: Tensor | None,
        initial: InitialSums | None = None,
    ) -> None:
        """Add the leaves' gradients to the sums.

        Args:
            place: (R,) places in the batch's rows; None: all of them.
            appearance: (C, W) sums of rows of appearance.
            slots: (R,) where the same rows lie in it; None: R is C.
            initial: see `gs_train.rows.copies.add_rows`.
        """
        parts = {name: leaf.grad for name, leaf in leaves.items()}
        add_rows({**self.sums, **columns(appearance)}, parts, place, slots, initial)

    def update(self, looked: torch.cuda.Event | None) -> None:
        """Take the step: of all rows, or with sparse semantics of the batch's.

        Args:
            looked: behind everything that reads the geometry on other lanes.
        """
        trace, name = self._tools.trace, "update geometry"
        with trace.both(name):
            self._tools.lanes.wait("compute", looked)
            self._take_step()

    def _take_step(self) -> None:
        losses = penalties(self._settings, self._n_rows)
        if not self._settings.regularise_all:
            rows = self._ids.long()
            params = self._rows.params
            values = {name: params[name].index_select(0, rows) for name in losses}
            add_to(self.sums, values, losses)
            losses = {}
        self._rows.optimizer.step(  # type: ignore[call-overload]
            self._ids,
            list(self.sums.values()),
            penalties=[losses.get(name) for name in self.sums] if losses else None,
        )


def set_options(optimizer: torch.optim.Optimizer, settings: StepSettings) -> None:
    """Give rates and constants of a step to the groups, which are named after attributes."""
    for group in optimizer.param_groups:
        group["lr"] = settings.rates[group["name"]]
        group["betas"] = settings.betas
        group["eps"] = settings.eps


def penalties(settings: StepSettings, n_rows: int) -> Penalties:
    """The weighted means of opacity and size over all rows, as sums; attributes without one are
    left out."""
    if not settings.opacity_reg and not settings.scale_reg:
        return {}
    wanted = {
        "opacities": ("sigmoid", settings.opacity_reg / n_rows),
        "scales": ("exp", settings.scale_reg / (3 * n_rows)),
    }
    return {name: penalty for name, penalty in wanted.items() if penalty[1]}


@torch.no_grad()
def add_to(
    gradients: Mapping[str, Tensor], values: Mapping[str, Tensor], losses: Penalties
) -> None:
    """Add the gradients of penalties on some rows.

    Args:
        gradients: (R, ...) by attribute, written to.
        values: (R, ...) the rows' present values.
    """
    for name, (kind, weight) in losses.items():
        gradients[name].add_(rowwise.slope_of(kind, values[name]), alpha=weight)
