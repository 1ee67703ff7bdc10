# SPDX-License-Identifier: Apache-2.0
"""Rows of Gaussians in the tables that they live in, and where their gradients go."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gs_raster import _core
from gs_raster.cuda.addresses import check
from gs_raster.cuda.columns import SHAPES, check_columns, column_addresses
from gs_raster.cuda.indices import check_indices

MAX_ROWS = 2**31 - 2


class _Tables(NamedTuple):
    """What is known of tables, whichever of their rows are drawn.

    Attributes:
        addresses: of each attribute, with its pitch.
        n_geometry, n_sh: rows of the shortest attribute of each.
    """

    addresses: list[tuple[int, int]]
    n_geometry: int
    n_sh: int

    @classmethod
    def of(cls, columns: Mapping[str, Tensor]) -> _Tables:
        lengths = {name: tensor.shape[0] for name, tensor in columns.items()}
        n_sh = min(lengths.pop("sh0"), lengths.pop("shN"))
        return cls(column_addresses(columns), min(lengths.values()), n_sh)


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
    _tables: _Tables | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        check_columns(self.columns)
        self.check_slots()

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
        slots = 0 if self.slots is None else self.slots.data_ptr()
        sh_slots = slots if self.sh_slots is None else self.sh_slots.data_ptr()
        addresses = self._of_tables().addresses
        return _core.RowsAt(self.n, slots, sh_slots, addresses, self.n_bases)

    def facts(self) -> dict[str, Any]:
        """What `CheckCache` gives to rows of the same tables."""
        return {"_tables": self._of_tables()}

    def check_slots(self) -> None:
        """Check all but the tables, see `Rows`."""
        if self.slots is None:
            self._check_equally_long()
        else:
            self._check_slots(self.slots)
        if self.n > MAX_ROWS:
            raise ValueError(f"rows must be fewer than 2^31 - 1, got {self.n}")

    def _check_slots(self, slots: Tensor) -> None:
        device, sh_slots = self.means.device, self.sh_slots
        check("slots", slots, (-1,), torch.int32, device)
        if sh_slots is not None and sh_slots is not slots:
            check("sh_slots", sh_slots, slots.shape, torch.int32, device)
        if not _core.looks_at_indices():
            return
        tables = self._of_tables()
        n_slots = tables.n_geometry
        if sh_slots is None:
            n_slots = min(n_slots, tables.n_sh)
        else:
            check_indices("sh_slots", sh_slots, tables.n_sh, distinct=False)
        check_indices("slots", slots, n_slots, distinct=False)

    def _check_equally_long(self) -> None:
        if self.sh_slots is not None:
            raise ValueError("sh_slots must come with slots, got slots=None")
        n = self.means.shape[0]
        for name, tensor in self.columns.items():
            if tensor.shape[0] != n:
                raise ValueError(
                    f"{name} must have as many rows as means, {n}, got {tensor.shape[0]}"
                )

    def _of_tables(self) -> _Tables:
        return _Tables.of(self.columns) if self._tables is None else self._tables


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
    _addresses: list[tuple[int, int]] | None = field(default=None, init=False, repr=False)
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
        addresses = self._addresses
        if addresses is None:
            addresses = column_addresses(self.columns)
        made = _core.RowGradientsAt(skip, at, add, addresses)
        if self._native is not None:
            self._native.clear()  # of places that are gone
            self._native[skip, at, add] = made
        return made

    def facts(self) -> dict[str, Any]:
        """What `CheckCache` gives to gradients in the same tensors."""
        columns = self.columns
        n = min(tensor.shape[0] for tensor in columns.values())
        return {"_n": n, "_addresses": column_addresses(columns), "_native": {}}
