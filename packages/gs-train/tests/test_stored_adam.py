# SPDX-License-Identifier: Apache-2.0
"""Gradients of attributes that lie side by side are not copied, others are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gs_train.blocks.block_planes import MOMENTS
from gs_train.blocks.stored_adam import StoredAdam
from gs_train.rows.attributes import APPEARANCE, GEOMETRY, columns

K, N = 3, 40
BETAS, EPS = (0.8, 0.99), 1e-15
WIDTHS = {"means": 3, "scales": 3, "quats": 4, "opacities": 1, "sh0": 3, "shN": 3 * K}
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def train(names: tuple[str, ...], device: str, kind: str) -> dict[str, Tensor]:
    """Ten steps of every other row, with the gradients in one table or apart."""
    plane = "geometry" if names == GEOMETRY else "appearance"
    width = sum(WIDTHS[name] for name in names)
    draw = torch.Generator().manual_seed(1)
    tables = {plane + m: torch.zeros((N, width), device=device) for m in MOMENTS}
    tables[plane].copy_(torch.rand((N, width), generator=draw))
    tables["last_step"] = torch.zeros((N, 1), dtype=torch.int32, device=device)
    adam = StoredAdam(names, K, BETAS, EPS, {}, torch.device(device))
    for step in range(10):
        places = torch.arange(step % 2, N, 2, device=device)
        whole = torch.randn((len(places), width), generator=draw).to(device)
        parts = dict(zip(names, whole.split([WIDTHS[name] for name in names], 1), strict=True))
        if names == APPEARANCE and kind == "columns":
            parts = dict(columns(whole))
        elif kind == "copies":
            parts = {name: part.clone() for name, part in parts.items()}
        elif kind == "turned":
            parts = {name: part.T.contiguous().T for name, part in parts.items()}
        adam.begin(dict.fromkeys(names, 0.1))
        last_step = tables["last_step"].view(-1)
        adam.update(tables, places, parts, last_step, places)
        adam.end()
    ahead = adam.lookahead(tables, torch.arange(N, device=device))
    assert {name: part[0].numel() for name, part in ahead.items()} == {n: WIDTHS[n] for n in names}
    return tables | ahead


@DEVICES
@pytest.mark.parametrize("names", [GEOMETRY, APPEARANCE], ids=["geometry", "appearance"])
def test_where_gradients_lie_changes_no_bit(device: str, names: tuple[str, ...]) -> None:
    expected = train(names, device, "copies")
    for kind in ("columns", "turned"):
        for name, values in train(names, device, kind).items():
            assert torch.equal(values, expected[name]), name
