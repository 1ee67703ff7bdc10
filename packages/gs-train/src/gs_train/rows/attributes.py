# SPDX-License-Identifier: Apache-2.0
"""The stored attributes of a row: names, shapes, groups, and columns of a table."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from torch import Tensor

from gs_train.renderers.protocol import ATTRIBUTES

NAMES = ATTRIBUTES
"""The stored attributes, in the order that everything lists them in."""

GEOMETRY, APPEARANCE = NAMES[:4], NAMES[4:]
"""The two groups: what culling needs, and the harmonics ``sh0`` and ``shN``."""

SHAPES: dict[str, tuple[int, ...]] = {
    "means": (3,),
    "scales": (3,),
    "quats": (4,),
    "opacities": (),
    "sh0": (1, 3),
}
"""Of one row, without ``shN``, whose shape (K, 3) depends on the degree."""

SH_DEGREES = {0: 0, 3: 1, 8: 2, 15: 3}
"""Degree of spherical harmonics by K, the width of ``shN``."""

GEOMETRY_WIDTH = sum(math.prod(SHAPES[name]) for name in GEOMETRY)
"""Floats of a row's geometry."""

ADAM_EPS = 1e-15
"""Epsilon of Adam for every attribute: far below any gradient, as in 3D Gaussian Splatting."""

Semantics = Literal["dense", "deferred", "sparse"]
"""Which rows an optimizer steps: all; those in use, the others later to the same end; or those in
use only."""


def appearance_width(sh_degree: int) -> int:
    """Floats of a row's appearance, 3 + 3K."""
    return 3 * (sh_degree + 1) ** 2


def row_shapes(k: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one row's attributes by name, in their order."""
    return {**SHAPES, "shN": (k, 3)}


def appearance_shapes(k: int) -> dict[str, tuple[int, ...]]:
    """Shapes of one row's ``sh0`` and ``shN`` in the order in which they lie in the row."""
    return {name: row_shapes(k)[name] for name in APPEARANCE}


def columns(rows: Tensor) -> dict[str, Tensor]:
    """Views of ``sh0`` (R, 1, 3) and ``shN`` (R, K, 3) in rows of 3 + 3K floats, (R, 3 + 3K)."""
    n, width = rows.shape
    return {"sh0": rows[:, :3].view(n, 1, 3), "shN": rows[:, 3:].view(n, width // 3 - 1, 3)}


def host_columns(rows: np.ndarray) -> list[np.ndarray]:
    """The same two of rows on the host, as a worker takes them: numpy's views cost a fraction of
    torch's."""
    n, width = rows.shape
    return [rows[:, np.newaxis, :3], rows[:, 3:].reshape(n, width // 3 - 1, 3)]
