# SPDX-License-Identifier: Apache-2.0
"""Rows of Gaussians in the tables that they live in, and where their gradients go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import check
from gs_raster.cuda.columns import SHAPES, check_columns, column_addresses
from gs_raster.cuda.indices import check_indices

MAX_ROWS = 2**31 - 2


@dataclass(frozen=True, eq=False)
class Rows:
    """R Gaussians' stored attributes, float32 on one device.

    Each attribute's rows are contiguous; from row to row there may be any pitch, so that an
    attribute may be columns of a wider table.

    Attributes:
        means: (N, 3).
        scales: (N, 3) logarithms.
        quats: (N, 4) w x y z of any length but 0.
        opacities: (N,) logits.
        sh0: (N, 1, 3).
        shN: (N, K, 3), K = 0, 3, 8 or 15.
        slots: (R,) int32, ``0 <= slots < N``: row i is in slot ``slots[i]`` of every attribute,
            which may then have different N. None: row i is in slot i, and R is N.
        sh_slots: (R,) int32, with ``slots`` alone: row i of ``sh0`` and ``shN`` is in slot
            ``sh_slots[i]`` of these two. None: where the other attributes are.

    Raises:
        TypeError: a dtype differs.
        ValueError: a shape or device differs, or a row has gaps.
        IndexError: a slot is out of range, with ``GS_CHECK_INDEX=1`` alone.
    """

    means: Tensor
    scales: Tensor
    quats: Tensor
    opacities: Tensor
    sh0: Tensor
    shN: Tensor  # noqa: N815 (gsplat's name)
    slots: Tensor | None = None
    sh_slots: Tensor | None = None
    _native: _core.RowsAt | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_columns(self.columns)
        if self.slots is not None:
            self._check_slots(self.slots)
        elif self.sh_slots is not None:
            raise ValueError("sh_slots must come with slots, got slots=None")
        else:
            for name, tensor in self.columns.items():
                if len(tensor) != len(self.means):
                    raise ValueError(
                        f"{name} must have as many rows as means, {len(self.means)}, got "
                        f"{len(tensor)}"
                    )
        if self.n > MAX_ROWS:
            raise ValueError(f"rows must be fewer than 2^31 - 1, got {self.n}")

    @staticmethod
    def of(
        columns: Mapping[str, Tensor],
        slots: Tensor | None = None,
        sh_slots: Tensor | None = None,
    ) -> Rows:
        """Rows of a mapping with the six names.

        Raises:
            ValueError: a name is missing.
        """
        missing = [name for name in SHAPES if name not in columns]
        if missing:
            raise ValueError(f"rows must hold {', '.join(SHAPES)}, got none for {missing}")
        return Rows(**{name: columns[name] for name in SHAPES}, slots=slots, sh_slots=sh_slots)

    @property
    def columns(self) -> dict[str, Tensor]:
        """The six attributes by name."""
        return {name: getattr(self, name) for name in SHAPES}

    @property
    def n(self) -> int:
        """R."""
        return (self.means if self.slots is None else self.slots).shape[0]

    @property
    def n_bases(self) -> int:
        """K."""
        return self.shN.shape[1]

    def native(self) -> _core.RowsAt:
        """For the native functions."""
        if self._native is not None:
            return self._native
        slots = 0 if self.slots is None else self.slots.data_ptr()
        sh_slots = slots if self.sh_slots is None else self.sh_slots.data_ptr()
        return _core.RowsAt(self.n, slots, sh_slots, column_addresses(self.columns), self.n_bases)

    def facts(self) -> dict[str, Any]:
        """What `CheckCache` gives to rows of the same tensors."""
        return {"_native": self.native()}

    def _check_slots(self, slots: Tensor) -> None:
        lengths = {name: tensor.shape[0] for name, tensor in self.columns.items()}
        of_sh = min(lengths.pop("sh0"), lengths.pop("shN"))
        check("slots", slots, (-1,), torch.int32, self.means.device)
        n_slots = min(lengths.values())
        if self.sh_slots is None:
            n_slots = min(n_slots, of_sh)
        else:
            check("sh_slots", self.sh_slots, slots.shape, torch.int32, self.means.device)
            check_indices("sh_slots", self.sh_slots, of_sh, distinct=False)
        check_indices("slots", slots, n_slots, distinct=False)


@dataclass(frozen=True, eq=False)
class RowGradients:
    """d loss / d row, the six attributes as in :class:`Rows`, each with its own pitch.

    Attributes:
        means, scales, quats, opacities, sh0, shN: (P, ...) float32 on one device.

    Raises:
        TypeError: a dtype differs.
        ValueError: a shape or device differs, a row has gaps, or rows overlap.
    """

    means: Tensor
    scales: Tensor
    quats: Tensor
    opacities: Tensor
    sh0: Tensor
    shN: Tensor  # noqa: N815 (gsplat's name)
    _n: int | None = field(default=None, init=False, repr=False)
    _native: dict[tuple[int, int, bool], _core.RowGradientsAt] | None = field(
        default=None, init=False, repr=False
    )

    def __post_init__(self) -> None:
        check_columns(self.columns, prefix="out.", written=SHAPES)

    @staticmethod
    def empty(n: int, n_bases: int, device: torch.device) -> RowGradients:
        """n rows of any values."""

        def made(name: str, shape: tuple[int, ...]) -> Tensor:
            shape = (n_bases, 3) if name == "shN" else shape
            return torch.empty((n, *shape), dtype=torch.float32, device=device)

        return RowGradients(**{name: made(name, shape) for name, shape in SHAPES.items()})

    @property
    def columns(self) -> dict[str, Tensor]:
        """The six attributes by name."""
        return {name: getattr(self, name) for name in SHAPES}

    @property
    def n(self) -> int:
        """P, of the shortest attribute."""
        if self._n is not None:
            return self._n
        return min(tensor.shape[0] for tensor in self.columns.values())

    def native(self, places: Tensor | None, *, add: bool, skip: int = 0) -> _core.RowGradientsAt:
        """For the native functions. ``skip``: address of an int32; nothing is added where that is
        not 0."""
        at = 0 if places is None else places.data_ptr()
        known = None if self._native is None else self._native.get((skip, at, add))
        if known is not None:
            return known
        made = _core.RowGradientsAt(skip, at, add, column_addresses(self.columns))
        if self._native is not None:
            self._native.clear()  # of places that are gone
            self._native[skip, at, add] = made
        return made

    def facts(self) -> dict[str, Any]:
        """What `CheckCache` gives to gradients in the same tensors."""
        return {"_n": self.n, "_native": {}}
