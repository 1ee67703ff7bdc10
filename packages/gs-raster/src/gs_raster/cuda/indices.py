# SPDX-License-Identifier: Apache-2.0
"""Indices are trusted unless GS_CHECK_INDEX=1: a look at them waits for the device."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_raster import _core


def check_indices(name: str, indices: Tensor, n: int | None, *, distinct: bool) -> None:
    """Look at indices where ``GS_CHECK_INDEX=1`` asks for it. Waits for the device once.

    Args:
        name: of the argument, for errors.
        indices: (R,) int32.
        n: indices must lie in [0, n); None: at least 0.
        distinct: no index may occur twice.

    Raises:
        IndexError: an index is out of range.
        ValueError: an index occurs twice.
    """
    if not _core.looks_at_indices() or not len(indices):
        return
    ordered = indices.detach().long().sort().values
    twice = torch.zeros_like(ordered, dtype=torch.bool)
    twice[1:] = ordered[1:] == ordered[:-1]
    first = twice.long().argmax()
    facts = torch.stack([ordered[0], ordered[-1], twice.sum(), ordered[first]])
    least, most, n_twice, value = facts.tolist()
    wrong = least if least < 0 else most
    if least < 0 or (n is not None and most >= n):
        bounds = "at least 0" if n is None else f"in [0, {n})"
        raise IndexError(f"{name} must be {bounds}, got {wrong}")
    if distinct and n_twice:
        raise ValueError(f"{name} must be distinct, got {value} twice")


def check_keys(keys: Tensor) -> None:
    """:func:`check_indices` of keys that are at least 0 and distinct, but for any number of -1."""
    if _core.looks_at_indices():
        check_indices("keys", keys[keys != -1], None, distinct=True)
