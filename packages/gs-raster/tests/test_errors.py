# SPDX-License-Identifier: Apache-2.0
"""What the stages refuse, and in which words."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gs_raster import Options, Rect, TooManyInstancesError, cpu

sys.path.insert(0, str(Path(__file__).parent))
import raster_oracle as oracle
from raster_drawing import arrays

VIEW = oracle.random_view(50, width=150, height=101)
ROWS = arrays({k: v.float() for k, v in oracle.random_rows(50, VIEW, n_rows=60).items()})
SPLATS = cpu.project(ROWS, VIEW.camera, sh_degree=0)
BLENDED = cpu.blend(SPLATS, cpu.sort(SPLATS, VIEW.rect))


def test_importing_the_package_imports_neither_numba_nor_torch():
    source = "import sys, gs_raster; assert not {'numba', 'torch'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", source], check=True, timeout=600)


def test_importing_the_stages_does_not_import_torch():
    source = "import sys, gs_raster.cpu; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True, timeout=600)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"means": ROWS.means.astype("f2")}, TypeError, "means must be float32 or float64, got fl"),
        ({"means": np.float32(1)}, ValueError, r"means must have a row per Gaussian, got shape \("),
        ({"means": ROWS.means[:, :2]}, ValueError, r"means must have shape \(60, 3\), got \(60, 2"),
        ({"quats": ROWS.quats[:, :3]}, ValueError, r"quats must have shape \(60, 4\), got \(60, 3"),
        ({"scales": ROWS.scales[1:]}, ValueError, r"scales must have shape \(60, 3\), got \(59, 3"),
        ({"shN": ROWS.shN[:, :, :2]}, ValueError, r"shN must have shape \(60, 15, 3\), got"),
        ({"sh0": ROWS.sh0.astype("f8")}, TypeError, "sh0 must be float32, got float64"),
    ],
)
def test_rows_of_another_form_are_refused(change: dict, error: type, message: str):
    rows = ROWS._replace(**change)
    for call in (
        lambda: cpu.project(rows, VIEW.camera, sh_degree=0),
        lambda: cpu.project_backward(
            rows, VIEW.camera, cpu.SplatGradients(), radii=SPLATS.radii, sh_degree=0
        ),
    ):
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize(("sh_degree", "n_bases"), [(4, 15), (-1, 15), (2, 3)])
def test_a_degree_that_the_rows_do_not_hold_is_refused(sh_degree: int, n_bases: int):
    rows = ROWS._replace(shN=ROWS.shN[:, :n_bases])
    with pytest.raises(ValueError, match=rf"sh_degree must be 0 to 3 .* {n_bases} bases"):
        cpu.project(rows, VIEW.camera, sh_degree=sh_degree)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Options(eps2d=0.0), "eps2d must be above 0, got 0.0"),
        (Options(near=0.0), "near must be above 0 and below far, got near=0.0"),
        (Options(near=2.0, far=1.0), "got near=2.0, far=1.0"),
    ],
)
def test_options_out_of_range_are_refused(options: Options, message: str):
    with pytest.raises(ValueError, match=message):
        cpu.project(ROWS, VIEW.camera, sh_degree=0, options=options)


@pytest.mark.parametrize(
    "rect", [Rect(-1, 0, 5, 5), Rect(0, -1, 5, 5), Rect(0, 6, 5, 5), Rect(0, 0, 2**31, 5)]
)
def test_rectangles_with_negative_or_too_large_corners_are_refused(rect: Rect):
    with pytest.raises(ValueError, match=r"rect must have 0 <= x0 <= x1 < 2\^31 and .*, got Rect"):
        cpu.sort(SPLATS, rect)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"means2d": SPLATS.means2d.astype("i4")}, TypeError, "means2d must be float32 or float64"),
        ({"radii": SPLATS.radii.astype("f4")}, TypeError, "radii must be int32, got float32"),
        ({"depths": SPLATS.depths[:-1]}, ValueError, r"depths must have shape \(60,\), got \(59"),
        ({"conics": SPLATS.conics.astype("f8")}, TypeError, "conics must be float32, got float64"),
    ],
)
def test_splats_of_another_form_are_refused(change: dict, error: type, message: str):
    with pytest.raises(error, match=message):
        cpu.sort(SPLATS._replace(**change), VIEW.rect)
    with pytest.raises(error, match=message):
        cpu.blend(SPLATS._replace(**change), BLENDED.tiles)


def test_splats_that_the_lists_were_not_made_of_are_refused():
    with pytest.raises(ValueError, match="splats must be the 60 that tiles was made of, got 59"):
        cpu.blend(cpu.Splats(*(values[:-1] for values in SPLATS)), BLENDED.tiles)


@pytest.mark.parametrize(
    ("background", "error", "message"),
    [
        (np.ones(3), TypeError, "background must be float32, got float64"),
        (np.ones((1, 3), "f4"), ValueError, r"background must have shape \(3,\), got \(1, 3\)"),
    ],
)
def test_backgrounds_of_another_form_are_refused(background: np.ndarray, error: type, message: str):
    with pytest.raises(error, match=message):
        cpu.blend(SPLATS, BLENDED.tiles, background=background)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (np.arange(60), TypeError, "keys must be int32, got int64"),
        (np.arange(59, dtype="i4"), ValueError, r"keys must have shape \(60,\), got \(59,\)"),
    ],
)
def test_keys_of_another_form_are_refused(keys: np.ndarray, error: type, message: str):
    with pytest.raises(error, match=message):
        cpu.sort(SPLATS, VIEW.rect, keys=keys)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: cpu.blend_backward(BLENDED, BLENDED.image[1:], BLENDED.alpha),
            ValueError,
            r"grad_image must have shape \(101, 150, 3\), got \(100, 150, 3\)",
        ),
        (
            lambda: cpu.blend_backward(
                cpu.blend(SPLATS, BLENDED.tiles, with_depth=True), BLENDED.image, BLENDED.alpha
            ),
            ValueError,
            r"grad_image must have shape \(101, 150, 4\), got \(101, 150, 3\)",
        ),
        (
            lambda: cpu.blend_backward(BLENDED, BLENDED.image, BLENDED.alpha.astype("f8")),
            TypeError,
            "grad_alpha must be float32, got float64",
        ),
        (
            lambda: cpu.project_backward(
                ROWS,
                VIEW.camera,
                cpu.SplatGradients(conics=SPLATS.means2d),
                radii=SPLATS.radii,
                sh_degree=0,
            ),
            ValueError,
            r"conics must have shape \(60, 3\), got \(60, 2\)",
        ),
        (
            lambda: cpu.project_backward(
                ROWS, VIEW.camera, cpu.SplatGradients(), radii=SPLATS.radii[:, 0], sh_degree=0
            ),
            ValueError,
            r"radii must have shape \(60, 2\), got \(60,\)",
        ),
    ],
)
def test_gradients_of_another_form_are_refused(
    call: Callable[[], object], error: type, message: str
):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: cpu.project(tuple(ROWS), VIEW.camera, sh_degree=0),
            "rows must be Rows, got tuple",
        ),
        (
            lambda: cpu.project(ROWS, VIEW.viewmat, sh_degree=0),
            "camera must be Camera, got Tensor",
        ),
        (
            lambda: cpu.project(ROWS, VIEW.camera, sh_degree=1.0),
            "sh_degree must be a whole number, got 1.0",
        ),
        (
            lambda: cpu.project(ROWS, VIEW.camera, sh_degree=0, options=(False, 0.3)),
            "options must be Options, got tuple",
        ),
        (lambda: cpu.sort(ROWS, VIEW.rect), "splats must be Splats, got Rows"),
        (lambda: cpu.sort(SPLATS, (0, 0, 5, 5)), "rect must be Rect, got tuple"),
        (lambda: cpu.sort(SPLATS, Rect(0, 0, 5, 5.0)), "rect.y1 must be a whole number, got 5.0"),
        (lambda: cpu.blend(SPLATS, VIEW.rect), "tiles must be TileLists, got Rect"),
        (
            lambda: cpu.blend_backward(SPLATS, BLENDED.image, BLENDED.alpha),
            "blended must be Blended, got Splats",
        ),
        (
            lambda: cpu.project_backward(
                ROWS, VIEW.camera, SPLATS, radii=SPLATS.radii, sh_degree=0
            ),
            "gradients must be SplatGradients, got Splats",
        ),
    ],
)
def test_arguments_of_another_class_are_refused(call: Callable[[], object], message: str):
    with pytest.raises(TypeError, match=message):
        call()


@pytest.mark.parametrize(
    ("viewmat", "K", "message"),
    [
        (np.eye(3), np.eye(3), r"viewmat must have shape \(4, 4\), got \(3, 3\)"),
        (
            np.eye(4),
            np.diag([1.0, 0.0, 1.0]),
            "K must have focal lengths other than 0, got 1.0 and",
        ),
        (np.eye(4), np.eye(4), r"K must have shape \(3, 3\), got \(4, 4\)"),
    ],
)
def test_matrices_that_are_no_camera_are_refused(viewmat: np.ndarray, K: np.ndarray, message: str):
    with pytest.raises(ValueError, match=message):
        cpu.Camera.of(viewmat, K, 5, 5)


def test_less_than_one_thread_is_refused():
    with pytest.raises(ValueError, match="n_threads must be at least 1, got 0"):
        cpu.blend(SPLATS, BLENDED.tiles, n_threads=0)


def test_more_instances_than_an_int32_counts_are_refused():
    n, side = 130, 65536
    splats = cpu.Splats(
        means2d=np.full((n, 2), side / 2, np.float32),
        conics=np.ones((n, 3), np.float32),
        depths=np.ones(n, np.float32),
        radii=np.full((n, 2), side, np.int32),
        opacities=np.ones(n, np.float32),
        colors=np.ones((n, 3), np.float32),
    )
    message = r"at most 2,147,483,647 tiles in all, got 2,181,038,080"
    with pytest.raises(TooManyInstancesError, match=message):
        cpu.sort(splats, Rect(0, 0, side, side))


def test_read_only_and_strided_arrays_are_taken_and_left_as_they_were():
    wide = [np.repeat(values, 2, axis=0)[::2] for values in ROWS]
    for values in wide:
        values.flags.writeable = False
    found = cpu.project(cpu.Rows(*wide), VIEW.camera, sh_degree=0)
    for name, values in SPLATS._asdict().items():
        assert np.array_equal(getattr(found, name), values), name
