# SPDX-License-Identifier: Apache-2.0
"""How good an image is, and the file that says how good a run was."""

from __future__ import annotations

import importlib.metadata
import json
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gs_train.files.atomic import replacing
from gs_train.losses.ssim import C1, C2, HALO, blur

PACKAGES = (
    *("gs-train", "gs-cull", "gs-order", "gs-pinned", "gs-adam", "gs-raster"),
    *("torch", "gsplat", "numba", "numpy", "scipy"),
)
NOT_AVAILABLE = "n/a"

_STRIP = 64


@dataclass(frozen=True)
class ImageScore:
    """Scores of one test image.

    Attributes:
        index: of the view, in the capture.
        name: of the view, printable: several views may have the same.
        psnr: dB; infinite for identical images.
        ssim: at most 1.
        lpips: None when its weights are not there.
        fitted_psnr, fitted_ssim, fitted_lpips: of the right half, with colours fitted on the left
            half; None where nothing was fitted.
    """

    index: int
    name: str
    psnr: float
    ssim: float
    lpips: float | None = None
    fitted_psnr: float | None = None
    fitted_ssim: float | None = None
    fitted_lpips: float | None = None


def psnr(image: Tensor, truth: Tensor, kept: Tensor | None = None) -> float:
    """Peak signal-to-noise ratio in dB, for a data range of 1.

    Args:
        image, truth: (H, W, C) floating, same device; not clamped here.
        kept: (H, W, 1) bool with some pixels that are: these alone are compared; None: all.

    Returns:
        -10 log10 of the mean squared error (summed in float64); ``inf`` for identical images. On a
        CPU the same bits for any number of threads.

    Raises:
        ValueError: shapes differ or are not (H, W, C).
    """
    _check_images(image, truth)
    # Row by row: torch adds up one large sum in as many parts as it has threads.
    squares, n_values = (image - truth).square(), image.numel()
    if kept is not None:
        squares, n_values = squares.where(kept, 0.0), int(kept.sum()) * image.shape[2]
    error = float(squares.sum((1, 2), dtype=torch.float64).sum()) / n_values
    return -10.0 * math.log10(error) if error > 0 else math.inf


def ssim(image: Tensor, truth: Tensor, kept: Tensor | None = None) -> float:
    """Structural similarity (Wang et al. 2004) with a Gaussian window of 11 pixels, sigma 1.5.

    For a data range of 1, averaged over all pixels, borders reflected: what torchmetrics'
    ``structural_similarity_index_measure(..., data_range=1.0)`` says. (A training loss that uses
    only windows inside the image differs a little.)

    Args:
        image, truth: (H, W, C) float32 or float64, same device, H and W at least 6 (the reflected
            border is 5 pixels wide).
        kept: (H, W, 1) bool with some pixels that are: the mean is over these, and a window sees
            these alone, with weights that are scaled to a sum of 1; None: all.

    Returns:
        The mean over pixels and channels, at most 1. On a CPU the same bits for any number of
        threads.

    Raises:
        ValueError: shapes differ, are not (H, W, C) or are too small.

    Cost: the separable window as 22 additions, on strips of 64 rows, so memory is about 20 strips
        and no image-sized intermediate exists.
    """
    _check_images(image, truth)
    height, width, channels = image.shape
    if min(height, width) <= HALO:
        raise ValueError(
            f"image must be at least {HALO + 1} pixels high and wide, got {height} x {width}"
        )
    rows, columns = _reflected(height, image.device), _reflected(width, image.device)
    total = torch.zeros((), dtype=torch.float64, device=image.device)
    n_values = height * width * channels
    if kept is not None:
        image, truth = image.where(kept, 0.0), truth.where(kept, 0.0)
        n_values = int(kept.sum()) * channels
    for top in range(0, height, _STRIP):
        n = min(_STRIP, height - top)
        strip = rows[top : top + n + 2 * HALO]
        x = image[strip][:, columns].permute(2, 0, 1)
        y = truth[strip][:, columns].permute(2, 0, 1)
        # No matrix product: how its sums are split may depend on the number of threads.
        means = blur(torch.stack((x, y, x * x, y * y, x * y)))
        if kept is not None:
            counts = kept[top : top + n].permute(2, 0, 1)
            seen = blur(kept[strip][:, columns].permute(2, 0, 1).to(image.dtype))
            means = means / seen.where(counts, 1.0)
        mean_x, mean_y, xx, yy, xy = means
        variance = (xx - mean_x.square()).clamp(min=0) + (yy - mean_y.square()).clamp(min=0)
        covariance = xy - mean_x * mean_y
        luminance = (2 * mean_x * mean_y + C1) / (mean_x.square() + mean_y.square() + C1)
        similarity = luminance * (2 * covariance + C2) / (variance + C2)
        if kept is not None:
            similarity = similarity.where(counts, 0.0)
        total += similarity.sum(-1, dtype=torch.float64).sum()  # row by row, see psnr
    return float(total) / n_values


def package_versions() -> dict[str, str | None]:
    """Versions of python and of the packages that a result may depend on; None: not installed."""
    versions: dict[str, str | None] = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            versions[package] = None
    return versions


def write_metrics(
    path: str | Path,
    *,
    images: Sequence[ImageScore],
    steps: int,
    seconds: float,
    images_per_second: float,
    n_gaussians: int,
    peak_device_bytes: int,
    peak_device_reserved_bytes: int,
    peak_host_bytes: int,
    preset: str,
    renderer: str,
    seed: int,
    run_id: str | None = None,
    lpips_net: str | None = None,
    lpips_missing: str | None = None,
    is_fitted: bool = False,
    figures: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write what a run reached as JSON.

    Args:
        path: the file, replaced when it is complete.
        images: scores of the test images; psnr, ssim and lpips are their means.
        steps: optimizer steps done.
        seconds: of training, without evaluation.
        images_per_second: images trained on, over ``seconds``.
        n_gaussians: at the end.
        peak_device_bytes: the most device memory that tensors held, scores of held-out views while
            training included; 0 on the CPU.
        peak_device_reserved_bytes: the most that torch's allocator held, which --device-memory
            caps; 0 on the CPU.
        peak_host_bytes: the most memory that training had resident.
        preset, renderer, seed: what was run.
        run_id: which run it was, where it has an id.
        lpips_net: the network behind lpips.
        lpips_missing: why there is no lpips, and the remedy; written where given.
        is_fitted: whether there are scores of right halves, with colours fitted on left halves.
        figures: more sections, of training: :func:`gs_train.runs.figures.figures`.

    Returns:
        What was written: psnr, ssim, lpips, perhaps the same of right halves as fitted_psnr and so
        on (means of the images that have them), lpips_net, perhaps lpips_missing, steps, seconds,
        images_per_second, n_gaussians, the three peaks, preset, renderer, seed, run_id, versions,
        images, and ``figures``.
        A score that does not exist (no test image, no weights) is "n/a"; infinity is "inf", because
        JSON has no word for it.
    """
    metrics: dict[str, Any] = {
        "psnr": _mean([image.psnr for image in images]),
        "ssim": _mean([image.ssim for image in images]),
        "lpips": _mean([image.lpips for image in images]),
        **(_fitted(images) if is_fitted else {}),
        "lpips_net": lpips_net or NOT_AVAILABLE,
        **({"lpips_missing": lpips_missing} if lpips_missing else {}),
        "steps": steps,
        "seconds": seconds,
        "images_per_second": images_per_second,
        "n_gaussians": n_gaussians,
        "peak_device_bytes": peak_device_bytes,
        "peak_device_reserved_bytes": peak_device_reserved_bytes,
        "peak_host_bytes": peak_host_bytes,
        "preset": preset,
        "renderer": renderer,
        "seed": seed,
        "run_id": run_id,
        "versions": package_versions(),
        "images": [
            {
                "name": image.name,
                "psnr": _mean([image.psnr]),
                "ssim": _mean([image.ssim]),
                "lpips": _mean([image.lpips]),
                **(_fitted([image]) if is_fitted else {}),
            }
            for image in images
        ],
        **(figures or {}),
    }
    with replacing(path) as file:
        file.write((json.dumps(metrics, indent=2, allow_nan=False) + "\n").encode())
    return metrics


def _check_images(image: Tensor, truth: Tensor) -> None:
    if image.ndim != 3 or image.shape != truth.shape:
        raise ValueError(
            f"image and truth must have the same shape (H, W, C), got {tuple(image.shape)} "
            f"and {tuple(truth.shape)}"
        )


def _reflected(n: int, device: torch.device) -> Tensor:
    """(n + 10,) indices of a line with 5 values reflected at either end, ends not repeated."""
    index = torch.arange(-HALO, n + HALO, device=device).abs()
    return torch.where(index < n, index, 2 * (n - 1) - index)


def _fitted(images: Sequence[ImageScore]) -> dict[str, float | str]:
    """Means over the images that have such scores."""
    fitted = [image for image in images if image.fitted_psnr is not None]
    names = ("fitted_psnr", "fitted_ssim", "fitted_lpips")
    return {name: _mean([getattr(image, name) for image in fitted]) for name in names}


def _mean(values: Sequence[float | None]) -> float | str:
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return NOT_AVAILABLE
    mean = sum(known) / len(known)
    return mean if math.isfinite(mean) else str(mean)
