# SPDX-License-Identifier: Apache-2.0
"""Rows that are all on the device: a row's slot is its id, and none comes or goes."""

from __future__ import annotations

from torch import Tensor

from gs_train.rows.device_appearance import DeviceAppearance


class InPlace:
    """What `Residents` is, over rows whose home is the device.

    Attributes:
        loaded, stored: rows that have come and gone: none.
    """

    loaded = stored = 0
    row_bytes = 0

    def __init__(self, appearance: DeviceAppearance) -> None:
        self._appearance = appearance

    @property
    def values(self) -> Tensor:
        """(N, W) rows of ``sh0`` and ``shN``."""
        return self._appearance.values

    def fits(self, n_rows: int) -> bool:
        """Every batch does."""
        return True

    def bring_early(self, ids: Tensor) -> None:
        """Rows are here."""

    def bring(self, ids: Tensor) -> Tensor:
        """(U,) int32 slots of rows: their ids."""
        return ids

    def wake(
        self,
        slots: Tensor,
        ids: Tensor,
        step: int,
        marks: Tensor | None = None,
        counts: Tensor | None = None,
    ) -> None:
        """See `Residents.wake`."""
        self._appearance.wake(ids, step, marks, counts)

    def update(
        self,
        slots: Tensor,
        ids: Tensor,
        gradients: Tensor,
        step: int,
        marks: Tensor | None = None,
    ) -> None:
        """See `Residents.update`."""
        self._appearance.update(ids, gradients, step, marks)

    def come_home(self) -> None:
        """Rows are at home."""

    def forget(self) -> None:
        """Nothing is kept beside the rows."""
