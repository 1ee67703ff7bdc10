# SPDX-License-Identifier: Apache-2.0
"""Memory for state: in large pages, and laid out as the parameters are."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from gs_adam import _core

LARGE = 8 << 20
"""Bytes from which large pages are asked for."""


def empty(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """As torch.empty on the CPU, in large pages where the system has them.

    Rows far apart otherwise each cost a walk through the page tables.
    """
    tensor = torch.empty(tuple(shape), dtype=dtype, device="cpu")
    if tensor.nbytes >= LARGE:
        _core.prefer_huge_pages(tensor.data_ptr(), tensor.nbytes)
    return tensor


def zeros(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """As torch.zeros, by `empty`."""
    return empty(shape, dtype).zero_()


def select(tensor: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Rows of a tensor, by `empty`."""
    chosen = empty((len(ids), *tensor.shape[1:]), tensor.dtype)
    return torch.index_select(tensor, 0, ids, out=chosen)


def zeros_like_rows(params: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """One tensor of zeros a parameter, of its shape; columns of one table where parameters are."""
    made = []
    for run in _tables(params):
        table = zeros((len(run[0]), sum(_width(p) for p in run)))
        made += _columns(table, run)
    return made


def edit_tables(
    tensors: Sequence[torch.Tensor], edit: Callable[[torch.Tensor], torch.Tensor]
) -> list[torch.Tensor]:
    """What ``edit`` makes of the rows of each tensor; columns of one table stay so."""
    edited = []
    for run in _tables(tensors):
        if len(run) == 1:
            edited.append(edit(run[0]))
            continue
        first = run[0]
        width = sum(_width(t) for t in run)
        table = first.as_strided((len(first), width), (first.stride(0), 1))
        edited += _columns(edit(table), run)
    return edited


def _width(tensor: torch.Tensor) -> int:
    return tensor[0].numel() if len(tensor) else 0


def _tables(tensors: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Runs of tensors that lie side by side in the rows of one table."""
    runs: list[list[torch.Tensor]] = []
    for tensor in tensors:
        if runs and _is_beside(runs[-1], tensor):
            runs[-1].append(tensor)
        else:
            runs.append([tensor])
    return runs


def _is_beside(run: list[torch.Tensor], tensor: torch.Tensor) -> bool:
    if len(tensor) != len(run[0]) or len(tensor) < 2:
        return False
    # Of one allocation, or the address beside would be chance.
    if tensor.untyped_storage().data_ptr() != run[0].untyped_storage().data_ptr():
        return False
    stride = run[0].stride(0)
    width = sum(_width(t) for t in run)
    return (
        tensor.stride(0) == stride
        and tensor.data_ptr() == run[0].data_ptr() + 4 * width
        and width + _width(tensor) <= stride
    )


def _columns(table: torch.Tensor, run: list[torch.Tensor]) -> list[torch.Tensor]:
    if len(run) == 1:
        return [table.view(run[0].shape)]
    columns, first = [], 0
    for tensor in run:
        last = first + _width(tensor)
        columns.append(table[:, first:last].unflatten(1, tensor.shape[1:] or (1,)))
        if tensor.ndim == 1:
            columns[-1] = columns[-1][:, 0]
        first = last
    return columns
