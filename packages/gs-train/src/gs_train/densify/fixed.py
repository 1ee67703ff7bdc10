# SPDX-License-Identifier: Apache-2.0
"""No densification: the rows that a run begins with are the rows that it ends with."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from gs_train.densify.protocol import Changed
from gs_train.renderers.protocol import Splats
from gs_train.renderers.tables import Direct
from gs_train.rows.operations import RowOperations


class Fixed:
    """A `DirectDensifier` that adds, removes, moves and resets nothing."""

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        """Nothing: no statistics are kept."""

    def direct(self, batch_size: int) -> Direct:
        """See `DirectDensifier.direct`: nothing is wanted of views."""
        return Direct(None, batch_size)

    def after_step(
        self,
        rows: RowOperations,
        *,
        step: int,
        images_before: int,
        images_after: int,
        means_lr: float,
    ) -> Changed:
        """See `Densifier.after_step`. Changes nothing."""
        return Changed()

    def permute(self, order: Tensor) -> None:
        """Nothing: there is no state."""

    def tensors(self) -> dict[str, Tensor]:
        """Empty: there is no state."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Accept the empty state.

        Raises:
            ValueError: it is not empty.
        """
        if tensors:
            raise ValueError(f"tensors must be empty, got {sorted(tensors)}")
