# SPDX-License-Identifier: Apache-2.0
"""What blocks are forecast to move, beside what real stores move."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from block_moves import EPOCHS, Moved, moves
from survey import survey_rows, survey_views

import gs_order
from gs_train.sizing.forecasts.block_bytes import BlockMemory
from gs_train.sizing.forecasts.block_speed import BlockTraffic


def compared(
    folder: Path, n_rows: int, n_views: int, order: str, block_rows: int, shares: tuple
) -> tuple[BlockTraffic, float, Moved]:
    """Of a survey with this share of its blocks on the device, and that one in host memory."""
    views = survey_views(n_views)
    how: dict = {}
    if order == "tiles":
        poses = np.stack([view.viewmat.numpy() for view in views])
        how = {"order": "tiles", "cameras": poses, "tile_views": n_views // 6}
    sampler = gs_order.ViewSampler(n_views, 1, seed=0, n_steps=EPOCHS * n_views, **how)
    n = -(-n_rows // block_rows)
    memory = BlockMemory(int(shares[0] * n), int(shares[1] * n), block_rows)
    return moves(folder / "store", survey_rows(n_rows), views, sampler, memory)


def check(foretold: BlockTraffic, n_bytes: float, real: Moved, factor: float) -> None:
    """That no number is more than ``factor`` times the other; bytes written half as much again,
    for blocks may be written and used again, or read and not changed."""
    pairs = {
        "used": (foretold.used, real.used),
        "loaded": (foretold.loaded, real.loaded),
        "read": (foretold.read, real.read),
        "bytes read": (n_bytes, real.bytes_read),
        "bytes written": (n_bytes, real.bytes_written),
    }
    far = {
        name: (one, other)
        for name, (one, other) in pairs.items()
        if max(one / other, other / one) > factor * (1.5 if "written" in name else 1.0)
    }
    assert not far


@pytest.mark.parametrize("order", ["shuffle", "tiles"])
def test_a_small_survey_moves_about_what_is_foretold(tmp_path: Path, order: str) -> None:
    foretold, n_bytes, real = compared(tmp_path, 60_000, 90, order, 64, (0.1, 0.2))
    check(foretold, n_bytes, real, 2.0)


@pytest.mark.long
@pytest.mark.parametrize("order", ["shuffle", "tiles"])
@pytest.mark.parametrize("block_rows", [64, 256])
@pytest.mark.parametrize("shares", [(0.08, 0.12), (0.15, 0.25), (0.25, 0.45)])
def test_a_survey_moves_about_what_is_foretold(
    tmp_path: Path, order: str, block_rows: int, shares: tuple
) -> None:
    foretold, n_bytes, real = compared(tmp_path, 400_000, 180, order, block_rows, shares)
    check(foretold, n_bytes, real, 1.6)
