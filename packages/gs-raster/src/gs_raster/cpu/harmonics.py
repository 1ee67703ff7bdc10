# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-defs
"""Colour of rows seen from a camera: real spherical harmonics up to degree 3, and the gradient.

Basis functions in the order and with the signs of the 3DGS file format; colour is the sum plus 0.5,
clamped at 0 from below. Computed in float64 whatever the dtype of the arrays.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from gs_raster.harmonics import (
    L0,
    L1,
    L2_XX_YY,
    L2_XY,
    L2_ZZ,
    L3_X3,
    L3_XXZ,
    L3_XYZ,
    L3_XZZ,
    L3_ZZZ,
)


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_basis(degree, x, y, z, basis):
    basis[0] = L0
    if degree >= 1:
        basis[1] = -L1 * y
        basis[2] = L1 * z
        basis[3] = -L1 * x
    if degree >= 2:
        basis[4] = L2_XY * x * y
        basis[5] = -L2_XY * y * z
        basis[6] = L2_ZZ * (3.0 * z * z - 1.0)
        basis[7] = -L2_XY * x * z
        basis[8] = L2_XX_YY * (x * x - y * y)
    if degree >= 3:
        basis[9] = -L3_X3 * y * (3.0 * x * x - y * y)
        basis[10] = L3_XYZ * x * y * z
        basis[11] = -L3_XZZ * y * (5.0 * z * z - 1.0)
        basis[12] = L3_ZZZ * z * (5.0 * z * z - 3.0)
        basis[13] = -L3_XZZ * x * (5.0 * z * z - 1.0)
        basis[14] = L3_XXZ * z * (x * x - y * y)
        basis[15] = -L3_X3 * x * (x * x - 3.0 * y * y)


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_basis_gradient(degree, x, y, z, slope):
    """Partial derivatives of the polynomials above, x, y and z taken as independent."""
    slope[:] = 0.0
    if degree >= 1:
        slope[1, 1] = -L1
        slope[2, 2] = L1
        slope[3, 0] = -L1
    if degree >= 2:
        slope[4, 0] = L2_XY * y
        slope[4, 1] = L2_XY * x
        slope[5, 1] = -L2_XY * z
        slope[5, 2] = -L2_XY * y
        slope[6, 2] = 6.0 * L2_ZZ * z
        slope[7, 0] = -L2_XY * z
        slope[7, 2] = -L2_XY * x
        slope[8, 0] = 2.0 * L2_XX_YY * x
        slope[8, 1] = -2.0 * L2_XX_YY * y
    if degree >= 3:
        slope[9, 0] = -6.0 * L3_X3 * x * y
        slope[9, 1] = -3.0 * L3_X3 * (x * x - y * y)
        slope[10, 0] = L3_XYZ * y * z
        slope[10, 1] = L3_XYZ * x * z
        slope[10, 2] = L3_XYZ * x * y
        slope[11, 1] = -L3_XZZ * (5.0 * z * z - 1.0)
        slope[11, 2] = -10.0 * L3_XZZ * y * z
        slope[12, 2] = 3.0 * L3_ZZZ * (5.0 * z * z - 1.0)
        slope[13, 0] = -L3_XZZ * (5.0 * z * z - 1.0)
        slope[13, 2] = -10.0 * L3_XZZ * x * z
        slope[14, 0] = 2.0 * L3_XXZ * x * z
        slope[14, 1] = -2.0 * L3_XXZ * y * z
        slope[14, 2] = L3_XXZ * (x * x - y * y)
        slope[15, 0] = -3.0 * L3_X3 * (x * x - y * y)
        slope[15, 1] = 6.0 * L3_X3 * x * y


@njit(cache=True, nogil=True, error_model="numpy")
def _direction(i, means, centre):
    """Unit vector from the camera to the row, and 1 / distance."""
    x = means[i, 0] - centre[0]
    y = means[i, 1] - centre[1]
    z = means[i, 2] - centre[2]
    inverse = 1.0 / math.sqrt(x * x + y * y + z * z)
    return x * inverse, y * inverse, z * inverse, inverse


@njit(cache=True, nogil=True, error_model="numpy")
def _unclamped(i, channel, n_bases, basis, sh0, shN):
    total = 0.5 + basis[0] * sh0[i, 0, channel]
    for k in range(1, n_bases):
        total += basis[k] * shN[i, k - 1, channel]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def color_rows(begin, end, degree, means, sh0, shN, centre, radii, colors):
    """Fill the colours of the rows that show; a row whose colour is not finite stops showing."""
    n_bases = (degree + 1) * (degree + 1)
    basis = np.empty(16)
    color = np.empty(3)
    for i in range(begin, end):
        if radii[i, 0] <= 0:
            continue
        x, y, z, _ = _direction(i, means, centre)
        _fill_basis(degree, x, y, z, basis)
        for channel in range(3):
            color[channel] = _unclamped(i, channel, n_bases, basis, sh0, shN)
        if not math.isfinite(color[0] + color[1] + color[2]):
            radii[i, 0] = 0
            radii[i, 1] = 0
            continue
        for channel in range(3):
            colors[i, channel] = max(color[channel], 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def color_rows_backward(
    begin, end, degree, means, sh0, shN, centre, radii, grad_colors,
    grad_means, grad_sh0, grad_shN,
):  # fmt: skip
    """Add to ``grad_means`` and fill the last two for the rows that show; others stay zero."""
    n_bases = (degree + 1) * (degree + 1)
    basis = np.empty(16)
    slope = np.empty((16, 3))
    for i in range(begin, end):
        if radii[i, 0] <= 0:
            continue
        x, y, z, inverse = _direction(i, means, centre)
        _fill_basis(degree, x, y, z, basis)
        _fill_basis_gradient(degree, x, y, z, slope)
        g_x = g_y = g_z = 0.0
        for channel in range(3):
            if _unclamped(i, channel, n_bases, basis, sh0, shN) < 0.0:
                continue
            g = np.float64(grad_colors[i, channel])
            grad_sh0[i, 0, channel] = g * basis[0]
            for k in range(1, n_bases):
                grad_shN[i, k - 1, channel] = g * basis[k]
                weight = g * shN[i, k - 1, channel]
                g_x += weight * slope[k, 0]
                g_y += weight * slope[k, 1]
                g_z += weight * slope[k, 2]
        # Only the part across the viewing direction: its length is fixed.
        along = g_x * x + g_y * y + g_z * z
        grad_means[i, 0] += (g_x - along * x) * inverse
        grad_means[i, 1] += (g_y - along * y) * inverse
        grad_means[i, 2] += (g_z - along * z) * inverse
