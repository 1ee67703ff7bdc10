# SPDX-License-Identifier: Apache-2.0
"""Undistortion: formulas against pycolmap, resampling against OpenCV, and the promised frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from gs_train.data.colmap_records import CAMERA_MODELS, Camera
from gs_train.data.distortion import (
    DISTORTED_MODELS,
    MOST_OFF_AXIS,
    PINHOLE_MODELS,
    Pinhole,
    distort,
    is_distorted,
    undistort,
    undistorted_pinhole,
)
from gs_train.errors import InputError

WIDTH, HEIGHT = 640, 480

PARAMS: dict[str, tuple[float, ...]] = {
    "barrel SIMPLE_RADIAL": (500, 320, 240, -0.15),
    "cushion SIMPLE_RADIAL": (500, 322, 237, 0.15),
    "RADIAL": (480, 310, 250, -0.2, 0.05),
    "OPENCV": (480, 484, 315, 243, -0.25, 0.1, 1e-3, -2e-3),
    "FULL_OPENCV": (480, 484, 315, 243, 0.1, -0.05, 1e-3, -2e-3, 0.01, 0.2, 0.01, 0.005),
    "OPENCV_FISHEYE": (300, 302, 318, 245, 0.02, -0.01, 0.001, 0.0005),
}
MORE_PARAMS: dict[str, tuple[float, ...]] = {
    "FOV": (400, 402, 318, 245, 0.9),
    "SIMPLE_RADIAL_FISHEYE": (300, 318, 245, 0.02),
    "RADIAL_FISHEYE": (300, 318, 245, 0.02, -0.01),
    "THIN_PRISM_FISHEYE": (
        *(300, 302, 318, 245, 0.02, -0.01, 1e-3, -2e-3, 0.001, 0.0005, 3e-3, -4e-3),
    ),
    "RAD_TAN_THIN_PRISM_FISHEYE": (
        *(300, 302, 318, 245, 0.02, -0.01, 0.004, -0.003, 0.002, -0.001),
        *(1e-3, -2e-3, 3e-3, -4e-3, 5e-3, -6e-3),
    ),
    "barrel SIMPLE_DIVISION": (480, 318, 245, -0.2),
    "cushion DIVISION": (480, 484, 318, 245, 0.1),
    "SIMPLE_FISHEYE": (300, 318, 245),
    "FISHEYE": (300, 302, 318, 245),
    "EUCM": (300, 302, 318, 245, 0.6, 1.1),
}
"""Lenses that OpenCV does not know."""

ALL_PARAMS = {**PARAMS, **MORE_PARAMS}
ALL_CASES = pytest.mark.parametrize("case", ALL_PARAMS)
CASES = pytest.mark.parametrize("case", PARAMS)


def camera_of(case: str) -> Camera:
    return Camera(3, case.split()[-1], WIDTH, HEIGHT, tuple(float(p) for p in ALL_PARAMS[case]))


def corners_and_centers(pinhole: Pinhole) -> np.ndarray:
    """Directions of every pixel centre and of a dense frame on the outermost pixel edges."""
    columns, rows = np.meshgrid(np.arange(pinhole.width) + 0.5, np.arange(pinhole.height) + 0.5)
    t = np.linspace(0, 1, 401)
    x, y = t * pinhole.width, t * pinhole.height
    zero = np.zeros_like(t)
    frame = [(x, zero), (x, zero + pinhole.height), (zero, y), (zero + pinhole.width, y)]
    pixels = np.concatenate(
        [np.stack([columns.ravel(), rows.ravel()], 1), *(np.stack(edge, 1) for edge in frame)]
    )
    return (pixels - pinhole.K[:2, 2]) / np.diag(pinhole.K)[:2]


def opencv_maps(camera: Camera, pinhole: Pinhole) -> tuple[np.ndarray, np.ndarray]:
    """OpenCV's source positions of the output pixels; there pixel centres are whole numbers."""
    import cv2

    shift = np.array([[0, 0, 0.5], [0, 0, 0.5], [0, 0, 0]])
    coefficients = np.zeros(4 if camera.model == "OPENCV_FISHEYE" else 8)
    coefficients[: len(camera.distortion)] = camera.distortion
    module = cv2.fisheye if camera.model == "OPENCV_FISHEYE" else cv2
    u, v = module.initUndistortRectifyMap(
        camera.K - shift,
        coefficients,
        np.eye(3),
        pinhole.K - shift,
        (pinhole.width, pinhole.height),
        cv2.CV_32FC1,
    )
    return u, v


@ALL_CASES
def test_formulas_are_those_of_colmap(case: str) -> None:
    import pycolmap

    camera = camera_of(case)
    theirs = pycolmap.Camera(
        model=camera.model, width=WIDTH, height=HEIGHT, params=list(camera.params)
    )
    limit = np.tan(MOST_OFF_AXIS)
    points = np.random.default_rng(0).uniform(-limit, limit, (500, 2))
    points[0] = 0
    points[1:100] *= np.logspace(-12, 0, 99)[:, None]
    expected = theirs.img_from_cam(np.column_stack([points, np.ones(len(points))]))
    # Both in float64; pixel positions up to a thousand leave an error of about 1e-13 of that, more
    # where a division lens ends. Beyond its end both are NaN.
    np.testing.assert_allclose(distort(camera, points), np.float64(expected), atol=1e-9)


def test_every_model_of_colmap_is_a_case() -> None:
    cases = {case.split()[-1] for case in ALL_PARAMS}
    assert cases == DISTORTED_MODELS
    others = {name for name, _ in CAMERA_MODELS} - cases - PINHOLE_MODELS
    assert others == {"EQUIRECTANGULAR"}


@ALL_CASES
def test_the_centre_is_neither_enlarged_nor_reduced(case: str) -> None:
    camera = camera_of(case)
    pinhole = undistorted_pinhole(camera)
    step = 1e-6
    here, there = distort(camera, np.array([[0.0, 0.0], [step, step]]))
    scale = (there - here) / step / np.diag(pinhole.K)[:2]
    # Prisms and tangential terms tilt the centre a little; sides are whole pixels.
    assert max(pinhole.width, pinhole.height) == WIDTH or np.abs(scale - 1).max() < 0.01


@pytest.mark.parametrize(
    ("model", "distortion"), [("FOV", (0,)), ("DIVISION", (0,)), ("EUCM", (0, 0))]
)
def test_a_lens_that_bends_nothing_is_a_pinhole(model: str, distortion: tuple[float, ...]) -> None:
    camera = Camera(1, model, WIDTH, HEIGHT, (500.0, 500.0, 320.0, 240.0, *distortion))
    assert not is_distorted(camera)


@pytest.mark.parametrize(
    ("model", "distortion"),
    [
        ("FOV", (3.3,)),
        ("FOV", (1e6,)),
        ("EUCM", (-1e6, -1)),
        ("EUCM", (1, -1e6)),
        ("DIVISION", (1e6,)),
        ("THIN_PRISM_FISHEYE", (-1e6, *[0] * 7)),
    ],
)
def test_a_wild_lens_is_refused(model: str, distortion: tuple[float, ...]) -> None:
    camera = Camera(1, model, WIDTH, HEIGHT, (500.0, 500.0, 320.0, 240.0, *distortion))
    assert is_distorted(camera)
    with pytest.raises(InputError, match="must see a rectangle around its optical axis, got none"):
        undistorted_pinhole(camera)


@CASES
def test_resampling_is_that_of_opencv(case: str) -> None:
    import cv2

    camera = camera_of(case)
    pinhole = undistorted_pinhole(camera)
    rng = np.random.default_rng(1)
    small = rng.integers(0, 256, (HEIGHT // 8, WIDTH // 8, 3)).astype(np.uint8)
    pixels = cv2.resize(small, (WIDTH, HEIGHT), interpolation=cv2.INTER_CUBIC)
    ours = undistort(pixels, camera, pinhole)
    u, v = opencv_maps(camera, pinhole)
    theirs = cv2.remap(pixels, u, v, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    difference = np.abs(ours.astype(int) - theirs)
    # OpenCV rounds positions to 1/32 pixel; the steepest slope of this picture is about 32 grey
    # values per pixel, so single values differ by a few and the mean by far less than one.
    if camera.model == "OPENCV_FISHEYE":  # here several samples make a pixel
        assert difference.mean() < 2
    else:
        assert difference.max() <= 3
        assert difference.mean() < 0.4


@ALL_CASES
def test_no_black_border_shows(case: str) -> None:
    camera = camera_of(case)
    pinhole = undistorted_pinhole(camera)
    u, v = distort(camera, corners_and_centers(pinhole)).T
    # The frame is found along 1024 rays and joined by straight lines: a hundredth of a pixel.
    assert u.min() > -0.01
    assert v.min() > -0.01
    assert u.max() < WIDTH + 0.01
    assert v.max() < HEIGHT + 0.01


@pytest.mark.parametrize("case", [case for case in PARAMS if case != "OPENCV_FISHEYE"])
def test_the_frame_is_that_of_opencv_alpha_zero(case: str) -> None:
    import cv2

    camera = camera_of(case)
    pinhole = undistorted_pinhole(camera)
    coefficients = np.zeros(8)
    coefficients[: len(camera.distortion)] = camera.distortion
    K, _ = cv2.getOptimalNewCameraMatrix(camera.K, coefficients, (WIDTH, HEIGHT), 0)
    ours = pinhole.width / pinhole.K[0, 0], pinhole.height / pinhole.K[1, 1]
    # OpenCV samples each border at nine points, so its own frame is a little off: 1 %.
    np.testing.assert_allclose(ours, (WIDTH / K[0, 0], HEIGHT / K[1, 1]), rtol=0.01)


@CASES
def test_focal_lengths_are_kept_unless_the_longest_side_would_grow(case: str) -> None:
    camera = camera_of(case)
    pinhole = undistorted_pinhole(camera)
    scale = np.diag(pinhole.K)[:2] / np.diag(camera.K)[:2]
    # Rounding the sides to whole pixels changes each focal length by half a pixel of its side.
    assert abs(scale[0] / scale[1] - 1) < 1 / pinhole.height
    longest = max(pinhole.width, pinhole.height)
    assert longest <= WIDTH
    assert longest == WIDTH or abs(scale[0] - 1) < 1 / pinhole.width


def test_a_camera_with_zero_coefficients_is_a_pinhole_already() -> None:
    camera = Camera(1, "OPENCV", WIDTH, HEIGHT, (500.0, 500.0, 320.0, 240.0, 0.0, 0.0, 0.0, 0.0))
    assert not is_distorted(camera)
    pinhole = undistorted_pinhole(camera)
    assert (pinhole.width, pinhole.height) == (WIDTH, HEIGHT)
    np.testing.assert_allclose(pinhole.K, camera.K, atol=1e-6)


def test_a_fisheye_with_zero_coefficients_is_not_a_pinhole() -> None:
    camera = Camera(1, "OPENCV_FISHEYE", WIDTH, HEIGHT, (300.0, 300.0, 320.0, 240.0, 0, 0, 0, 0))
    assert is_distorted(camera)


def test_a_wide_fisheye_is_cut_at_sixty_degrees() -> None:
    camera = Camera(1, "OPENCV_FISHEYE", 800, 600, (180.0, 180.0, 400.0, 300.0, 0, 0, 0, 0))
    pinhole = undistorted_pinhole(camera)
    half = np.array([pinhole.width, pinhole.height]) / 2 / np.diag(pinhole.K)[:2]
    np.testing.assert_allclose(np.degrees(np.arctan(half)), np.degrees(MOST_OFF_AXIS), rtol=1e-6)
    u, v = distort(camera, corners_and_centers(pinhole)).T
    assert min(u.min(), v.min()) > 0


def test_where_the_formula_folds_back_nothing_is_shown_twice() -> None:
    # r (1 - 0.6 r^2) grows up to r = 0.745 only, and the image would reach further.
    camera = Camera(1, "SIMPLE_RADIAL", WIDTH, HEIGHT, (500.0, 320.0, 240.0, -0.6))
    pinhole = undistorted_pinhole(camera)
    radius = np.linalg.norm(corners_and_centers(pinhole), axis=1)
    assert 0.73 < radius.max() < 1 / np.sqrt(3 * 0.6)


@pytest.mark.parametrize(("model", "distortion"), [("DIVISION", (1,)), ("EUCM", (1.3, -1))])
def test_a_lens_that_ends_within_the_image_is_undistorted_up_to_its_end(
    model: str, distortion: tuple[float, ...]
) -> None:
    camera = Camera(1, model, WIDTH, HEIGHT, (50.0, 50.0, 320.0, 240.0, *distortion))
    assert np.isnan(distort(camera, np.array([[1.001, 0.0]]))).any()
    pinhole = undistorted_pinhole(camera)
    assert np.isfinite(distort(camera, corners_and_centers(pinhole))).all()
    grey = np.full((HEIGHT, WIDTH, 3), 77, np.uint8)
    np.testing.assert_array_equal(
        undistort(grey, camera, pinhole), np.full((pinhole.height, pinhole.width, 3), 77)
    )


@given(
    k1=st.floats(-0.4, 0.4),
    k2=st.floats(-0.2, 0.2),
    p1=st.floats(-5e-3, 5e-3),
    focal=st.floats(250, 2000),
    cx=st.floats(220, 420),
    max_side=st.none() | st.integers(16, 700),
)
@settings(max_examples=40, deadline=None)
def test_any_ordinary_calibration_gives_a_frame_without_border(
    k1: float, k2: float, p1: float, focal: float, cx: float, max_side: int | None
) -> None:
    assume(abs(k1) + abs(k2) + abs(p1) > 0)
    params = (focal, focal * 1.01, cx, 240.0, k1, k2, p1, -p1)
    camera = Camera(1, "OPENCV", WIDTH, HEIGHT, params)
    pinhole = undistorted_pinhole(camera, max_side)
    u, v = distort(camera, corners_and_centers(pinhole)).T
    assert u.min() > -0.05
    assert v.min() > -0.05
    assert u.max() < WIDTH + 0.05
    assert v.max() < HEIGHT + 0.05
    assert max(pinhole.width, pinhole.height) <= min(WIDTH, max_side or WIDTH)
    assert min(pinhole.width, pinhole.height) >= 1


def test_reducing_and_undistorting_is_one_antialiased_step() -> None:
    camera = camera_of("RADIAL")
    full, small = undistorted_pinhole(camera), undistorted_pinhole(camera, 160)
    assert max(small.width, small.height) == 160
    # Stripes finer than an output pixel must average to grey, not alias to black and white.
    stripes = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    stripes[:, ::2] = 255
    reduced = undistort(stripes, camera, small)
    assert abs(reduced.mean() - 127.5) < 1
    assert reduced.std() < 16
    # And a smooth picture gives the block means of the full-size undistorted one.
    v, u = np.mgrid[:HEIGHT, :WIDTH]
    smooth = np.stack([u * 255 / WIDTH, v * 255 / HEIGHT, (u + v) * 255 / 1120], 2).astype(np.uint8)
    large = undistort(smooth, camera, full)
    height, width = large.shape[0] // 4, large.shape[1] // 4
    blocks = large[: 4 * height, : 4 * width].reshape(height, 4, width, 4, 3).mean((1, 3))
    # Sides are rounded: up to one output pixel of shift across the image, two grey values.
    assert np.abs(blocks - undistort(smooth, camera, small)[:height, :width]).max() < 3


def test_a_pinhole_camera_scales_by_the_exact_ratio_of_each_side() -> None:
    camera = Camera(1, "PINHOLE", 1000, 667, (900.0, 905.0, 510.0, 330.0))
    pinhole = Pinhole.of(camera, 300)
    assert (pinhole.width, pinhole.height) == (300, 200)
    expected = [[270, 0, 153], [0, 905 * 200 / 667, 330 * 200 / 667], [0, 0, 1]]
    np.testing.assert_allclose(pinhole.K, expected, rtol=1e-15)


@pytest.mark.parametrize("max_side", [None, 1000, 5000])
def test_a_pinhole_camera_is_never_enlarged(max_side: int | None) -> None:
    camera = Camera(1, "SIMPLE_PINHOLE", 1000, 667, (900.0, 510.0, 330.0))
    pinhole = Pinhole.of(camera, max_side)
    assert (pinhole.width, pinhole.height) == (1000, 667)
    np.testing.assert_array_equal(pinhole.K, camera.K)


def test_a_panorama_is_named_with_the_remedy() -> None:
    camera = Camera(4, "EQUIRECTANGULAR", WIDTH, HEIGHT, (640.0, 480.0))
    with pytest.raises(
        InputError,
        match=r"model of camera 4 must be one of .*, got EQUIRECTANGULAR; cut each panorama into",
    ):
        is_distorted(camera)


def test_a_calibration_without_any_usable_image_is_an_input_error() -> None:
    camera = Camera(2, "SIMPLE_RADIAL", WIDTH, HEIGHT, (500.0, -50.0, 240.0, 0.1))
    with pytest.raises(InputError, match=r"camera 2 \(SIMPLE_RADIAL\) must see a rectangle around"):
        undistorted_pinhole(camera)
