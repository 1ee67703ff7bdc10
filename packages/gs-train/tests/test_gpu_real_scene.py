# SPDX-License-Identifier: Apache-2.0
"""gs-raster on a scene that was trained from photographs, beside float64 and beside gsplat.

Where an alpha, a transmittance or an extent is at its threshold, rounding adds a splat to a pixel
or takes one away: few pixels, by little. The capture is not in this repository; GS_DATA names its
folder.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import gs_raster
import gs_raster.torch
import gs_train
from gs_raster import Options, Rect, cpu
from gs_train.data.capture import load_capture
from gs_train.options.config import FitConfig
from gs_train.renderers import View
from gs_train.scene.scene import Scene

CALITERRA = (
    Path(os.environ.get("GS_DATA", Path(__file__).resolve().parents[4] / "shared/data"))
    / "caliterra"
)
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not CALITERRA.is_dir(), reason=f"needs {CALITERRA} (set GS_DATA)"),
]

CLOSE = 1e-5
"""How near pixels are, but at thresholds."""

FEW = 1e-3
"""Share of the pixels that may be at a threshold."""

LEAST_ALPHA = 1 / 255
"""What a splat adds to a pixel at most where its alpha is at the threshold."""

GRADIENTS = {
    "means2d": slice(0, 2),
    "conics": slice(2, 5),
    "opacities": 5,
    "colors": slice(6, 9),
    "depths": 9,
}
"""Where gs-raster has them."""

MODES = pytest.mark.parametrize("mode", ["classic", "antialiased"])
Trained = tuple[dict[str, Tensor], list[View]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """Rows of a short training on the device, and some of the views that they were trained on."""
    folder = tmp_path_factory.mktemp("trained")
    config = FitConfig(data=CALITERRA, out=folder / "run", steps=1500, checkpoint_every=0)
    rows = gs_train.fit(config).rows(frame="trained")
    scene = Scene.load(load_capture(CALITERRA, cache_dir=folder), torch.device("cuda:0"))
    return {name: values.cuda() for name, values in rows.items()}, list(scene.views[::20])


@MODES
def test_pixels_and_gradients_equal_those_of_float64_from_the_same_splats(
    trained: Trained, mode: str
) -> None:
    rows, views = trained
    for view in views[:2]:
        seen = gs_raster.View(view.viewmat, view.K, view.width, view.height)
        options = Options(antialiased=mode == "antialiased")
        splats = gs_raster.project(
            gs_raster.Rows.of(rows), seen, sh_degree=3, options=options, radii=True
        )
        lists = gs_raster.sort(splats)
        pixels = gs_raster.blend(splats, lists, depth=True)
        assert pixels.depth is not None
        exact = cpu.Splats(
            *(getattr(splats, n).double().cpu().numpy() if n != "radii" else radii_of(splats)
              for n in cpu.Splats._fields)
        )  # fmt: skip
        rect = Rect(0, 0, view.width, view.height)
        expected = cpu.blend(exact, cpu.sort(exact, rect), with_depth=True)
        image, alpha = (torch.from_numpy(v).cuda() for v in (expected.image, expected.alpha))
        scales = torch.ones(5, device="cuda")
        scales[4] = image[..., 3].max()
        found = torch.cat([pixels.image, pixels.alpha[..., None], pixels.depth[..., None]], -1)
        off = distance(found, torch.cat([image[..., :3], alpha, image[..., 3:]], -1), scales)
        assert off.max() <= LEAST_ALPHA, off.max()
        # Pixels at a threshold have gradients of other splats.
        weights = (off <= CLOSE)[..., None] * noise(*found.shape) / scales
        parts = weights.split([3, 1, 1], -1)
        grads = gs_raster.blend_backward(
            *(splats, lists, pixels, parts[0].contiguous()),
            *(part[..., 0].contiguous() for part in parts[1:]),
        )
        exact_grads = cpu.blend_backward(
            expected,
            torch.cat([parts[0], parts[2]], -1).double().cpu().numpy(),
            parts[1].double().cpu().numpy(),
        )
        for name, place in GRADIENTS.items():
            reference = torch.from_numpy(getattr(exact_grads, name)).cuda()
            error = (grads[:, place] - reference).norm() / reference.norm()
            assert error < 2e-4, (view.name, name, error)


@MODES
def test_pixels_equal_gsplats(trained: Trained, mode: str) -> None:
    # Gradients of single rows do not: where two splats of nearly one depth and one colour lie over
    # each other, the last bit of a depth decides which of them has most of the gradient.
    gsplat = pytest.importorskip("gsplat")
    rows, views = trained
    for view in views:
        found = drawn(gs_raster.torch.rasterization, rows, view, mode)
        expected = drawn(gsplat.rasterization, rows, view, mode)
        scales = torch.ones(5, device="cuda")
        scales[4] = expected[..., 4].max()
        distance(found, expected, scales)


def radii_of(splats: gs_raster.Splats) -> np.ndarray:
    assert splats.radii is not None
    return splats.radii.cpu().numpy()


def distance(found: Tensor, expected: Tensor, scales: Tensor) -> Tensor:
    """(h, w) the largest difference of a pixel's channels; nearly all pixels are close.

    Args:
        found, expected: (h, w, C).
        scales: (C,) of the values.
    """
    off = ((found - expected) / scales).abs().amax(-1)
    share = (off > CLOSE).double().mean()
    assert share <= FEW, share
    return off


def noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).cuda()


@torch.no_grad()
def drawn(function: Callable[..., Any], rows: dict[str, Tensor], view: View, mode: str) -> Tensor:
    """(h, w, 5) colours, alpha and depth, by a function that has gsplat's arguments."""
    images, alphas, _ = function(
        rows["means"],
        rows["quats"],
        rows["scales"].exp(),
        rows["opacities"].sigmoid(),
        torch.cat([rows["sh0"], rows["shN"]], 1),
        view.viewmat[None],
        view.K[None],
        view.width,
        view.height,
        sh_degree=3,
        packed=False,
        render_mode="RGB+D",
        rasterize_mode=mode,
    )
    return torch.cat([images[0, ..., :3], alphas[0], images[0, ..., 3:]], -1)
