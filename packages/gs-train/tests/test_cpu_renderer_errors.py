# SPDX-License-Identifier: Apache-2.0
"""What the CPU renderer refuses, and in which words."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torch import Tensor

from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.protocol import Rect, RenderOptions

sys.path.insert(0, str(Path(__file__).parent))
import random_scenes as scenes

VIEW = scenes.random_view(50, width=150, height=101)
ROWS = {k: v.float() for k, v in scenes.random_rows(50, VIEW, n_rows=600).items()}


@pytest.mark.parametrize(
    "rect", [Rect(-1, 0, 5, 5), Rect(0, 0, 151, 5), Rect(0, 6, 5, 5), Rect(0, 0, 5, 102)]
)
def test_a_rectangle_outside_of_the_view_is_refused(rect):
    splats = CpuRenderer().project(ROWS, VIEW, sh_degree=0)
    with pytest.raises(ValueError, match=r"rect must lie within 150 x 101, got Rect"):
        CpuRenderer().rasterize(splats, rect)


def without_scales(rows: dict[str, Tensor]) -> dict[str, Tensor]:
    return {k: v for k, v in rows.items() if k != "scales"}


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (without_scales, ValueError, r"rows must hold means, .* got none for \['scales'\]"),
        (lambda r: r | {"quats": r["quats"][:, :3]}, ValueError, r"quats must have shape \(600, 4"),
        (
            lambda r: r | {"shN": r["shN"][:, :, :2]},
            ValueError,
            r"shN must have shape \(600, 15, 3",
        ),
        (lambda r: r | {"sh0": r["sh0"].double()}, TypeError, r"sh0 must be torch.float32 on the"),
        (
            lambda r: {k: v.half() for k, v in r.items()},
            TypeError,
            r"rows must be float32 or float",
        ),
    ],
)
def test_rows_of_another_form_are_refused(
    change: Callable[[dict[str, Tensor]], dict[str, Tensor]], error: type, message: str
):
    with pytest.raises(error, match=message):
        CpuRenderer().project(change(ROWS), VIEW, sh_degree=0)


@pytest.mark.parametrize(("sh_degree", "n_bases"), [(4, 15), (-1, 15), (2, 3)])
def test_a_degree_that_the_rows_do_not_hold_is_refused(sh_degree, n_bases):
    rows = ROWS | {"shN": ROWS["shN"][:, :n_bases]}
    with pytest.raises(ValueError, match=rf"sh_degree must be 0 to 3 .* {n_bases} bases"):
        CpuRenderer().project(rows, VIEW, sh_degree=sh_degree)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps2d": 0.0}, "eps2d must be above 0, got 0.0"),
        ({"near": 0.0}, "near must be above 0 and below far, got near=0.0"),
        ({"near": 2.0, "far": 1.0}, "got near=2.0, far=1.0"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        CpuRenderer(RenderOptions(**options))
