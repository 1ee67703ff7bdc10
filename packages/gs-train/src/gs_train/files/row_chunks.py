# SPDX-License-Identifier: Apache-2.0
"""Chunks of Gaussians on their way to a file: the six attributes of some rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

Chunk = Mapping[str, Any]
"""The six attributes of some rows: torch tensors on any device, or numpy arrays."""

HostRows = Mapping[str, np.ndarray]
"""The six attributes of some rows as float32 arrays, in the shapes of :func:`host_rows`."""

CHUNK_ROWS = 65536
"""About 16 MB of a PLY file at spherical-harmonics degree 3."""


def count_of(rows: Chunk) -> int:
    """How many rows a chunk has.

    Raises:
        ValueError: there are no ``means``.
    """
    try:
        return len(rows["means"])
    except KeyError:
        raise ValueError(f"rows must have 'means', got {sorted(rows)}") from None


def bases_of(rows: Chunk) -> int:
    """K of a chunk's ``shN``.

    Raises:
        ValueError: there is no ``shN``, or its shape is none of harmonics up to degree 3.
    """
    shape = tuple(rows["shN"].shape) if "shN" in rows else None
    if shape is None or len(shape) != 3 or shape[1] not in (0, 3, 8, 15) or shape[2] != 3:
        raise ValueError(f"shN must be (N, K, 3) with K = 0, 3, 8 or 15, got {shape}")
    return shape[1]


def pieces_of(rows: Chunk, chunk_rows: int) -> Iterator[Chunk]:
    """A chunk in pieces of at most ``chunk_rows`` rows; no piece for a chunk without rows."""
    for start in range(0, count_of(rows), chunk_rows):
        yield {name: values[start : start + chunk_rows] for name, values in rows.items()}


def host_rows(rows: Chunk, n_bases: int) -> HostRows:
    """A chunk as float32 arrays on the host.

    Returns:
        ``means`` (n, 3), ``scales`` (n, 3) log, ``quats`` (n, 4) w x y z, ``opacities`` (n,)
        logit, ``sh0`` (n, 1, 3), ``shN`` (n, n_bases, 3).

    Raises:
        ValueError: an attribute is missing or has another shape.
    """
    n = count_of(rows)
    shapes = {
        "means": (n, 3),
        "scales": (n, 3),
        "quats": (n, 4),
        "opacities": (n,),
        "sh0": (n, 1, 3),
        "shN": (n, n_bases, 3),
    }
    values = {}
    for name, shape in shapes.items():
        got = tuple(rows[name].shape) if name in rows else None
        if got != shape:
            raise ValueError(f"{name} must have shape {shape}, got {got}")
        values[name] = _on_host(rows[name])
    return values


def finite_rows(rows: HostRows) -> np.ndarray:
    """(n,) bool: rows without a value that is NaN or infinite."""
    finite = np.ones(len(rows["means"]), bool)
    for values in rows.values():
        finite &= np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
    return finite


def taken(rows: HostRows, keep: np.ndarray) -> HostRows:
    """The rows of an (n,) bool mask; without a copy where the mask has all rows."""
    return rows if keep.all() else {name: values[keep] for name, values in rows.items()}


def _on_host(values: Any) -> np.ndarray:
    if isinstance(values, Tensor):
        values = values.detach().cpu().float().numpy()
    return np.asarray(values, np.float32)
