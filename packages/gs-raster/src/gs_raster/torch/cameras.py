# SPDX-License-Identifier: Apache-2.0
"""Several cameras' views, and their splats in one tensor as gsplat gives them."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from gs_raster.torch.functions import AbsgradPlace
from gs_raster.torch.rasterize import ProjectedSplats, make_view, taken


class Cameras:
    """The views of C cameras.

    Args:
        viewmats: (C, 4, 4).
        Ks: (C, 3, 3).
        width, height: pixels of every image.
        backgrounds: (C, 3), or None.

    Raises:
        NotImplementedError: a gradient of the cameras is asked for, or there are dimensions of a
            batch, or another number of channels.
        ValueError: shapes disagree.
    """

    def __init__(
        self, viewmats: Tensor, Ks: Tensor, width: int, height: int, backgrounds: Tensor | None
    ) -> None:
        for name, matrices, n in (("viewmats", viewmats, 4), ("Ks", Ks, 3)):
            if matrices.requires_grad:
                raise NotImplementedError(
                    f"{name} must not require a gradient: gs-raster has none by the camera"
                )
            if matrices.dim() > 3:
                raise NotImplementedError(
                    f"{name} must have shape (C, {n}, {n}): gs-raster draws no batches of scenes, "
                    f"got {tuple(matrices.shape)}"
                )
            if tuple(matrices.shape) != (len(viewmats), n, n) or not len(viewmats):
                raise ValueError(
                    f"{name} must have shape (C, {n}, {n}), got {tuple(matrices.shape)}"
                )
        if backgrounds is not None and tuple(backgrounds.shape) != (len(viewmats), 3):
            raise NotImplementedError(
                f"backgrounds must have shape (C, 3): gs-raster draws three channels, got "
                f"{tuple(backgrounds.shape)}"
            )
        self.views = [
            make_view(viewmat, K, width, height) for viewmat, K in zip(viewmats, Ks, strict=True)
        ]
        self._backgrounds = backgrounds

    def __len__(self) -> int:
        return len(self.views)

    def background(self, camera: int) -> Tensor | None:
        """(3,) behind a camera's splats."""
        return None if self._backgrounds is None else self._backgrounds[camera].contiguous()


class MeansOfCameras:
    """Splats of C cameras whose positions are one tensor, on which gradients arrive.

    Args:
        projected: splats of each camera, of the same rows.
        packed: keep those that show alone.

    Attributes:
        splats: each camera's, to rasterize.
    """

    def __init__(self, projected: list[ProjectedSplats], *, packed: bool) -> None:
        self._packed = packed
        self._ids: list[Tensor] = []
        if packed:
            self._ids = [(one.records[:, 7] != 0).nonzero().squeeze(-1) for one in projected]
            projected = [taken(one, ids) for one, ids in zip(projected, self._ids, strict=True)]
        means = [one.means2d for one in projected]
        indices: list[Any]
        if packed:
            sizes = [len(one) for one in means]
            self._means2d = means[0] if len(means) == 1 else torch.cat(means)
            parts = [self._means2d] if len(means) == 1 else list(self._means2d.split(sizes))
            ends = accumulate(sizes)
            indices = [slice(end - size, end) for end, size in zip(ends, sizes, strict=True)]
        else:
            # One camera's is no copy: unsqueeze and squeeze are views.
            alone = len(means) == 1
            self._means2d = means[0].unsqueeze(0) if alone else torch.stack(means)
            parts = [self._means2d.squeeze(0)] if alone else list(self._means2d.unbind())
            indices = list(range(len(means)))
        self.splats = [
            replace(one, means2d=part, absgrad_on=AbsgradPlace(self._means2d, index))
            for one, part, index in zip(projected, parts, indices, strict=True)
        ]

    def info(self) -> dict[str, Any]:
        """What gsplat tells of splats."""
        joined = torch.cat if self._packed else torch.stack
        found: dict[str, Any] = dict.fromkeys(("batch_ids", "camera_ids", "gaussian_ids"))
        if self._packed:
            cameras = [torch.full_like(ids, c) for c, ids in enumerate(self._ids)]
            found["gaussian_ids"] = torch.cat(self._ids)
            found["camera_ids"] = torch.cat(cameras)
            found["batch_ids"] = torch.zeros_like(found["camera_ids"])
        found["radii"] = joined([one.radii for one in self.splats if one.radii is not None])
        found["means2d"] = self._means2d
        for name in ("depths", "conics", "opacities"):
            found[name] = joined([getattr(one, name) for one in self.splats])
        return found
