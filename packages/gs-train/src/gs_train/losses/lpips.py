# SPDX-License-Identifier: Apache-2.0
"""Learned perceptual image patch similarity (Zhang et al. 2018), from weights already on disk.

Two files are needed: an ImageNet backbone (torchvision's ``alexnet-owt-7be5be79.pth`` or
``vgg16-397923af.pth``, which its model zoo keeps in torch's hub folder) and the five learned layers
that come with the torchmetrics package. Nothing is ever downloaded.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from gs_train.errors import InputError

Net = Literal["alex", "vgg"]

_FILES = {"alex": "alexnet-owt-7be5be79.pth", "vgg": "vgg16-397923af.pth"}
# The feature layers: an index of "features.N" (3x3, stride 1, padding 1 unless listed below),
# "pool", or "tap" where activations are compared.
_LAYERS: dict[str, tuple[int | str, ...]] = {
    "alex": (0, "tap", "pool", 3, "tap", "pool", 6, "tap", 8, "tap", 10, "tap"),
    "vgg": (
        *(0, 2, "tap", "pool", 5, 7, "tap", "pool", 10, 12, 14, "tap", "pool"),
        *(17, 19, 21, "tap", "pool", 24, 26, 28, "tap"),
    ),
}
_STRIDES = {("alex", 0): (4, 2), ("alex", 3): (1, 2)}
_POOL = {"alex": 3, "vgg": 2}


class Lpips:
    """LPIPS of image pairs; ``net`` names the backbone.

    Args:
        net: ``alex`` or ``vgg``.
        backbone: torchvision's state dict.
        linear: torchmetrics' state dict: ``lin0.model.1.weight`` (1, C, 1, 1) and so on.
        device: where to compute.

    Raises:
        KeyError: a tensor is missing.
    """

    def __init__(
        self,
        net: Net,
        backbone: Mapping[str, Tensor],
        linear: Mapping[str, Tensor],
        device: torch.device | str = "cpu",
    ) -> None:
        self.net = net
        self._convolutions = {
            layer: tuple(
                backbone[f"features.{layer}.{kind}"].to(device) for kind in ("weight", "bias")
            )
            for layer in _LAYERS[net]
            if isinstance(layer, int)
        }
        self._linear = [linear[f"lin{i}.model.1.weight"].to(device) for i in range(5)]
        # The paper's own input scaling, for values in [-1, 1].
        self._shift = torch.tensor([-0.030, -0.088, -0.188], device=device)[:, None, None]
        self._scale = torch.tensor([0.458, 0.448, 0.450], device=device)[:, None, None]

    @torch.no_grad()
    def __call__(self, image: Tensor, truth: Tensor, kept: Tensor | None = None) -> float:
        """LPIPS of two (H, W, 3) float32 images in [0, 1], at least 64 pixels high and wide.

        Args:
            kept: (H, W, 1) bool with some pixels that are: the others are black in both images, and
                the mean of the distances, scaled up to the images' size, is over kept pixels (Gao
                et al. 2022); None: all.
        """
        if kept is not None:
            image, truth = image.where(kept, 0.0), truth.where(kept, 0.0)
        pair = torch.stack((image, truth)).permute(0, 3, 1, 2) * 2 - 1
        x = (pair - self._shift) / self._scale
        taps = iter(self._linear)
        total = 0.0
        for layer in _LAYERS[self.net]:
            if layer == "pool":
                x = F.max_pool2d(x, _POOL[self.net], stride=2)
            elif layer == "tap":
                unit = x * (x.square().sum(1, keepdim=True) + 1e-8).rsqrt()
                difference = (unit[:1] - unit[1:]).square()
                weighted = (difference * next(taps)).sum(1)
                if kept is not None:
                    total += _mean_over(weighted, kept)
                    continue
                # Row by row: one large sum would depend on the number of threads.
                total += float(weighted.sum(-1, dtype=torch.float64).sum()) / weighted.numel()
            elif isinstance(layer, int):
                stride, padding = _STRIDES.get((self.net, layer), (1, 1))
                weight, bias = self._convolutions[layer]
                x = F.relu_(F.conv2d(x, weight, bias, stride=stride, padding=padding))
        return total


def _mean_over(distances: Tensor, kept: Tensor) -> float:
    """Of (1, h, w) distances at the size of ``kept``, (H, W, 1)."""
    size = (kept.shape[0], kept.shape[1])
    whole = F.interpolate(distances[None], size, mode="bilinear", align_corners=False)[0, 0]
    whole = whole.where(kept[..., 0], 0.0)
    return float(whole.sum(-1, dtype=torch.float64).sum()) / int(kept.sum())


def load_lpips(
    net: Net = "alex", *, backbone: str | Path | None = None, device: torch.device | str = "cpu"
) -> Lpips | None:
    """LPIPS when its weights are on this machine, else None.

    Args:
        net: ``alex`` (what most 3DGS papers and gsplat report) or ``vgg`` (what Inria's code does).
        backbone: torchvision's weights file; when None, torch's hub folder is looked at.
        device: where to compute.

    Raises:
        InputError: a backbone was named but it, or torchmetrics, cannot be used.
    """
    path = Path(backbone) if backbone else _hub_file(net)
    linear = _linear_file(net)
    if backbone is None and (linear is None or not path.is_file()):
        return None
    if linear is None:
        raise InputError("LPIPS must have torchmetrics: pip install 'gs-train[eval]'")
    try:
        weights = torch.load(path, map_location="cpu", weights_only=True)
        return Lpips(
            net, weights, torch.load(linear, map_location="cpu", weights_only=True), device
        )
    except Exception as error:  # unpickling garbage raises almost anything
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(
            f"{path} must be torchvision's {_FILES[net]} weights file: {reason}"
        ) from error


def missing_for_lpips(net: Net = "alex") -> str | None:
    """What :func:`load_lpips` without a backbone lacks here and where to get it, in one line; None
    where nothing is missing."""
    missing = []
    if _linear_file(net) is None:
        missing.append("torchmetrics (pip install 'gs-train[eval]')")
    path = _hub_file(net)
    if not path.is_file():
        missing.append(
            f"the weights {path.name} (from https://download.pytorch.org/models/{path.name}, to "
            f"{path.parent} or anywhere that --lpips-backbone names)"
        )
    return f"LPIPS needs {' and '.join(missing)}" if missing else None


def _hub_file(net: Net) -> Path:
    return Path(torch.hub.get_dir(), "checkpoints", _FILES[net])


def _linear_file(net: Net) -> Path | None:
    spec = importlib.util.find_spec("torchmetrics")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "functional" / "image" / "lpips_models" / f"{net}.pth"
    return path if path.is_file() else None
