# SPDX-License-Identifier: Apache-2.0
"""Arithmetic over rows: right, and the same bits wherever a row lies."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gs_train.rows import rowwise

N = 4099  # more than any vector or chunk, and a rest

FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sigmoid": lambda quats, vectors: rowwise.sigmoid(vectors[:, 0]),
    "sigmoid_slope": lambda quats, vectors: rowwise.sigmoid_slope(vectors[:, 0]),
    "logit": lambda quats, vectors: rowwise.logit(rowwise.sigmoid(vectors[:, 0])),
    "rotated": rowwise.rotated,
    "rotated_back": rowwise.rotated_back,
    "both halves": lambda quats, vectors: rowwise.rotated(quats, torch.stack((vectors, -vectors))),
}


def _inputs() -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(0)
    return torch.randn(N, 4, generator=draw), 3 * torch.randn(N, 3, generator=draw)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_row_has_the_same_bits_in_any_place_and_in_any_part(name: str) -> None:
    function, (quats, vectors) = FUNCTIONS[name], _inputs()
    whole = function(quats, vectors)
    axis = 1 if name == "both halves" else 0
    draw = torch.Generator().manual_seed(1)
    for size in (N, 1, 3, 4, 7, 8, 31, 1000):
        ids = torch.randperm(N, generator=draw)[:size]
        part = function(quats[ids], vectors[ids])
        assert torch.equal(part, whole.index_select(axis, ids)), size
        cut = function(quats[N - size :], vectors[N - size :])
        assert torch.equal(cut, whole.narrow(axis, N - size, size)), size


def test_values_are_those_of_the_definitions() -> None:
    quats, vectors = (part.double() for part in _inputs())
    x = vectors[:, 0]
    torch.testing.assert_close(rowwise.sigmoid(x), torch.sigmoid(x))
    torch.testing.assert_close(rowwise.logit(rowwise.sigmoid(x)), x)
    torch.testing.assert_close(rowwise.sigmoid_slope(x), torch.sigmoid(x) * (1 - torch.sigmoid(x)))
    turned = rowwise.rotated(quats, vectors)
    torch.testing.assert_close(turned, _by_quaternions(quats, vectors))
    torch.testing.assert_close(rowwise.rotated_back(quats, turned), vectors)


def test_extremes_are_finite_or_as_the_formulas_have_them() -> None:
    x = torch.tensor([-200.0, -88.0, 0.0, 88.0, 200.0])
    assert rowwise.sigmoid(x).tolist()[0] == 0.0
    assert rowwise.sigmoid(x).tolist()[2:] == [0.5, 1.0, 1.0]
    assert not rowwise.sigmoid_slope(x)[[0, 4]].any()
    nothing = rowwise.rotated(torch.zeros(1, 4), torch.ones(1, 3))
    assert nothing.tolist() == [[1.0, 1.0, 1.0]]


def _by_quaternions(quats: Tensor, vectors: Tensor) -> Tensor:
    """v + 2 w (u x v) + 2 u x (u x v), for the unit quaternion (w, u)."""
    quats = quats / quats.norm(dim=-1, keepdim=True)
    w, u = quats[:, :1], quats[:, 1:]
    once = torch.linalg.cross(u, vectors)
    return vectors + 2 * w * once + 2 * torch.linalg.cross(u, once)
