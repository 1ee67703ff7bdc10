# SPDX-License-Identifier: Apache-2.0
"""Gaussians as tests write them to files: rows, chunks of rows, and what is known of rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gs_train.files.row_file import RowFormat, Written, write_rows
from gs_train.files.survey import survey_rows

K = {0: 0, 1: 3, 2: 8, 3: 15}
"""K of shN by degree."""


def rows_of(n: int, degree: int, seed: int = 0) -> dict[str, Tensor]:
    """Rows as a trained scene has them, within the ranges of SPZ."""
    draw = torch.Generator().manual_seed(seed)
    k = K[degree]
    return {
        "means": 3 * torch.randn(n, 3, generator=draw),
        "scales": torch.randn(n, 3, generator=draw) - 4,
        "quats": torch.randn(n, 4, generator=draw),
        "opacities": 2 * torch.randn(n, generator=draw),
        "sh0": torch.rand(n, 1, 3, generator=draw) * 6 - 3,
        "shN": torch.rand(n, k, 3, generator=draw) * 1.9 - 0.95,
    }


def chunks_of(rows: dict[str, Tensor], size: int) -> Iterator[dict[str, Tensor]]:
    """At least one chunk, which may be empty."""
    for start in range(0, max(len(rows["means"]), 1), size):
        yield {name: values[start : start + size] for name, values in rows.items()}


def write(
    path: Path, rows: dict[str, Tensor], form: RowFormat, *, size: int = 1000, **options: Any
) -> Written:
    """Survey and write rows in chunks of a size."""
    survey = survey_rows(chunks_of(rows, size), crop=options.get("crop"))
    return write_rows(
        path,
        chunks_of(rows, size),
        form=form,
        n_rows=len(rows["means"]),
        survey=survey,
        **options,
    )
