# SPDX-License-Identifier: Apache-2.0
"""The loss of depths by a kernel is that of torch's operations."""

from __future__ import annotations

import pytest
import torch
from interpreted import BY_KERNELS

from gs_train.losses.depth import FULL, add_depth
from gs_train.losses.loss import Crop
from gs_train.losses.mask import CARVED, IGNORED, KEPT
from gs_train.renderers.protocol import DepthMeaning, InverseDepth, MetricDepth, Rect, View

WIDTH, HEIGHT = 90, 47
VIEW = View("v", torch.eye(4), torch.eye(3), WIDTH, HEIGHT)


@BY_KERNELS
@pytest.mark.parametrize("of", [InverseDepth(3.0, -0.25), MetricDepth(1e-4)])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("core", [VIEW.rect, Rect(31, 12, 70, 40)])
def test_share_and_gradients(device: str, of: DepthMeaning, is_masked: bool, core: Rect) -> None:
    from gs_train.losses import depth_triton

    draw = torch.Generator().manual_seed(3)
    crop = Crop(VIEW, core)
    h, w = crop.rect.height, crop.rect.width
    alpha = torch.rand((h, w), generator=draw)
    depth = alpha * (0.5 + 4 * torch.rand((h, w), generator=draw))
    for plane in (alpha, depth):
        plane[3:6, 4:20] = 0.0
    whole = torch.randint(0, 256, (HEIGHT, WIDTH, 6), generator=draw, dtype=torch.uint8)
    whole[..., 3] = KEPT
    whole[10:20, 5:50, 3], whole[22:24, :, 3] = IGNORED, CARVED
    whole[15:25, 20:35, 4:] = 0
    if not is_masked:
        whole = whole[..., [0, 1, 2, 4, 5]].contiguous()
    rect = crop.rect
    truth = whole[rect.y0 : rect.y1, rect.x0 : rect.x1]  # not contiguous where it is a part
    share = torch.tensor(0.5)
    expected = add_depth(share, alpha, depth, truth, crop, of, weight=0.7)
    on = [tensor.to(device) for tensor in (share, alpha, depth)]
    photograph = whole.to(device)[rect.y0 : rect.y1, rect.x0 : rect.x1]
    factor = 0.7 / (WIDTH * HEIGHT)
    line = {"scale": of.unit if isinstance(of, MetricDepth) else of.scale / FULL}
    line["offset"] = None if isinstance(of, MetricDepth) else of.offset
    found = depth_triton.added(*on, photograph, crop, **line, factor=factor)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.cpu(), other, rtol=1e-5, atol=1e-9)
    assert expected[1].count_nonzero() > 0.3 * core.width * core.height
