# SPDX-License-Identifier: Apache-2.0
"""An inflated set holds whatever any movement within its bounds makes visible."""

from __future__ import annotations

import dataclasses
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

import gs_cull

from .oracle import random_scene

# Needles and flakes whose compensation rounding alone brings above 1 once they have moved.
_NEEDLES: dict[str, Any] = {
    "means": 0.0,
    "scales": 0.01,
    "quats": 0.0,
    "opacities": 0.0,
    "camera_model": "ortho",
    "antialiased": True,
    "activated": True,
    "with_blocks": False,
}


@example(seed=333, **_NEEDLES)
@example(seed=5, **_NEEDLES)
@example(seed=55, **_NEEDLES)
@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    means=st.sampled_from([0.0, 1e-3, 0.1, 1.0]),
    scales=st.sampled_from([0.0, 0.01, 0.5]),
    quats=st.sampled_from([0.0, 0.01, 0.3]),
    opacities=st.sampled_from([0.0, 0.05, 1.0]),
    camera_model=st.sampled_from(["pinhole", "ortho", "fisheye"]),
    antialiased=st.booleans(),
    activated=st.booleans(),
    with_blocks=st.booleans(),
)
def test_moved_rows_are_in_the_inflated_set(
    seed: int,
    means: float,
    scales: float,
    quats: float,
    opacities: float,
    camera_model: Any,
    antialiased: bool,
    activated: bool,
    with_blocks: bool,
) -> None:
    scene = random_scene(seed, 1_500, 4, log_scale=(-3.0, 1.5))
    scene.quats *= np.float32(0.7)
    if activated:
        scene.scales = np.exp(scene.scales)
        scene.opacities = 1 / (1 + np.exp(-scene.opacities))
    rng = np.random.default_rng(seed)

    def step(array: np.ndarray, reach: float) -> np.ndarray:
        # Half of the components go to the limit, whose own rounding stays within 0.9999 of it.
        part = np.where(
            rng.random(array.shape) < 0.5,
            rng.choice([-1, 1], array.shape),
            rng.uniform(-1, 1, array.shape),
        )
        return (array + np.float32(reach * 0.9999) * part).astype(np.float32)

    moved = dataclasses.replace(
        scene,
        means=step(scene.means, means),
        scales=step(scene.scales, scales),
        quats=step(scene.quats, quats),
        opacities=step(scene.opacities, opacities),
    )
    options: dict[str, Any] = {
        "camera_model": camera_model,
        "antialiased": antialiased,
        "activated": activated,
    }
    inflate = gs_cull.Inflate(means=means, scales=scales, quats=quats, opacities=opacities)
    blocks = None
    if with_blocks:
        blocks = gs_cull.Blocks.build(
            scene.means, scene.scales, scene.quats, block_size=32, activated=activated
        )
    before = gs_cull.cull(
        *scene.arguments, opacities=scene.opacities, inflate=inflate, blocks=blocks, **options
    )
    after = gs_cull.cull(*moved.arguments, opacities=moved.opacities, **options)
    for view in range(4):
        assert np.isin(after.view(view), before.view(view)).all()


def test_small_inflation_adds_few_rows() -> None:
    scene = random_scene(1, 20_000, 4, log_scale=(-4.0, 1.0))
    exact = gs_cull.cull(*scene.arguments, opacities=scene.opacities)
    # What one step of Adam moves at common learning rates.
    step = gs_cull.Inflate(means=1e-3, scales=0.035, quats=0.007, opacities=0.35)
    wide = gs_cull.cull(*scene.arguments, opacities=scene.opacities, inflate=step)
    assert np.isin(exact.ids, wide.ids).all()
    assert len(exact) < len(wide) < 1.1 * len(exact)


def test_bounds_that_are_no_bounds_are_refused() -> None:
    for value in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match=f"inflate.quats must be finite .* got {value}"):
            gs_cull.Inflate(quats=value)
