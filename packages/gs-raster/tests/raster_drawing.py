# SPDX-License-Identifier: Apache-2.0
"""All stages one after the other, between torch tensors and a loss of the pixels."""

from __future__ import annotations

from collections.abc import Callable

import torch
from raster_oracle import ATTRIBUTES, View
from torch import Tensor

from gs_raster import Options, Rect, cpu

Loss = Callable[[Tensor, Tensor], Tensor]


def arrays(rows: dict[str, Tensor]) -> cpu.Rows:
    """The rows as the stages take them."""
    return cpu.Rows(*(rows[name].detach().numpy() for name in ATTRIBUTES))


def squares(image: Tensor, alpha: Tensor) -> Tensor:
    """Some loss of every pixel."""
    return image.square().sum() + (image[..., 0] * alpha[..., 0]).sum()


def draw(
    rows: dict[str, Tensor],
    view: View,
    rect: Rect | None = None,
    *,
    loss: Loss = squares,
    sh_degree: int = 3,
    absgrad: bool = False,
    n_threads: int | None = None,
    **options: float,
) -> dict[str, Tensor]:
    """Image, alpha, radii, and the gradients of the loss, all by name."""
    given, camera = arrays(rows), view.camera
    how = {"sh_degree": sh_degree, "options": Options(**options), "n_threads": n_threads}
    splats = cpu.project(given, camera, **how)
    tiles = cpu.sort(splats, view.rect if rect is None else rect)
    blended = cpu.blend(splats, tiles, n_threads=n_threads)
    image = torch.from_numpy(blended.image).requires_grad_()
    alpha = torch.from_numpy(blended.alpha).requires_grad_()
    grads = torch.autograd.grad(loss(image, alpha), (image, alpha))
    gradients = cpu.blend_backward(
        blended, *(grad.numpy() for grad in grads), absgrad=absgrad, n_threads=n_threads
    )
    found = cpu.project_backward(given, camera, gradients, radii=splats.radii, **how)
    results = {"image": image.detach(), "alpha": alpha.detach()}
    results |= {"radii": torch.from_numpy(splats.radii)}
    results |= {f"grad {name}": torch.from_numpy(grad) for name, grad in found._asdict().items()}
    results["grad means2d"] = torch.from_numpy(gradients.means2d)
    if absgrad:
        results["absgrad"] = torch.from_numpy(gradients.absgrad)
    return results


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def facing_camera(depths: list[float], **values: float) -> dict[str, Tensor]:
    """Grey round rows on the optical axis of ``plain_view``."""
    n = len(depths)
    rows = {
        "means": torch.tensor([[0.0, 0.0, z] for z in depths]),
        "scales": torch.full((n, 3), values.get("scale", -1.0)),
        "quats": torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(n, 1),
        "opacities": torch.full((n,), values.get("opacity", 2.0)),
        "sh0": torch.zeros(n, 1, 3),
        "shN": torch.zeros(n, 15, 3),
    }
    return {k: v.double() for k, v in rows.items()}


def plain_view(width: int = 33, height: int = 21) -> View:
    K = torch.tensor([[30.0, 0.0, width / 2], [0.0, 30.0, height / 2], [0.0, 0.0, 1.0]])
    return View(torch.eye(4), K, width, height)
