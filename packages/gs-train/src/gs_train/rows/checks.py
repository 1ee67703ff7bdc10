# SPDX-License-Identifier: Apache-2.0
"""Checks of rows and of row ids."""

from __future__ import annotations

import torch
from torch import Tensor

from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import NAMES, SH_DEGREES, SHAPES


def check_rows(rows: Rows, names: tuple[str, ...] = NAMES) -> None:
    """Check that rows are these attributes, float32, of the right widths and of one length.

    Raises:
        TypeError: an attribute is not float32.
        ValueError: names or shapes are others.
    """
    if set(rows) != set(names) or not set(names) <= set(NAMES):
        expected = names if set(names) <= set(NAMES) else NAMES
        raise ValueError(f"rows must have the keys {', '.join(expected)}, got {', '.join(rows)}")
    for name, values in rows.items():
        if values.dtype != torch.float32:
            raise TypeError(f"{name} must be float32, got {values.dtype}")
        if name == "shN":
            is_right = values.ndim == 3 and values.shape[1] in SH_DEGREES and values.shape[2] == 3
            shape = "(N, K, 3) with K = 0, 3, 8 or 15"
        else:
            is_right = values.ndim > 0 and tuple(values.shape[1:]) == SHAPES[name]
            shape = f"(N{''.join(f', {width}' for width in SHAPES[name]) or ','})"
        if not is_right:
            raise ValueError(f"{name} must be {shape}, got {tuple(values.shape)}")
    lengths = {name: len(values) for name, values in rows.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"rows must have equal lengths, got {lengths}")


def check_overwriting(rows: Rows, names: tuple[str, ...], *, n_rows: int, k: int) -> None:
    """Check values of any of the attributes ``names`` for ``n_rows`` rows.

    Raises:
        TypeError, ValueError: other names, types or shapes.
    """
    check_rows(rows, tuple(rows))
    if not set(rows) <= set(names):
        raise ValueError(f"rows must have keys among {', '.join(names)}, got {', '.join(rows)}")
    for name, values in rows.items():
        expected = (n_rows, k, 3) if name == "shN" else (n_rows, *SHAPES[name])
        if tuple(values.shape) != expected:
            raise ValueError(f"{name} must be {expected}, got {tuple(values.shape)}")


def check_ids(ids: Tensor, device: torch.device, *, name: str = "ids") -> None:
    """Check that ids are (R,) int32 or int64 on a kind of device, whatever their values."""
    if ids.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} must be int32 or int64, got {ids.dtype}")
    if ids.ndim != 1:
        raise ValueError(f"{name} must be one-dimensional, got {tuple(ids.shape)}")
    if ids.device.type != device.type:
        raise ValueError(f"{name} must be on {device}, got {ids.device}")


def check_range(low: int, high: int, n_rows: int) -> None:
    """Check the lowest and the highest of some ids."""
    if low < 0 or high >= n_rows:
        bad = low if low < 0 else high
        raise IndexError(f"ids must be at least 0 and below {n_rows}, got {bad}")


def check_sorted(ids: Tensor, n_rows: int, device: torch.device, *, wait: bool) -> None:
    """Check that ids are rows, sorted and unique.

    Args:
        ids: (R,) tensor.
        n_rows: N.
        device: where ids belong.
        wait: look at values on a GPU too, which makes the host wait for it.
    """
    check_ids(ids, device)
    if len(ids) == 0 or (ids.device.type != "cpu" and not wait):
        return
    if not bool((ids[1:] > ids[:-1]).all()):
        at = int((ids[1:] <= ids[:-1]).nonzero()[0]) + 1
        raise ValueError(
            f"ids must be sorted and unique, got {int(ids[at])} after {int(ids[at - 1])}"
        )
    check_range(int(ids[0]), int(ids[-1]), n_rows)


def check_slice(ids: slice, n_rows: int) -> tuple[int, int]:
    """First and end of a slice of step 1.

    Raises:
        ValueError: another step.
    """
    first, end, stride = ids.indices(n_rows)
    if stride != 1:
        raise ValueError(f"ids must be a slice of step 1, got step {stride}")
    return first, max(first, end)


def check_permutation(order: Tensor, n_rows: int, device: torch.device) -> None:
    """Check that ``order`` is (N,) int32 or int64 and holds each row once. Synchronises."""
    check_ids(order, device, name="order")
    if len(order) != n_rows:
        raise ValueError(f"order must be a permutation of {n_rows} rows, got {len(order)} ids")
    is_there = torch.zeros(n_rows, dtype=torch.bool, device=order.device)
    in_range = n_rows == 0 or (int(order.min()) >= 0 and int(order.max()) < n_rows)
    if in_range:
        is_there.index_fill_(0, order.long(), True)
    if not in_range or not bool(is_there.all()):
        raise ValueError(f"order must be a permutation of {n_rows} rows, got repeated or other ids")
