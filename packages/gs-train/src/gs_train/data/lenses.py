# SPDX-License-Identifier: Apache-2.0
"""Where lenses put directions: the formulas of COLMAP's camera models, and resampling by them.

Formulas map undistorted to distorted positions, the direction that resampling needs; nothing is
inverted. Kernels and formulas are one file, because numba's cache looks at the file of a kernel
alone.

- rational (SIMPLE_RADIAL, RADIAL, OPENCV, FULL_OPENCV): OpenCV's radial and tangential terms;
- fisheye (SIMPLE_FISHEYE, FISHEYE, SIMPLE_RADIAL_FISHEYE, RADIAL_FISHEYE, OPENCV_FISHEYE): a
  polynomial of the angle off the axis, Kannala and Brandt (2006);
- field of view (FOV): Devernay and Faugeras (2001);
- division (SIMPLE_DIVISION, DIVISION): Fitzgibbon (2001);
- enhanced unified (EUCM): Khomutenko, Garcia and Martinet (2016);
- thin prism (THIN_PRISM_FISHEYE): a fisheye, then tangential and prism terms;
- radial, tangential and thin prism (RAD_TAN_THIN_PRISM_FISHEYE): the lens of Project Aria.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from gs_train.data.colmap_records import Camera, FloatArray

_RATIONAL, _FISHEYE, _FOV, _DIVISION, _EUCM, _THIN_PRISM, _RAD_TAN = range(7)
_KINDS = {
    "SIMPLE_RADIAL": _RATIONAL,
    "RADIAL": _RATIONAL,
    "OPENCV": _RATIONAL,
    "FULL_OPENCV": _RATIONAL,
    "SIMPLE_FISHEYE": _FISHEYE,
    "FISHEYE": _FISHEYE,
    "SIMPLE_RADIAL_FISHEYE": _FISHEYE,
    "RADIAL_FISHEYE": _FISHEYE,
    "OPENCV_FISHEYE": _FISHEYE,
    "FOV": _FOV,
    "SIMPLE_DIVISION": _DIVISION,
    "DIVISION": _DIVISION,
    "EUCM": _EUCM,
    "THIN_PRISM_FISHEYE": _THIN_PRISM,
    "RAD_TAN_THIN_PRISM_FISHEYE": _RAD_TAN,
}
_MOST_COEFFICIENTS = 12
_N_STEPS = 511  # from the axis to the limit, looking for a fold
_ALWAYS_DISTORTED = frozenset({_FISHEYE, _THIN_PRISM, _RAD_TAN})

DISTORTED_MODELS = frozenset(_KINDS)
"""Models that need undistortion, unless their coefficients are zero and they are no fisheye."""


def bends(camera: Camera) -> bool:
    """Whether the lens of a camera of `DISTORTED_MODELS` differs from a pinhole."""
    return _KINDS[camera.model] in _ALWAYS_DISTORTED or any(camera.distortion)


def enlargement(camera: Camera) -> float:
    """Of the image's centre over a pinhole with the camera's focal lengths."""
    if _KINDS[camera.model] != _FOV or not any(camera.distortion):
        return 1.0
    (omega,) = camera.distortion
    return 2 * math.tan(omega / 2) / omega


def coefficients(camera: Camera) -> tuple[int, FloatArray, FloatArray]:
    """What kernels ask for: the kind of lens, its coefficients, and fx fy cx cy."""
    values = np.zeros(_MOST_COEFFICIENTS)
    values[: len(camera.distortion)] = camera.distortion
    K = camera.K
    intrinsics = np.array([K[0, 0], K[1, 1], K[0, 2], K[1, 2]])
    return _KINDS[camera.model], values, intrinsics


@njit(cache=True, nogil=True, error_model="numpy")
def _distort(x, y, kind, c, intrinsics):  # type: ignore[no-untyped-def]
    """Pixel u, v of the direction (x, y, 1)."""
    r2 = x * x + y * y
    if kind == _FISHEYE:
        r = math.sqrt(r2)
        t = math.atan(r)
        t2 = t * t
        distorted = t * (1 + t2 * (c[0] + t2 * (c[1] + t2 * (c[2] + t2 * c[3]))))
        scale = distorted / r if r > 1e-12 else 1.0
        u, v = x * scale, y * scale
    elif kind == _RATIONAL:
        radial = 1 + r2 * (c[0] + r2 * (c[1] + r2 * c[4]))
        radial /= 1 + r2 * (c[5] + r2 * (c[6] + r2 * c[7]))
        u = x * radial + 2 * c[2] * x * y + c[3] * (r2 + 2 * x * x)
        v = y * radial + c[2] * (r2 + 2 * y * y) + 2 * c[3] * x * y
    elif kind == _FOV:
        r = math.sqrt(r2)
        slope = 2 * math.tan(c[0] / 2)
        scale = math.atan(r * slope) / (r * c[0]) if r > 1e-12 else slope / c[0]
        u, v = x * scale, y * scale
    elif kind == _DIVISION:
        scale = 2 / (1 + math.sqrt(1 - 4 * c[0] * r2))
        u, v = x * scale, y * scale
    elif kind == _EUCM:
        scale = 1 / (c[0] * math.sqrt(c[1] * r2 + 1) + (1 - c[0]))
        u, v = x * scale, y * scale
    elif kind == _THIN_PRISM:
        a, b, t2 = _turned(x, y, r2)
        radial = 1 + t2 * (c[0] + t2 * (c[1] + t2 * (c[4] + t2 * c[5])))
        u = a * radial + 2 * c[2] * a * b + c[3] * (t2 + 2 * a * a) + c[6] * t2
        v = b * radial + 2 * c[3] * a * b + c[2] * (t2 + 2 * b * b) + c[7] * t2
    else:
        a, b, t2 = _turned(x, y, r2)
        tail = c[3] + t2 * (c[4] + t2 * c[5])
        radial = 1 + t2 * (c[0] + t2 * (c[1] + t2 * (c[2] + t2 * tail)))
        a, b = a * radial, b * radial
        d2 = a * a + b * b
        along = 2 * (c[6] * a + c[7] * b)
        u = a + a * along + c[6] * d2 + d2 * (c[8] + d2 * c[9])
        v = b + b * along + c[7] * d2 + d2 * (c[10] + d2 * c[11])
    return intrinsics[0] * u + intrinsics[2], intrinsics[1] * v + intrinsics[3]


@njit(cache=True, nogil=True, error_model="numpy")
def _turned(x, y, r2):  # type: ignore[no-untyped-def]
    """The direction as an angle off the axis, along x and y, and the angle's square."""
    r = math.sqrt(r2)
    t = math.atan(r)
    scale = t / r if r > 1e-12 else 1.0
    return x * scale, y * scale, t * t


@njit(cache=True, nogil=True, error_model="numpy")
def distort_all(points, kind, c, intrinsics):  # type: ignore[no-untyped-def]
    """(N, 2) pixels of the directions (N, 2), x / z and y / z."""
    result = np.empty_like(points)
    for i in range(len(points)):
        result[i] = _distort(points[i, 0], points[i, 1], kind, c, intrinsics)
    return result


@njit(cache=True, nogil=True, error_model="numpy")
def reach(rays, limit, width, height, kind, c, intrinsics):  # type: ignore[no-untyped-def]
    """How far (N,) a lens sees along unit rays (N, 2) from its axis; NaN where not even the axis.

    To where a ray leaves the image, or either coordinate comes to ``limit``, or just short of where
    the formulas fold back and what was seen would be seen again.
    """
    result = np.empty(len(rays))
    for i in range(len(rays)):
        x, y = rays[i]
        step = limit / max(abs(x), abs(y)) / _N_STEPS
        u, v = _distort(0.0, 0.0, kind, c, intrinsics)
        if not (0 <= u <= width and 0 <= v <= height):
            result[i] = np.nan
            continue
        low, high = step * _N_STEPS, step * _N_STEPS
        for k in range(1, _N_STEPS + 1):
            before_u, before_v = u, v
            u, v = _distort(x * step * k, y * step * k, kind, c, intrinsics)
            if not (u - before_u) * x + (v - before_v) * y > 0:  # NaN, too
                # The turning point lies in this step or in the one before.
                low = high = step * max(k - 2, 0)
                break
            if not (0 <= u <= width and 0 <= v <= height):
                low, high = step * (k - 1), step * k
                break
        for _ in range(50 if low < high else 0):
            middle = (low + high) / 2
            u, v = _distort(x * middle, y * middle, kind, c, intrinsics)
            if 0 <= u <= width and 0 <= v <= height:
                low = middle
            else:
                high = middle
        result[i] = low
    return result


@njit(cache=True, nogil=True, error_model="numpy")
def resample(source, result, n, K, kind, c, intrinsics):  # type: ignore[no-untyped-def]
    """Fill ``result`` with means of n x n bilinear samples of ``source``; K is the result's."""
    height, width = source.shape[0], source.shape[1]
    weight = 1.0 / (n * n)
    for row in range(result.shape[0]):
        for column in range(result.shape[1]):
            red = green = blue = 0.5  # rounds to nearest when cut to an integer
            for j in range(n):
                y = (row + (j + 0.5) / n - K[1, 2]) / K[1, 1]
                for i in range(n):
                    x = (column + (i + 0.5) / n - K[0, 2]) / K[0, 0]
                    u, v = _distort(x, y, kind, c, intrinsics)
                    u = min(max(u - 0.5, 0.0), width - 1.0)
                    v = min(max(v - 0.5, 0.0), height - 1.0)
                    left, top = int(u), int(v)
                    right, bottom = min(left + 1, width - 1), min(top + 1, height - 1)
                    a, b = u - left, v - top
                    w00, w01 = (1 - a) * (1 - b) * weight, a * (1 - b) * weight
                    w10, w11 = (1 - a) * b * weight, a * b * weight
                    p00, p01 = source[top, left], source[top, right]
                    p10, p11 = source[bottom, left], source[bottom, right]
                    red += w00 * p00[0] + w01 * p01[0] + w10 * p10[0] + w11 * p11[0]
                    green += w00 * p00[1] + w01 * p01[1] + w10 * p10[1] + w11 * p11[1]
                    blue += w00 * p00[2] + w01 * p01[2] + w10 * p10[2] + w11 * p11[2]
            result[row, column, 0] = int(red)
            result[row, column, 1] = int(green)
            result[row, column, 2] = int(blue)
