# SPDX-License-Identifier: Apache-2.0
"""The six attributes of Gaussians as columns of tables: equal rows, each with a pitch."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from gs_raster.cuda.addresses import check_alignment, check_kind

SHAPES: Mapping[str, tuple[int, ...]] = {
    "means": (3,),
    "scales": (3,),
    "quats": (4,),
    "opacities": (),
    "sh0": (1, 3),
    "shN": (-1, 3),
}
"""Shape of one row of each attribute, in the order of the native functions."""

BASES = (0, 3, 8, 15)
"""Spherical harmonics without the constant one, by degree."""


def check_columns(
    columns: Mapping[str, Tensor], *, prefix: str = "", written: Collection[str] = ()
) -> None:
    """Check the six attributes, or means and some of the others.

    Args:
        columns: float32 tensors on one device; (slots, ...) each, whose rows are contiguous and may
            lie apart by any pitch.
        prefix: of the names in errors.
        written: attributes whose rows must not overlap.

    Raises:
        TypeError: a dtype differs.
        ValueError: a shape or the device differs, or a row has gaps.
    """
    means = columns["means"]
    device = means.device if isinstance(means, Tensor) else torch.device("cpu")
    for name, tensor in columns.items():
        row = SHAPES[name]
        if not _is_plain(tensor, name, row, device):
            _check_column(tensor, prefix + name, name, row, device, written=name in written)


def _is_plain(tensor: Tensor, name: str, row: tuple[int, ...], device: torch.device) -> bool:
    """Whether a column is contiguous, and all that it must be: what most are, told soon."""
    if not isinstance(tensor, Tensor) or tensor.dtype is not torch.float32:
        return False
    shape = tensor.shape
    if name == "shN":
        is_shaped = len(shape) == 3 and shape[2] == 3 and shape[1] in BASES
    else:
        is_shaped = shape[1:] == row and len(shape) > 0
    return (
        is_shaped
        and tensor.is_contiguous()
        and tensor.device == device
        and tensor.data_ptr() % 4 == 0
    )


def _check_column(
    tensor: Tensor,
    called: str,
    name: str,
    row: tuple[int, ...],
    device: torch.device,
    *,
    written: bool,
) -> None:
    """See :func:`check_columns`."""
    check_kind(called, tensor, (-1, *row), torch.float32, device)
    if name == "shN" and tensor.shape[1] not in BASES:
        raise ValueError(f"{called} must have 0, 3, 8 or 15 bases, got {tensor.shape[1]}")
    shape, strides = tensor.shape, tensor.stride()
    width = 1  # of a row, in floats
    has_gaps = False
    for n, stride in zip(reversed(shape[1:]), reversed(strides[1:]), strict=True):
        has_gaps |= n > 1 and stride != width
        width *= n
    if has_gaps and width and shape[0]:
        raise ValueError(f"{called} must have contiguous rows, got strides {tuple(strides)}")
    if written and shape[0] > 1 and strides[0] < width:
        raise ValueError(
            f"{called} must have rows that do not overlap, got strides {tuple(strides)}"
        )
    check_alignment(called, tensor)


def column_addresses(columns: Mapping[str, Tensor]) -> list[tuple[int, int]]:
    """Address and pitch of each attribute for the native functions, which take them in the order of
    `SHAPES`: so must the mapping be."""
    return [(tensor.data_ptr(), tensor.stride(0)) for tensor in columns.values()]
