# SPDX-License-Identifier: Apache-2.0
"""Faster-GS's kernels as a peer, where its package ``FasterGSCudaBackend`` is installed.

Its source is nerficg-project/faster-gaussian-splatting on GitHub; nothing of it is here. It draws
rows as they are stored (log scales, logit opacities) into planes of colour, and has no alpha. Its
kernels run on the default stream.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gs_train.renderers import View

INSTALL = "FasterGSCudaBackend must be installed (nerficg-project/faster-gaussian-splatting)"
_NEAR, _FAR = 0.01, 1e10  # as gsplat's


def is_installed() -> bool:
    """Whether its extension is there: a mere folder of its sources would be found as well."""
    found = importlib.util.find_spec
    return bool(found("FasterGSCudaBackend")) and bool(found("FasterGSCudaBackend._C"))


def camera(view: View, sh_degree: int) -> Any:
    """Its settings for a view on a CUDA device, over black. Waits for the device once."""
    from FasterGSCudaBackend.torch_bindings import RasterizerSettings

    rotation, shift = view.viewmat[:3, :3], view.viewmat[:3, 3]
    (focal_x, _, center_x), (_, focal_y, center_y), _ = view.K.tolist()
    return RasterizerSettings(
        w2c=view.viewmat.contiguous(),
        cam_position=-(rotation.T @ shift),
        bg_color=torch.zeros(3, device=view.viewmat.device),
        active_sh_bases=(sh_degree + 1) ** 2,
        width=view.width,
        height=view.height,
        focal_x=focal_x,
        focal_y=focal_y,
        center_x=center_x,
        center_y=center_y,
        near_plane=_NEAR,
        far_plane=_FAR,
        proper_antialiasing=False,
    )


def draw(rows: Mapping[str, Tensor], settings: Any, sums: Tensor | None = None) -> Tensor:
    """Draw rows.

    Args:
        rows: stored attributes, contiguous.
        settings: of :func:`camera`.
        sums: (2, N) float32, contiguous. The backward pass adds 1 to the first row where a Gaussian
            shows, and to the second row the norm of the gradient of its 2D mean, in units of half
            an image: the count and the sum that gsplat's ``DefaultStrategy`` gathers.

    Returns:
        (3, H, W), differentiable.
    """
    from FasterGSCudaBackend.torch_bindings import diff_rasterize

    return diff_rasterize(
        means=rows["means"],
        scales=rows["scales"],
        rotations=rows["quats"],
        opacities=rows["opacities"][:, None],
        sh_coefficients_0=rows["sh0"],
        sh_coefficients_rest=rows["shN"],
        densification_info=torch.empty(0) if sums is None else sums,
        rasterizer_settings=settings,
    )


def adam(parameter: Tensor, rate: float) -> torch.optim.Optimizer:
    """Its Adam of one parameter, one kernel a step."""
    from FasterGSCudaBackend.torch_bindings import FusedAdam

    return FusedAdam([{"params": [parameter], "lr": rate}], lr=rate, eps=1e-15)
