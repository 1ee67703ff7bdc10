# SPDX-License-Identifier: Apache-2.0
"""Scores of renders against photographs with masks."""

from __future__ import annotations

import math

import pytest
import torch

from gs_train.losses.mask import IGNORED, KEPT
from gs_train.losses.ssim import C1, C2, window_weights
from gs_train.runs.metrics import psnr, ssim
from gs_train.runs.scores import picture_of, score_of


def _pair(height: int, width: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(height)
    image = torch.rand((height, width, 3), generator=draw, dtype=torch.float64)
    truth = 0.7 * image + 0.3 * torch.rand(image.shape, generator=draw, dtype=torch.float64)
    kept = torch.rand((height, width, 1), generator=draw) < 0.6
    kept[2 : height // 2, 3:9] = False
    return image, truth, kept


def _ssim_by_definition(image: torch.Tensor, truth: torch.Tensor, kept: torch.Tensor) -> float:
    """One window after the other, borders reflected."""
    height, width, _ = image.shape
    weights = torch.tensor(window_weights(), dtype=torch.float64)
    window = weights[:, None] * weights

    def around(at: int, n: int) -> list[int]:
        line = [abs(at + k) for k in range(-5, 6)]
        return [i if i < n else 2 * (n - 1) - i for i in line]

    total, n = 0.0, 0
    for y, x in kept[..., 0].nonzero().tolist():
        rows, columns = around(y, height), around(x, width)
        seen = kept[rows][:, columns][..., 0]
        w = window[seen] / window[seen].sum()
        for c in range(3):
            a, b = (part[rows][:, columns][..., c][seen] for part in (image, truth))
            mean_a, mean_b = (w * a).sum(), (w * b).sum()
            spread = (w * (a - mean_a) ** 2).sum() + (w * (b - mean_b) ** 2).sum()
            together = (w * (a - mean_a) * (b - mean_b)).sum()
            luminance = (2 * mean_a * mean_b + C1) / (mean_a**2 + mean_b**2 + C1)
            total += float(luminance * (2 * together + C2) / (spread + C2))
            n += 1
    return total / n


def test_ssim_is_its_definition() -> None:
    image, truth, kept = _pair(13, 17)
    expected = _ssim_by_definition(image, truth, kept)
    assert ssim(image, truth, kept) == pytest.approx(expected, rel=1e-11)


def test_psnr_is_over_kept_pixels() -> None:
    image, truth, kept = _pair(13, 17)
    error = (image - truth)[kept[..., 0]].square().mean().item()
    assert psnr(image, truth, kept) == pytest.approx(-10 * math.log10(error))


def test_a_mask_that_keeps_all_changes_no_score() -> None:
    image, truth, kept = _pair(80, 90)  # more than a tile
    every = torch.ones_like(kept)
    assert psnr(image, truth, every) == psnr(image, truth)
    assert ssim(image, truth, every) == pytest.approx(ssim(image, truth), rel=1e-12)


def _photograph(truth: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
    states = torch.where(kept, KEPT, IGNORED).byte()
    return torch.cat([(255 * truth).byte(), states], dim=2)


class _FakeLpips:
    """Its value depends on all pixels."""

    net = "alex"

    def __call__(self, image: torch.Tensor, truth: torch.Tensor, kept: torch.Tensor) -> float:
        return float((image * 2 + truth)[kept[..., 0]].sum())


def test_no_score_and_no_picture_depends_on_what_is_hidden() -> None:
    image, truth, kept = _pair(70, 80)
    image, lpips = image.float(), _FakeLpips()
    photograph = _photograph(truth, kept)
    other_image, other = image.clone(), photograph.clone()
    other_image[~kept[..., 0]] = 1e30
    other[..., :3][~kept[..., 0]] = 200
    score = score_of(0, "a", image, photograph, lpips)  # type: ignore[arg-type]
    assert score is not None
    assert math.isfinite(score.psnr + score.ssim)
    assert score_of(0, "a", other_image, other, lpips) == score  # type: ignore[arg-type]
    pictures = picture_of("a", image, photograph), picture_of("a", other_image, other)
    for ours, theirs in zip(pictures[0][1:], pictures[1][1:], strict=True):
        assert ours.shape == (70, 80, 3)
        assert (ours == theirs).all()
        assert not ours[~kept[..., 0].numpy()].any()


def test_a_photograph_that_is_hidden_has_no_score() -> None:
    image, truth, kept = _pair(20, 20)
    assert score_of(0, "a", image.float(), _photograph(truth, kept & False), None) is None
