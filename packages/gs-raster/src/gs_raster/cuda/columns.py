# SPDX-License-Identifier: Apache-2.0
"""The six attributes of Gaussians as columns of tables: equal rows, each with a pitch."""

from __future__ import annotations

from collections.abc import Mapping

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
    columns: Mapping[str, Tensor], *, prefix: str = "", written: bool = False
) -> None:
    """Check the six attributes.

    Args:
        columns: float32 tensors on one device; (slots, ...) each, whose rows are contiguous and may
            lie apart by any pitch.
        prefix: of the names in errors.
        written: rows must not overlap.

    Raises:
        TypeError: a dtype differs.
        ValueError: a shape or the device differs, or a row has gaps.
    """
    device = columns["means"].device if isinstance(columns["means"], Tensor) else None
    for name, row in SHAPES.items():
        tensor, called = columns[name], prefix + name
        check_kind(called, tensor, (-1, *row), torch.float32, device or torch.device("cpu"))
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
    """Address and pitch of each attribute, for the native functions."""
    return [(columns[name].data_ptr(), columns[name].stride(0)) for name in SHAPES]
