# SPDX-License-Identifier: Apache-2.0
# mypy: allow-untyped-defs
"""Rows to 2D Gaussians: the EWA projection through a pinhole, and its gradient.

With W the rotation of the camera, J the Jacobian of the projection at the row's centre, Q the row's
rotation and S its scales, the 2D covariance is A A^T + eps2d I where A = J W Q S (Zwicker et al.,
EWA splatting, 2001). The gradient goes back through A.

Everything here is computed in float64 whatever the dtype of the arrays: this is a small part of a
render, and the determinant of a needle keeps its digits. All functions that a kernel calls are in
the kernel's own file, because numba's cache on disk watches only that file.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

ALPHA_THRESHOLD = 1.0 / 255.0
MAX_EXTENT = 3.33
# Radii saturate here: the largest float32 below 2^31.
MAX_RADIUS = 2147483520.0


@njit(cache=True, nogil=True, error_model="numpy")
def _multiply(left, right, out):
    for i in range(left.shape[0]):
        for j in range(right.shape[1]):
            total = 0.0
            for k in range(left.shape[1]):
                total += left[i, k] * right[k, j]
            out[i, j] = total


@njit(cache=True, nogil=True, error_model="numpy")
def _unit_quaternion(quats, i):
    w = np.float64(quats[i, 0])
    x = np.float64(quats[i, 1])
    y = np.float64(quats[i, 2])
    z = np.float64(quats[i, 3])
    inverse_norm = 1.0 / math.sqrt(w * w + x * x + y * y + z * z)
    return w * inverse_norm, x * inverse_norm, y * inverse_norm, z * inverse_norm, inverse_norm


@njit(cache=True, nogil=True, error_model="numpy")
def _fill_factors(i, means, scales, quats, world, lens, limits, Q, QS, J, W, JW, A):
    """Fill the factors of A for row i; returns the centre in the camera, and x, y as J has them."""
    w, x, y, z, _ = _unit_quaternion(quats, i)
    Q[0, 0] = 1.0 - 2.0 * (y * y + z * z)
    Q[0, 1] = 2.0 * (x * y - w * z)
    Q[0, 2] = 2.0 * (x * z + w * y)
    Q[1, 0] = 2.0 * (x * y + w * z)
    Q[1, 1] = 1.0 - 2.0 * (x * x + z * z)
    Q[1, 2] = 2.0 * (y * z - w * x)
    Q[2, 0] = 2.0 * (x * z - w * y)
    Q[2, 1] = 2.0 * (y * z + w * x)
    Q[2, 2] = 1.0 - 2.0 * (x * x + y * y)
    for k in range(3):
        scale = math.exp(np.float64(scales[i, k]))
        for j in range(3):
            QS[j, k] = Q[j, k] * scale
            W[j, k] = world[j, k]
    fx, fy, _, _ = lens
    left, right, top, bottom = limits
    cx = world[0, 3]
    cy = world[1, 3]
    cz = world[2, 3]
    for k in range(3):
        cx += world[0, k] * means[i, k]
        cy += world[1, k] * means[i, k]
        cz += world[2, k] * means[i, k]
    held_x = cz * min(right, max(left, cx / cz))
    held_y = cz * min(bottom, max(top, cy / cz))
    J[0, 0] = fx / cz
    J[0, 1] = 0.0
    J[0, 2] = -fx * held_x / (cz * cz)
    J[1, 0] = 0.0
    J[1, 1] = fy / cz
    J[1, 2] = -fy * held_y / (cz * cz)
    _multiply(J, W, JW)
    _multiply(JW, QS, A)
    return cx, cy, cz, held_x, held_y


@njit(cache=True, nogil=True, error_model="numpy")
def _blurred_covariance(A, eps2d):
    """xx, xy, yy and determinant with the blur, and what the blur does to the peak."""
    xx = A[0, 0] * A[0, 0] + A[0, 1] * A[0, 1] + A[0, 2] * A[0, 2]
    xy = A[0, 0] * A[1, 0] + A[0, 1] * A[1, 1] + A[0, 2] * A[1, 2]
    yy = A[1, 0] * A[1, 0] + A[1, 1] * A[1, 1] + A[1, 2] * A[1, 2]
    # det(A A^T) as the squared length of the cross product of A's rows: no cancellation.
    n0 = A[0, 1] * A[1, 2] - A[0, 2] * A[1, 1]
    n1 = A[0, 2] * A[1, 0] - A[0, 0] * A[1, 2]
    n2 = A[0, 0] * A[1, 1] - A[0, 1] * A[1, 0]
    sharp = n0 * n0 + n1 * n1 + n2 * n2
    det = sharp + eps2d * (xx + yy) + eps2d * eps2d
    return xx + eps2d, xy, yy + eps2d, det, math.sqrt(sharp / det)


@njit(cache=True, nogil=True, error_model="numpy")
def _sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x))


@njit(cache=True, nogil=True, error_model="numpy")
def project_rows(
    begin, end, means, scales, quats, logits, world, lens, limits, size, options,
    means2d, conics, depths, radii, opacities,
):  # fmt: skip
    """Fill the last five arrays for the rows that show; leaves the others as they are (zeros)."""
    antialiased, eps2d, near, far, radius_clip = options
    width, height = size
    fx, fy, cx, cy = lens
    Q, QS, W = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    J, JW, A = np.empty((2, 3)), np.empty((2, 3)), np.empty((2, 3))
    for i in range(begin, end):
        x, y, z, _, _ = _fill_factors(
            i, means, scales, quats, world, lens, limits, Q, QS, J, W, JW, A
        )
        # Comparisons are written so that NaN fails them.
        if not (near <= z <= far):
            continue
        xx, xy, yy, det, compensation = _blurred_covariance(A, eps2d)
        if not det > 0.0:
            continue
        opacity = _sigmoid(np.float64(logits[i]))
        if antialiased:
            opacity *= compensation
        if not opacity >= ALPHA_THRESHOLD:
            continue
        # Beyond this many sigma alpha is below the threshold (StopThePop, Radl et al. 2024, B.2).
        extent = min(MAX_EXTENT, math.sqrt(2.0 * math.log(opacity / ALPHA_THRESHOLD)))
        radius_x = min(math.ceil(extent * math.sqrt(xx)), MAX_RADIUS)
        radius_y = min(math.ceil(extent * math.sqrt(yy)), MAX_RADIUS)
        if radius_x <= radius_clip and radius_y <= radius_clip:
            continue
        u = fx * x / z + cx
        v = fy * y / z + cy
        if not (u + radius_x > 0.0 and u - radius_x < width):
            continue
        if not (v + radius_y > 0.0 and v - radius_y < height):
            continue
        a, b, c = yy / det, -xy / det, xx / det
        if not math.isfinite(a + b + c):
            continue
        means2d[i, 0] = u
        means2d[i, 1] = v
        conics[i, 0] = a
        conics[i, 1] = b
        conics[i, 2] = c
        depths[i] = z
        opacities[i] = opacity
        radii[i, 0] = np.int32(radius_x)
        radii[i, 1] = np.int32(radius_y)


@njit(cache=True, nogil=True, error_model="numpy")
def _quaternion_gradient(quats, i, G, out):
    """From the gradient G of the rotation matrix to that of the unnormalised quaternion."""
    w, x, y, z, inverse_norm = _unit_quaternion(quats, i)
    gw = 2.0 * (x * (G[2, 1] - G[1, 2]) + y * (G[0, 2] - G[2, 0]) + z * (G[1, 0] - G[0, 1]))
    gx = 2.0 * (
        y * (G[0, 1] + G[1, 0])
        + z * (G[0, 2] + G[2, 0])
        + w * (G[2, 1] - G[1, 2])
        - 2.0 * x * (G[1, 1] + G[2, 2])
    )
    gy = 2.0 * (
        x * (G[0, 1] + G[1, 0])
        + z * (G[1, 2] + G[2, 1])
        + w * (G[0, 2] - G[2, 0])
        - 2.0 * y * (G[0, 0] + G[2, 2])
    )
    gz = 2.0 * (
        x * (G[0, 2] + G[2, 0])
        + y * (G[1, 2] + G[2, 1])
        + w * (G[1, 0] - G[0, 1])
        - 2.0 * z * (G[0, 0] + G[1, 1])
    )
    along = gw * w + gx * x + gy * y + gz * z
    out[i, 0] = (gw - along * w) * inverse_norm
    out[i, 1] = (gx - along * x) * inverse_norm
    out[i, 2] = (gy - along * y) * inverse_norm
    out[i, 3] = (gz - along * z) * inverse_norm


@njit(cache=True, nogil=True, error_model="numpy")
def project_rows_backward(
    begin, end, means, scales, quats, logits, world, lens, limits, options, radii,
    grad_means2d, grad_conics, grad_depths, grad_opacities,
    grad_means, grad_scales, grad_quats, grad_logits,
):  # fmt: skip
    """Fill the last four arrays for the rows that show; leaves the others as they are (zeros)."""
    antialiased, eps2d, _, _, _ = options
    fx, fy, _, _ = lens
    Q, QS, W = np.empty((3, 3)), np.empty((3, 3)), np.empty((3, 3))
    J, JW, A = np.empty((2, 3)), np.empty((2, 3)), np.empty((2, 3))
    grad_A, grad_JW, grad_J = np.empty((2, 3)), np.empty((2, 3)), np.empty((2, 3))
    grad_QS, grad_Q = np.empty((3, 3)), np.empty((3, 3))
    for i in range(begin, end):
        if radii[i, 0] <= 0:
            continue
        x, y, z, held_x, held_y = _fill_factors(
            i, means, scales, quats, world, lens, limits, Q, QS, J, W, JW, A
        )
        xx, xy, yy, det, compensation = _blurred_covariance(A, eps2d)
        a, b, c = yy / det, -xy / det, xx / det

        # Covariance from its inverse: V = -C G C, with half of xy's gradient in each corner.
        g_xx = np.float64(grad_conics[i, 0])
        g_xy = 0.5 * grad_conics[i, 1]
        g_yy = np.float64(grad_conics[i, 2])
        v_xx = -(a * a * g_xx + 2.0 * a * b * g_xy + b * b * g_yy)
        v_xy = -(a * b * g_xx + (a * c + b * b) * g_xy + b * c * g_yy)
        v_yy = -(b * b * g_xx + 2.0 * b * c * g_xy + c * c * g_yy)

        opacity = _sigmoid(np.float64(logits[i]))
        g_opacity = np.float64(grad_opacities[i])
        if antialiased:
            # comp^2 = det(C - eps I) / det(C), so d comp^2 = (1 - comp^2) C^-1 - eps I / det(C).
            # The 1e-6 is gsplat's guard against a vanishing compensation.
            g_squared = 0.5 * g_opacity * opacity / (compensation + 1e-6)
            rest = 1.0 - compensation * compensation
            v_xx += g_squared * (rest * a - eps2d / det)
            v_xy += g_squared * rest * b
            v_yy += g_squared * (rest * c - eps2d / det)
            g_opacity *= compensation
        grad_logits[i] = g_opacity * opacity * (1.0 - opacity)

        for k in range(3):
            grad_A[0, k] = 2.0 * (v_xx * A[0, k] + v_xy * A[1, k])
            grad_A[1, k] = 2.0 * (v_xy * A[0, k] + v_yy * A[1, k])
        _multiply(grad_A, QS.T, grad_JW)
        _multiply(grad_JW, W.T, grad_J)
        _multiply(JW.T, grad_A, grad_QS)

        # Projection of the centre, then J's own dependence on the centre.
        g_u = np.float64(grad_means2d[i, 0])
        g_v = np.float64(grad_means2d[i, 1])
        z2 = z * z
        g_x = fx / z * g_u
        g_y = fy / z * g_v
        g_z = grad_depths[i] - (fx * x * g_u + fy * y * g_v) / z2
        g_z -= (fx * grad_J[0, 0] + fy * grad_J[1, 1]) / z2
        left, right, top, bottom = limits
        j_x = fx / z2 * grad_J[0, 2]
        j_y = fy / z2 * grad_J[1, 2]
        if left <= x / z <= right:
            g_x -= j_x
            g_z += 2.0 * j_x * held_x / z
        else:
            g_z += j_x * held_x / z
        if top <= y / z <= bottom:
            g_y -= j_y
            g_z += 2.0 * j_y * held_y / z
        else:
            g_z += j_y * held_y / z

        for k in range(3):
            grad_means[i, k] = W[0, k] * g_x + W[1, k] * g_y + W[2, k] * g_z
            scale = math.exp(np.float64(scales[i, k]))
            total = 0.0
            for j in range(3):
                total += QS[j, k] * grad_QS[j, k]
                grad_Q[j, k] = grad_QS[j, k] * scale
            grad_scales[i, k] = total
        _quaternion_gradient(quats, i, grad_Q, grad_quats)
