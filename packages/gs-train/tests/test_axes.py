# SPDX-License-Identifier: Apache-2.0
"""Rows with y down and z forward, turned to y up and z backward: the same scene, seen alike."""

from __future__ import annotations

import numpy as np
from exported_rows import rows_of

from gs_train.files.axes import turned, unit_xyzw
from gs_train.files.row_chunks import host_rows

TURN = np.diag([1.0, -1.0, -1.0])


def _covariances(quats: np.ndarray, scales: np.ndarray) -> np.ndarray:
    x, y, z, w = unit_xyzw(quats).T
    rotations = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    ).transpose(2, 0, 1)
    axes = rotations * np.exp(scales.astype(np.float64))[:, None]
    return axes @ axes.transpose(0, 2, 1)


def _harmonics(directions: np.ndarray) -> np.ndarray:
    """(D, 15) real harmonics of degrees 1 to 3, but for positive factors."""
    x, y, z = directions.T
    columns = [-y, z, -x, x * y, -y * z, 3 * z * z - 1, -x * z, x * x - y * y]
    columns += [-y * (3 * x * x - y * y), x * y * z, -y * (5 * z * z - 1), z * (5 * z * z - 3)]
    columns += [-x * (5 * z * z - 1), z * (x * x - y * y), -x * (x * x - 3 * y * y)]
    return np.stack(columns, axis=1)


def test_a_turned_scene_looks_alike_from_turned_directions() -> None:
    rows = host_rows(rows_of(40, 3), 15)
    result = turned(rows)
    np.testing.assert_array_equal(result["means"], rows["means"] @ TURN)
    before, after = (_covariances(each["quats"], each["scales"]) for each in (rows, result))
    np.testing.assert_allclose(after, TURN @ before @ TURN, rtol=1e-6, atol=1e-9)
    directions = np.random.default_rng(0).normal(size=(60, 3))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    seen = np.einsum("dk,nkc->dnc", _harmonics(directions), rows["shN"])
    from_there = _harmonics(directions @ TURN)
    seen_turned = np.einsum("dk,nkc->dnc", from_there, result["shN"])
    np.testing.assert_allclose(seen_turned, seen, rtol=0, atol=1e-5)
    unturned = np.einsum("dk,nkc->dnc", from_there, rows["shN"])
    assert np.abs(unturned - seen).max() > 0.1


def test_to_turn_twice_changes_nothing() -> None:
    rows = host_rows(rows_of(9, 2), 8)
    for name, values in turned(turned(rows)).items():
        np.testing.assert_array_equal(values, rows[name])
