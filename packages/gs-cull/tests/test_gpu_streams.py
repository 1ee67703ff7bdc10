# SPDX-License-Identifier: Apache-2.0
"""On which stream a call works, and for what it waits: a trainer culls its next batch beside the
rendering of this one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gs_cull

from .held_stream import held
from .oracle import random_scene
from .test_gpu import on_cuda, same

pytestmark = pytest.mark.gpu


def variants(n_views: int) -> tuple[dict[str, Callable[[], gs_cull.Visibility]], Any]:
    """Ways to call cull on one scene, and the scene's arguments."""
    scene = random_scene(20, 60_000, n_views)
    arguments, opacities = on_cuda(scene)
    rows, views = arguments[:3], arguments[3:]
    sorted_rows = gs_cull.Blocks.build(*rows, block_size=256, slack_means=0.1)
    in_order = gs_cull.Blocks.build(*rows, block_size=256, sort=False)
    slots = in_order.in_slots(np.arange(len(in_order)))
    padding = len(in_order) * 256 - len(rows[0])
    padded = [torch.nn.functional.pad(a, (0, 0, 0, padding)) for a in rows]
    more = torch.nn.functional.pad(opacities, (0, padding))
    move = gs_cull.Inflate(means=1e-3, scales=1e-2, quats=1e-3, opacities=1e-2)
    rects = np.tile([16, 0, 320, 200], (n_views, 1))
    found = {
        "plain": lambda: gs_cull.cull(*arguments, opacities=opacities),
        "crops": lambda: gs_cull.cull(*arguments, opacities=opacities, rects=rects),
        "inflated": lambda: gs_cull.cull(*arguments, opacities=opacities, inflate=move),
        "blocks": lambda: gs_cull.cull(
            *arguments, opacities=opacities, inflate=move, blocks=sorted_rows
        ),
        "slots": lambda: gs_cull.cull(*padded, *views, opacities=more, blocks=slots),
    }
    return found, arguments


@pytest.mark.asynchrony
@pytest.mark.parametrize("n_views", [1, 40])
def test_a_call_waits_for_its_own_stream_only(n_views: int) -> None:
    calls, _ = variants(n_views)
    busy, own = torch.cuda.Stream(), torch.cuda.Stream()
    for call in calls.values():
        with torch.cuda.stream(own):
            # Loads kernels and reserves memory for the second call, which may wait for the device.
            expected, spare = call(), call()
        del spare
        torch.cuda.synchronize()
        # A call that waited for the other stream would not end.
        with held(busy), torch.cuda.stream(own):
            found = call()
        torch.cuda.synchronize()
        same(found, expected)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("n_views", [1, 40, 200])
def test_torch_never_synchronises_in_a_call(n_views: int) -> None:
    # The native part waits once, in ViewWorkspace::read(); torch reports its own waits here.
    calls, arguments = variants(n_views)
    blocks = gs_cull.Blocks.build(*arguments[:3], block_size=256)
    torch.cuda.set_sync_debug_mode("error")
    try:
        for call in calls.values():
            call()
        blocks.widen(means=0.1)
        blocks.refit(*arguments[:3])
        gs_cull.cull(*arguments, blocks=blocks)
        viewmats, Ks, *size = arguments[3:]
        gs_cull.visible_mask(*arguments[:3], viewmats[0], Ks[0], *size)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_the_next_batch_is_culled_while_this_one_moves_the_rows() -> None:
    scene = random_scene(21, 100_000, 8)
    (means, scales, quats, *views), opacities = on_cuda(scene)
    step, steps = 0.02, 4
    blocks = gs_cull.Blocks.build(means, scales, quats, block_size=128)
    move = gs_cull.Inflate(means=step, scales=step, quats=step, opacities=step)
    generator = torch.Generator("cuda").manual_seed(0)
    rows = (means, scales, quats)
    beside, ready, culled = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    for _ in range(steps):
        blocks.widen(means=step, scales=step)  # for the step that follows
        ready.record()
        torch.cuda._sleep(2_000_000)  # rendering of this batch, however long
        with torch.cuda.stream(beside):
            beside.wait_event(ready)
            ahead = gs_cull.cull(*rows, *views, opacities=opacities, inflate=move, blocks=blocks)
            culled.record()
        torch.cuda.current_stream().wait_event(culled)
        for a in (*rows, opacities):
            a += step * (2 * torch.rand(a.shape, device="cuda", generator=generator) - 1)
        exact = gs_cull.cull(*rows, *views, opacities=opacities)
        same(gs_cull.cull(*rows, *views, opacities=opacities, blocks=blocks), exact)
        for view in range(8):
            missed = ~torch.isin(exact.view(view), ahead.view(view))
            assert not missed.any()
        assert len(ahead) < len(means)


def test_sizes_of_many_views_reach_the_kernel() -> None:
    # Sizes travel 128 views at a time.
    n_views = 300
    scene = random_scene(22, 5_000, n_views)
    arguments, opacities = on_cuda(scene)
    rng = np.random.default_rng(0)
    widths, heights = rng.integers(100, 800, n_views), rng.integers(100, 800, n_views)
    device = gs_cull.cull(*arguments[:5], widths, heights, opacities=opacities)
    host = gs_cull.cull(*scene.arguments[:5], widths, heights, opacities=scene.opacities)
    assert (np.abs(device.counts.cpu().numpy() - host.counts) <= 2 + 1e-3 * host.counts).all()
    broken = arguments[4].clone()
    broken[290, 1, 1] = 0
    with pytest.raises(ValueError, match="got singular intrinsics in view 290"):
        gs_cull.cull(*arguments[:4], broken, widths, heights, opacities=opacities)


@pytest.mark.parametrize("n_views", [0, 3])
def test_blocks_say_how_many_rows_are_not_finite(n_views: int) -> None:
    scene = random_scene(23, 2_000, n_views)
    scene.means[::100] = np.nan
    arguments, opacities = on_cuda(scene)
    blocks = gs_cull.Blocks.build(*arguments[:3], block_size=128, sort=False)
    assert gs_cull.cull(*arguments, opacities=opacities, blocks=blocks).n_not_finite == 20
    some = blocks.in_slots(np.array([3, -1, 0]))
    stored = [torch.cat([a[384:512], a[:128], a[:128]]) for a in arguments[:3]]
    found = gs_cull.cull(
        *stored, *arguments[3:], opacities=opacities[:384].contiguous(), blocks=some
    )
    assert found.n_not_finite == some.n_not_finite == 4
