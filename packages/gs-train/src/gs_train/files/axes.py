# SPDX-License-Identifier: Apache-2.0
"""Rows between two conventions of axes: y down and z forward, as in COLMAP and PLY files of
Gaussians, or y up and z backward, as in OpenGL, SPZ and glTF. x points right in both.

The change is half a turn around x. It keeps handedness, and it is its own inverse.
"""

from __future__ import annotations

import numpy as np

from gs_train.files.row_chunks import HostRows

_POSITION = np.array([1, -1, -1], np.float32)
# Of w x y z. The row's own axes are turned as well, which leaves its shape as it is.
_QUATERNION = np.array([1, 1, -1, -1], np.float32)

# A harmonic is a polynomial in x, y and z. Its sign changes where y and z together have an odd
# power in each term. In the order of the coefficients, by degree:
_HARMONICS = np.array(
    [
        *(-1, -1, 1),  # y, z, x
        *(-1, 1, 1, -1, 1),  # xy, yz, 2zz - xx - yy, xz, xx - yy
        # y(3xx - yy), xyz, y(4zz - xx - yy), z(2zz - 3xx - 3yy), x(4zz - xx - yy), z(xx - yy),
        # x(xx - 3yy)
        *(-1, 1, -1, -1, 1, -1, 1),
    ],
    np.float32,
)


def turned(rows: HostRows) -> HostRows:
    """Rows in the other convention: positions, rotations and harmonics. Other attributes are
    passed on."""
    signs = _HARMONICS[: rows["shN"].shape[1]]
    return {
        **rows,
        "means": rows["means"] * _POSITION,
        "quats": rows["quats"] * _QUATERNION,
        "shN": rows["shN"] * signs[:, None],
    }


def unit_xyzw(quats: np.ndarray) -> np.ndarray:
    """(n, 4) float64 unit quaternions x y z w of any quaternions w x y z.

    A quaternion of length zero becomes the identity.
    """
    turned_around = np.roll(quats.astype(np.float64), -1, axis=1)
    length = np.linalg.norm(turned_around, axis=1, keepdims=True)
    turned_around[length[:, 0] == 0] = (0, 0, 0, 1)
    return turned_around / np.where(length == 0, 1, length)
