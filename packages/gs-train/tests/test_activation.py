# SPDX-License-Identifier: Apache-2.0
"""Activated rows by one kernel against the same by torch's and gsplat's operations.

Bounds. Extents and opacities are the same to the bit, since culling counts on them. Colours and
gradients are sums of up to 16 products of float32 in another order: 2e-6 of the largest, and 2e-5
for means, whose gradient is a difference of such sums over the distance.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from gs_raster.harmonics import L0
from gs_train.renderers import View
from gs_train.renderers.activation import Activated, activate, activate_apart

sys.path.insert(0, str(Path(__file__).parent))
import random_scenes as scenes

K_OF_DEGREE = {0: 0, 1: 3, 2: 8, 3: 15}


def _rows(k: int, n_rows: int = 1000) -> dict[str, Tensor]:
    rows = scenes.random_rows(7, _view("cpu"), n_rows=n_rows)
    rows = {name: part.float().cuda() for name, part in rows.items()}
    g = torch.Generator().manual_seed(k)
    rows["shN"] = torch.randn((n_rows, k, 3), generator=g).cuda()
    return rows


def _view(device: str = "cuda") -> View:
    view = scenes.random_view(7, width=64, height=48)
    return View("v", view.viewmat.float(), view.K.float(), 64, 48).to(device)


def _gradients(out: Activated, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    g = torch.Generator().manual_seed(5)
    weights = [torch.randn(part.shape, generator=g).to(part.device) for part in out]
    loss = torch.stack([(part * weight).sum() for part, weight in zip(out, weights)]).sum()
    loss.backward()
    return {name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}


@pytest.mark.gpu
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
@pytest.mark.parametrize("room", [0, 1, 2, 3])
def test_one_kernel_gives_what_many_give(sh_degree, room):
    if sh_degree > room:
        with pytest.raises(ValueError, match="at most the"):
            activate(_rows(K_OF_DEGREE[room]), _view(), sh_degree=sh_degree)
        return
    view = _view()
    rows = _rows(K_OF_DEGREE[room])
    results, gradients = [], []
    for function in (activate, activate_apart):
        leaves = {name: part.clone().requires_grad_() for name, part in rows.items()}
        out = function(leaves, view, sh_degree=sh_degree)
        results.append(out)
        gradients.append(_gradients(out, leaves))
    one, many = results
    assert torch.equal(one.means, many.means)
    assert torch.equal(one.scales, many.scales)
    assert torch.equal(one.opacities, many.opacities)
    assert (one.colors - many.colors).abs().max() <= 2e-6 * many.colors.abs().max()
    assert (many.colors == 0).any()
    for name, expected in gradients[1].items():
        if not expected.numel():
            continue
        bound = (2e-5 if name == "means" else 2e-6) * expected.abs().max()
        assert (gradients[0][name] - expected).abs().max() <= bound, name


@pytest.mark.gpu
def test_black_points_get_the_same_gradient():
    """Where the sum of product and 0.5 is 0 the gradient passes, just below it does not."""
    view = _view()
    rows = _rows(0, n_rows=5)
    black = torch.full((5, 1, 3), -0.5 / L0, device="cuda")
    black *= torch.tensor([1 - 1e-6, 1 - 1e-7, 1, 1 + 1e-7, 1 + 1e-6], device="cuda")[:, None, None]
    gradients = []
    for function in (activate, activate_apart):
        sh0 = black.clone().requires_grad_()
        function(rows | {"sh0": sh0}, view, sh_degree=0).colors.sum().backward()
        gradients.append(sh0.grad)
    assert torch.equal(*gradients)
    assert (gradients[0] == 0).any()
    assert (gradients[0] != 0).any()


@pytest.mark.gpu
def test_a_row_at_the_camera_itself_harms_nobody():
    view = _view()
    rows = _rows(15, n_rows=5)
    centre = -view.viewmat[:3, :3].T @ view.viewmat[:3, 3]
    rows["means"][2] = centre
    leaves = {name: part.clone().requires_grad_() for name, part in rows.items()}
    out = activate(leaves, view, sh_degree=3)
    others = [0, 1, 3, 4]
    _gradients(out, leaves)
    for part in (*out, *(leaf.grad for name, leaf in leaves.items() if name != "quats")):
        assert part[others].isfinite().all()
