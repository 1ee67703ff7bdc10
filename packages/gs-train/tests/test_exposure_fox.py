# SPDX-License-Identifier: Apache-2.0
"""A real capture whose photographs have a known gain and offset each, with exposures and without.

The capture is not in this repository; GS_DATA names the folder that has it.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from photographed import FOX, NEEDS_FOX

import gs_train
from gs_train.data import Capture, load_capture, read_image
from gs_train.machine.interrupt import StopRequest
from gs_train.runs.run import Run
from gs_train.runs.scores import score_views
from gs_train.scene.scene import Scene


def _spoilt(pixels: NDArray[np.uint8], gain: float, offset: float) -> NDArray[np.uint8]:
    changed = pixels.astype(np.float64) * gain + 255.0 * offset
    return np.asarray(np.clip(np.round(changed), 0, 255), np.uint8)


def spoilt_fox(cache: Path, *, max_side: int) -> Capture:
    """Fox with a gain of 0.6 to 1.2 and an offset of up to a tenth on each photograph."""
    capture = load_capture(FOX, cache_dir=cache, max_side=max_side)
    draw, views = np.random.default_rng(0), []
    for view in capture.views:
        pixels = _spoilt(read_image(view), draw.uniform(0.6, 1.2), draw.uniform(-0.1, 0.1))
        views.append(replace(view, pixels=functools.partial(np.copy, pixels)))
    return replace(capture, views=tuple(views), in_memory=True)


def fitted_psnr(folder: Path, capture: Capture) -> float:
    """Of the right halves of the test images, with colours fitted on the left halves."""
    run, model = Run.open(folder).read(torch.device("cpu"))
    scene = Scene.load(capture, torch.device("cpu"), run.frame)
    scores, _ = score_views(
        model,
        scene,
        capture.test,
        renderer=run.renderer("cpu"),
        lpips=None,
        stop=StopRequest(),
        fits_colours=True,
        is_quiet=True,
    )
    return float(np.mean([score.fitted_psnr for score in scores]))


@NEEDS_FOX
@pytest.mark.long
def test_exposures_gain_a_decibel_where_gains_differ(tmp_path: Path) -> None:
    capture = spoilt_fox(tmp_path / "cache", max_side=96)
    found = {}
    for exposure in (False, True):
        out = tmp_path / f"run-{exposure}"
        fitted = gs_train.fit(
            capture=capture, out=out, renderer="cpu", steps=1000, sh_degree=1, exposure=exposure
        )
        found[exposure] = fitted_psnr(out, capture)
        assert ("fitted_psnr" in fitted.metrics) == exposure
    assert fitted.metrics["fitted_psnr"] == pytest.approx(found[True])
    assert found[True] > found[False] + 1.0
