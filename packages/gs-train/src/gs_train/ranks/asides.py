# SPDX-License-Identifier: Apache-2.0
"""Integers that travel with the gather that each batch begins with, so that they cost none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gs_train.world.protocol import Ints


class Aside(Protocol):
    """What a rank tells all others once a batch."""

    def words(self) -> Sequence[int] | Ints:
        """What this rank has to tell; of the same length on all ranks, and told once."""
        ...

    def take(self, table: Ints) -> None:
        """Take what all ranks have told: a row of `words` for each rank."""
        ...
