# SPDX-License-Identifier: Apache-2.0
"""CUDA against the host path, and against gsplat's own kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import gs_cull

from .oracle import Scene, random_scene, seen_by

pytestmark = pytest.mark.gpu


def on_cuda(scene: Scene) -> tuple[tuple[Any, ...], Any]:
    """Arguments of cull and opacities, on the device."""
    arguments = tuple(
        torch.from_numpy(a).cuda() if isinstance(a, np.ndarray) else a for a in scene.arguments
    )
    return arguments, None if scene.opacities is None else torch.from_numpy(scene.opacities).cuda()


def same(a: gs_cull.Visibility, b: gs_cull.Visibility) -> None:
    assert torch.equal(a.ids, b.ids)
    assert torch.equal(a.mask, b.mask)
    assert torch.equal(a.counts, b.counts)


def gsplat_seen(scene: Scene, antialiased: bool = False, **options: Any) -> np.ndarray:
    """(B, N) radii > 0 of gsplat's CUDA kernel."""
    from gsplat import fully_fused_projection

    (means, scales, quats, viewmats, Ks, width, height), opacities = on_cuda(scene)
    radii, *_ = fully_fused_projection(
        means,
        None,
        quats,
        scales.exp(),
        viewmats,
        Ks,
        width,
        height,
        near_plane=options.get("near", 0.01),
        far_plane=options.get("far", 1e10),
        radius_clip=options.get("radius_clip", 0.0),
        calc_compensations=antialiased,
        camera_model=options.get("camera_model", "pinhole"),
        opacities=None if opacities is None else opacities.sigmoid(),
    )
    return (radii > 0).all(-1).cpu().numpy()


@pytest.mark.parametrize("opacity", [True, False])
@pytest.mark.parametrize("antialiased", [True, False])
@pytest.mark.parametrize("camera_model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("log_scale", [(-3.0, 1.0), (-12.0, 1.0), (2.0, 1.0), (-3.0, 4.0)])
def test_nothing_that_gsplats_kernel_draws_is_missing(
    opacity: bool,
    antialiased: bool,
    camera_model: Any,
    log_scale: tuple[float, float],
    record_property: Any,
) -> None:
    scene = random_scene(1, 200_000, 6, log_scale=log_scale, opacity=opacity)
    options: dict[str, Any] = {"antialiased": antialiased, "camera_model": camera_model}
    arguments, opacities = on_cuda(scene)
    ours = seen_by(gs_cull.cull(*arguments, opacities=opacities, **options), 200_000)
    theirs = gsplat_seen(scene, **options)
    extras = int((ours & ~theirs).sum())
    record_property("extras", f"{extras} of {int(theirs.sum())}")
    assert not (theirs & ~ours).any()
    if log_scale == (-3.0, 1.0):
        assert extras <= 5 + 1e-3 * theirs.sum()


@pytest.mark.parametrize("options", [{"radius_clip": 3.0}, {"near": 1.0, "far": 6.0}])
def test_options_reach_the_kernel(options: dict[str, float]) -> None:
    scene = random_scene(2, 100_000, 3)
    arguments, opacities = on_cuda(scene)
    ours = seen_by(gs_cull.cull(*arguments, opacities=opacities, **options), 100_000)
    theirs = gsplat_seen(scene, **options)
    assert not (theirs & ~ours).any()
    assert (ours & ~theirs).sum() <= 5 + 1e-3 * theirs.sum()


@pytest.mark.parametrize("n_views", [0, 1, 2, 32, 33, 70])
@pytest.mark.parametrize("n", [0, 1, 31, 257, 40_000])
def test_the_device_agrees_with_the_host(n: int, n_views: int) -> None:
    scene = random_scene(3, n, n_views)
    scene.means[::13] = np.nan
    arguments, opacities = on_cuda(scene)
    device = gs_cull.cull(*arguments, opacities=opacities)
    host = gs_cull.cull(*scene.arguments, opacities=scene.opacities)
    assert device.n_not_finite == host.n_not_finite == len(range(0, n, 13))
    assert device.ids.dtype == device.mask.dtype == device.counts.dtype == torch.int32
    a, b = seen_by(device, n), seen_by(host, n)
    # exp, sqrt and fused multiply-add round differently.
    assert (a != b).sum() <= 3 + 1e-4 * b.sum()
    assert device.counts.tolist() == a.sum(1).tolist()
    assert device.ids.tolist() == np.flatnonzero(a.any(0)).tolist()
    assert device.mask.shape == (len(device.ids), -(-n_views // 32))


@pytest.mark.parametrize("sort", [True, False])
@pytest.mark.parametrize("block_size", [32, 256, 1024, 4096])
@pytest.mark.parametrize("camera_model", ["pinhole", "ortho", "fisheye"])
def test_blocks_do_not_change_the_set(sort: bool, block_size: int, camera_model: Any) -> None:
    scene = random_scene(4, 100_003, 40, spread=20.0)
    scene.means[::1000] = np.inf
    arguments, opacities = on_cuda(scene)
    blocks = gs_cull.Blocks.build(*arguments[:3], block_size=block_size, sort=sort)
    options: dict[str, Any] = {"opacities": opacities, "camera_model": camera_model}
    without = gs_cull.cull(*arguments, **options)
    assert 0 < len(without) < 100_003
    same(gs_cull.cull(*arguments, blocks=blocks, **options), without)
    assert blocks.n_not_finite == 101
    one = (*arguments[:3], arguments[3][:1], arguments[4][:1], *arguments[5:])
    alone = gs_cull.cull(*one, blocks=blocks, **options)
    assert torch.equal(alone.ids, without.view(0))
    assert torch.equal(alone.mask, torch.ones_like(alone.mask))


def test_order_and_bounds_equal_those_of_the_host() -> None:
    scene = random_scene(5, 50_000, 3)
    arguments, _ = on_cuda(scene)
    device = gs_cull.Blocks.build(*arguments[:3], block_size=128, slack_means=0.5)
    host = gs_cull.Blocks.build(*scene.arguments[:3], block_size=128, slack_means=0.5)
    assert device.order.tolist() == host.order.tolist()
    for name in ("lower", "upper", "slack", "not_finite"):
        assert getattr(device, name).tolist() == getattr(host, name).tolist()
    assert torch.allclose(device.scale.cpu(), torch.from_numpy(host.scale), rtol=1e-6)
    a, b = device.visible(*arguments[3:]), host.visible(*scene.arguments[3:])
    assert np.setxor1d(a.ids.cpu().numpy(), b.ids).size <= 1


def test_drift_within_the_slack_and_partial_refits() -> None:
    scene = random_scene(6, 30_000, 10)
    (means, scales, quats, *views), opacities = on_cuda(scene)
    blocks = gs_cull.Blocks.build(means, scales, quats, block_size=64, slack_means=0.2)
    means = means + 0.199 * torch.randn_like(means).sign()
    rows = (means, scales, quats)
    same(
        gs_cull.cull(*rows, *views, opacities=opacities, blocks=blocks),
        gs_cull.cull(*rows, *views, opacities=opacities),
    )
    touched = torch.tensor([3, 400], device="cuda")
    moved = (blocks.order.view(-1)[3 * 64 : 4 * 64]).long()
    means[moved] += 30
    blocks.widen(means=0.1)
    blocks.refit(*rows, blocks=touched)
    assert (
        blocks.slack[:, 0]
        .cpu()
        .allclose(torch.full((len(blocks),), 0.3).index_fill(0, touched.cpu(), 0.2))
    )
    same(
        gs_cull.cull(*rows, *views, opacities=opacities, blocks=blocks),
        gs_cull.cull(*rows, *views, opacities=opacities),
    )


def test_slots_give_global_ids() -> None:
    scene = random_scene(7, 10_000, 33)
    arguments, opacities = on_cuda(scene)
    size = 256
    blocks = gs_cull.Blocks.build(*arguments[:3], block_size=size, sort=False)
    slots = torch.tensor([5, -1, 39, 0, 17])
    rows = (slots[:, None] * size + torch.arange(size)).clamp(0, 9_999).ravel().cuda()
    tables = [a[rows] for a in arguments[:3]]
    found = gs_cull.cull(
        *tables, *arguments[3:], opacities=opacities[rows], blocks=blocks.in_slots(slots)
    )
    whole = gs_cull.cull(*arguments, opacities=opacities)
    present = torch.isin((whole.ids // size).long(), slots.cuda())
    assert torch.equal(found.ids, whole.ids[present])
    assert torch.equal(found.mask, whole.mask[present])


@pytest.mark.parametrize("n_views", [1, 31, 64, 100])
def test_pair_counts_are_exact(n_views: int) -> None:
    scene = random_scene(8, 20_000, n_views)
    arguments, opacities = on_cuda(scene)
    visibility = gs_cull.cull(*arguments, opacities=opacities)
    seen = seen_by(visibility, 20_000).astype(np.int64)
    assert visibility.and_counts().tolist() == (seen @ seen.T).tolist()
    outside = seen @ (1 - seen).T
    assert visibility.xor_counts().tolist() == (outside + outside.T).tolist()


def test_crops_and_splits() -> None:
    scene = random_scene(9, 50_000, 1)
    (means, scales, quats, viewmats, Ks, *size), opacities = on_cuda(scene)
    split = gs_cull.balanced_split(
        means, scales, quats, viewmats[0], Ks[0], *size, n=3, opacities=opacities
    )
    rows = (means, scales, quats)
    views = (viewmats.expand(3, 4, 4), Ks.expand(3, 3, 3), *size)
    crops = gs_cull.cull(*rows, *views, opacities=opacities, rects=split.rects)
    assert crops.counts.tolist() == split.counts.tolist()
    whole = gs_cull.cull(*rows, viewmats, Ks, *size, opacities=opacities)
    assert torch.equal(crops.ids, whole.ids)
    host = gs_cull.balanced_split(
        *scene.arguments[:3], scene.viewmats[0], scene.Ks[0], *size, n=3,
        opacities=scene.opacities,
    )  # fmt: skip
    assert np.abs(split.parts - host.parts).max() <= 1


def test_two_crops_render_like_the_whole_view() -> None:
    from gsplat import rasterization

    scene = random_scene(10, 50_000, 1, log_scale=(-3.5, 0.7))
    arguments, opacities = on_cuda(scene)
    views = arguments[3:]
    cut = 304  # on a border of gsplat's 16 pixel tiles, so that both renderings tile alike
    rects = np.array([[0, 0, cut, 460], [cut, 0, 640, 460]])
    pair = (views[0].expand(2, 4, 4), views[1].expand(2, 3, 3), *views[2:])
    crops = gs_cull.cull(*arguments[:3], *pair, opacities=opacities, rects=rects)
    generator = torch.Generator("cuda").manual_seed(0)
    colors = torch.rand((50_000, 3), device="cuda", generator=generator)
    weights = torch.rand((460, 640, 3), device="cuda", generator=generator)

    def rendered(parts: list[tuple[torch.Tensor, slice]]) -> list[torch.Tensor]:
        leaves = [a.clone().requires_grad_() for a in (*arguments[:3], opacities, colors)]
        pieces = []
        for ids, columns in parts:
            means, scales, quats, logits, rgb = (leaf[ids.long()] for leaf in leaves)
            image, *_ = rasterization(
                means, quats, scales.exp(), logits.sigmoid(), rgb, *views, packed=False
            )
            pieces.append(image[0][:, columns])
        joined = torch.cat(pieces, 1)
        return [joined.detach(), *torch.autograd.grad((joined * weights).sum(), leaves)]

    everything = torch.arange(50_000, device="cuda")
    whole = rendered([(everything, slice(0, 640))])
    halves = rendered([(crops.view(0), slice(0, cut)), (crops.view(1), slice(cut, 640))])
    assert (whole[0] - halves[0]).abs().max() <= 1e-5
    for one, two in zip(whole[1:], halves[1:]):
        # gsplat adds gradients atomically: two identical runs differ as much.
        assert (one - two).norm() <= 1e-4 * one.norm()


def test_work_is_ordered_on_the_current_stream() -> None:
    scene = random_scene(11, 100_000, 5)
    arguments, opacities = on_cuda(scene)
    expected = gs_cull.cull(*arguments, opacities=opacities)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        # Makes a fault likelier to show. The outcome of right code does not depend on it.
        torch.cuda._sleep(20_000_000)
        late = arguments[0] + 0  # not there before the sleep ends
        found = gs_cull.cull(late, *arguments[1:], opacities=opacities)
        ids = found.ids + 0
    side.synchronize()
    assert torch.equal(ids, expected.ids)


def test_workspace_is_small() -> None:
    n = 4_000_000
    scene = random_scene(12, n, 1)
    scene.viewmats[:] = np.eye(4)
    arguments, opacities = on_cuda(scene)
    gs_cull.cull(*arguments, opacities=opacities)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    visibility = gs_cull.cull(*arguments, opacities=opacities)
    result = sum(t.numel() * 4 for t in (visibility.ids, visibility.mask, visibility.counts))
    assert torch.cuda.max_memory_allocated() - before - result < n
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    blocks = gs_cull.Blocks.build(*arguments[:3])
    assert torch.cuda.max_memory_allocated() - before <= 32 * n
    assert blocks.order.is_cuda


def test_bad_input_on_the_device_is_named() -> None:
    scene = random_scene(13, 100, 3)
    (means, scales, quats, viewmats, Ks, *size), opacities = on_cuda(scene)
    with pytest.raises(ValueError, match="scales must be on cuda:0, got the CPU"):
        gs_cull.cull(means, scales.cpu(), quats, viewmats, Ks, *size)
    with pytest.raises(ValueError, match="viewmats must be on cuda:0, got the CPU"):
        gs_cull.cull(means, scales, quats, viewmats.cpu(), Ks, *size)
    with pytest.raises(ValueError, match="viewmats must be on the CPU, got cuda:0"):
        gs_cull.cull(means.cpu(), scales.cpu(), quats.cpu(), viewmats, Ks, *size)
    broken = viewmats.clone()
    broken[2, 1, 3] = torch.nan
    with pytest.raises(ValueError, match="viewmats must be finite, got NaN or Inf in view 2"):
        gs_cull.cull(means, scales, quats, broken, Ks, *size, opacities=opacities)
    singular = Ks.clone()
    singular[1, 0, 0] = 0
    with pytest.raises(ValueError, match="got singular intrinsics in view 1"):
        gs_cull.cull(means, scales, quats, viewmats, singular, *size)
    blocks = gs_cull.Blocks.build(means, scales, quats, block_size=32)
    with pytest.raises(ValueError, match="got singular intrinsics in view 1"):
        blocks.visible(viewmats, singular, *size)
