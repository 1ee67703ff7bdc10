# SPDX-License-Identifier: Apache-2.0
"""What rows in host memory ask of whoever has some of them on the device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from torch import Tensor

from gs_train.rows.replacement import Replacement

Edit = Callable[[slice, list[Tensor]], None]
"""Changes the rows ``part`` of those that are edited: (P, W) values and both moments."""


class Away(Protocol):
    """Rows that are on the device and newer there. Some rows are read and edited where they are;
    what concerns all rows is done at home."""

    @property
    def is_open(self) -> bool:
        """Whether rows are on the device, or may be: else the tables hold everything."""
        ...

    def read_rows(self, ids: Tensor) -> Tensor:
        """(R, W) present values of rows, in a tensor of their own; nothing is changed.

        Args:
            ids: (R,) sorted and unique.
        """
        ...

    def edit(self, ids: Tensor, change: Edit) -> None:
        """Change rows in the tables and where they are on the device; they sleep no more.

        Args:
            ids: (R,) sorted and unique.
            change: called with pieces of them.
        """
        ...

    def replace(self, change: Replacement, values: Tensor) -> None:
        """Follow rows that have been replaced in the tables.

        Args:
            change: what has been done there.
            values: (A, W) of the new rows.
        """
        ...

    def come_home(self) -> None:
        """Write them to the tables and wait; the copies on the device stay good."""
        ...

    def forget(self) -> None:
        """The tables are about to change: the copies on the device are no longer good."""
        ...
