# SPDX-License-Identifier: Apache-2.0
"""Exposures by kernels are those of torch's operations."""

from __future__ import annotations

import pytest
import torch
from interpreted import BY_KERNELS
from torch import Tensor

from gs_train.engine import exposures as exposures_module
from gs_train.engine.exposures import Exposures
from gs_train.losses import exposure as by_torch


def given(seed: int, h: int, w: int) -> tuple[Tensor, Tensor, Tensor]:
    draw = torch.Generator().manual_seed(seed)
    image, gradient = torch.rand(h, w, 3, generator=draw), torch.randn(h, w, 3, generator=draw)
    return image, gradient, torch.eye(3, 4) + 0.3 * torch.randn(3, 4, generator=draw)


@BY_KERNELS
@pytest.mark.parametrize(("h", "w"), [(1, 1), (32, 32), (33, 65), (7, 300)])
def test_pixels_and_gradients(device: str, h: int, w: int) -> None:
    from gs_train.losses import exposure_triton as by_kernels

    image, gradient, exposure = given(h, h, w)
    on = [tensor.to(device) for tensor in (image, gradient, exposure)]
    found = by_kernels.exposed(on[0], on[2]).cpu()
    torch.testing.assert_close(found, by_torch.exposed(image, exposure))
    by_image, by_exposure = by_kernels.gradients(on[1], on[0], on[2])
    expected = by_torch.gradients(gradient, image, exposure)
    torch.testing.assert_close(by_image.cpu(), expected[0])
    torch.testing.assert_close(by_exposure.cpu(), expected[1], rtol=1e-5, atol=1e-5)


@BY_KERNELS
def test_a_part_of_an_image_has_the_bits_of_the_whole(device: str) -> None:
    from gs_train.losses import exposure_triton as by_kernels

    image, gradient, exposure = (tensor.to(device) for tensor in given(2, 40, 70))
    part = slice(3, 37), slice(11, 64)
    whole = by_kernels.exposed(image, exposure)
    assert torch.equal(by_kernels.exposed(image[part], exposure), whole[part])
    whole, _ = by_kernels.gradients(gradient, image, exposure)
    assert torch.equal(by_kernels.gradients(gradient[part], image[part], exposure)[0], whole[part])


@BY_KERNELS
@pytest.mark.parametrize("n_views", [1, 5, 32, 70])
def test_updates(device: str, n_views: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from gs_train.engine import exposures_triton

    names = [f"{k}" for k in range(n_views)]
    monkeypatch.setattr(exposures_module, "has_triton", lambda: False)
    expected = Exposures(names, torch.device("cpu"))
    state = [tensor.clone().to(device) for tensor in expected.tensors().values()]
    draw = torch.Generator().manual_seed(n_views)
    for step in range(5):
        rows = torch.randperm(n_views, generator=draw)[: 1 + step % 3].tolist()
        gradients = torch.randn(len(rows), 12, generator=draw)
        how = {"betas": (0.9, 0.999), "eps": 1e-15, "rate": 1e-2, "step": step}
        expected.take([names[row] for row in rows], gradients)
        expected.update(n_views=len(rows), **how)
        pull = 2.0 * exposures_module.PULL / len(rows)
        exposures_triton.update(state, rows, gradients.to(device), pull=pull, **how)
        for own, other in zip(state, expected.tensors().values(), strict=True):
            torch.testing.assert_close(own.cpu(), other, rtol=1e-5, atol=2e-7)
