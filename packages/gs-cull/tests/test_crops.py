# SPDX-License-Identifier: Apache-2.0
"""Crops of a view, and cutting a view where its parts balance."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given, settings

import gs_cull

from .oracle import Scene, project, random_scene


def repeated(scene: Scene, n: int) -> tuple[Any, ...]:
    """The scene's first view n times, as arguments of cull."""
    return (
        scene.means,
        scene.scales,
        scene.quats,
        np.repeat(scene.viewmats[:1], n, 0),
        np.repeat(scene.Ks[:1], n, 0),
        scene.width,
        scene.height,
    )


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    columns=st.lists(st.integers(1, 639), max_size=4, unique=True),
    rows=st.lists(st.integers(1, 459), max_size=3, unique=True),
    camera_model=st.sampled_from(["pinhole", "ortho", "fisheye"]),
)
def test_crops_together_see_what_the_view_sees(
    seed: int, columns: list[int], rows: list[int], camera_model: Any
) -> None:
    scene = random_scene(seed, 2_000, 1, log_scale=(-4.0, 1.5))
    xs, ys = [0, *sorted(columns), 640], [0, *sorted(rows), 460]
    rects = np.array(
        [[a, b, c, d] for a, c in zip(xs, xs[1:]) for b, d in zip(ys, ys[1:])]  # noqa: RUF007
    )
    options = {"opacities": scene.opacities, "camera_model": camera_model}
    crops = gs_cull.cull(*repeated(scene, len(rects)), rects=rects, **options)
    whole = gs_cull.cull(*repeated(scene, 1), **options)
    assert crops.ids.tolist() == whole.ids.tolist()


def test_a_crop_sees_the_rows_whose_box_meets_it() -> None:
    scene = random_scene(3, 20_000, 1, log_scale=(-4.0, 1.5))
    rect = np.array([[100, 50, 300, 200]])
    found = gs_cull.cull(*repeated(scene, 1), opacities=scene.opacities, rects=rect)
    exact = project(scene, torch.float64)
    meets = exact.visible & (exact.u + exact.rx > 100) & (exact.u - exact.rx < 300)
    meets &= (exact.v + exact.ry > 50) & (exact.v - exact.ry < 200)
    expected = np.flatnonzero(meets[0].numpy())
    assert np.isin(expected, found.ids).all()
    assert len(expected) <= len(found) <= 5 + 1.001 * len(expected)
    assert len(found) < len(gs_cull.cull(*repeated(scene, 1), opacities=scene.opacities))


def composite(scene: Scene, leaves: list[torch.Tensor], rect: tuple[int, ...]) -> torch.Tensor:
    """(h, w) grey values of a rectangle: front-to-back compositing in float64, pixel by pixel.

    What gsplat's rasterizer computes: alpha = min(0.999, o exp(-q / 2)), nothing below 1 / 255, all
    rows in order of depth.
    """
    from gsplat.cuda import _torch_impl as gsplat

    means, scales, quats, logits, grey = leaves
    covars, _ = gsplat._quat_scale_to_covar_preci(quats, scales.exp(), True, False)
    views = torch.from_numpy(scene.viewmats[:1]).double()
    means_c, covars_c = gsplat._world_to_cam(means, covars, views)
    Ks = torch.from_numpy(scene.Ks[:1]).double()
    means2d, cov = gsplat._persp_proj(means_c, covars_c, Ks, scene.width, scene.height)
    cov = cov[0] + 0.3 * torch.eye(2, dtype=torch.float64)
    order = means_c[0, :, 2].argsort()
    x0, y0, x1, y1 = rect
    y, x = torch.meshgrid(
        torch.arange(y0, y1, dtype=torch.float64) + 0.5,
        torch.arange(x0, x1, dtype=torch.float64) + 0.5,
        indexing="ij",
    )
    conic = torch.linalg.inv(cov)
    image = torch.zeros_like(x)
    light = torch.ones_like(x)
    for i in order.tolist():
        dx, dy = x - means2d[0, i, 0], y - means2d[0, i, 1]
        q = conic[i, 0, 0] * dx * dx + 2 * conic[i, 0, 1] * dx * dy + conic[i, 1, 1] * dy * dy
        alpha = (logits[i].sigmoid() * torch.exp(-0.5 * q)).clamp_max(0.999)
        alpha = torch.where(alpha < 1 / 255, torch.zeros_like(alpha), alpha)
        image = image + light * alpha * grey[i]
        light = light * (1 - alpha)
    return image


def test_rendering_two_crops_and_joining_equals_rendering_the_whole() -> None:
    scene = random_scene(5, 600, 1, spread=1.0, log_scale=(-2.5, 0.7), width=48, height=32)
    scene.viewmats[0] = np.eye(4)
    scene.viewmats[0, 2, 3] = 3.0
    cut = 21
    everything = gs_cull.cull(*repeated(scene, 1), opacities=scene.opacities)
    crops = gs_cull.cull(
        *repeated(scene, 2),
        opacities=scene.opacities,
        rects=np.array([[0, 0, cut, 32], [cut, 0, 48, 32]]),
    )
    assert crops.counts.min() > 100
    assert crops.counts.max() < len(everything)
    weights = torch.rand((32, 48), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    grey = torch.rand(600, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    arrays = [scene.means, scene.scales, scene.quats, scene.opacities]

    def rendered(parts: list[tuple[np.ndarray, tuple[int, ...]]]) -> tuple[torch.Tensor, ...]:
        leaves = [torch.from_numpy(a).double().requires_grad_() for a in arrays]
        leaves.append(grey.clone().requires_grad_())
        images = [
            composite(scene, [leaf[torch.from_numpy(ids).long()] for leaf in leaves], rect)
            for ids, rect in parts
        ]
        image = torch.cat(images, 1)
        return (image.detach(), *torch.autograd.grad((image * weights).sum(), leaves))

    whole = rendered([(everything.ids, (0, 0, 48, 32))])
    halves = rendered([(crops.view(0), (0, 0, cut, 32)), (crops.view(1), (cut, 0, 48, 32))])
    assert whole[0].max() > 0.3
    for one, two in zip(whole, halves):
        # Rows that a crop leaves out have alpha below 1 / 255 in all its pixels: exact zeros.
        assert (one - two).abs().max() <= 1e-9 * one.abs().max()


@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize("n", [1, 2, 3, 7])
@pytest.mark.parametrize("halo", [0, 5])
def test_split_parts_cover_the_image_and_count_what_cull_finds(
    axis: Any, n: int, halo: int
) -> None:
    scene = random_scene(6, 20_000, 1, log_scale=(-4.0, 1.0))
    view = (scene.viewmats[0], scene.Ks[0], scene.width, scene.height)
    split = gs_cull.balanced_split(
        scene.means, scene.scales, scene.quats, *view,
        n=n, axis=axis, halo=halo, opacities=scene.opacities,
    )  # fmt: skip
    covered = np.zeros((460, 640), int)
    for x0, y0, x1, y1 in split.parts:
        covered[y0:y1, x0:x1] += 1
    assert (covered == 1).all()
    grown = split.parts + np.array([-halo, 0, halo, 0] if axis == "x" else [0, -halo, 0, halo])
    assert (split.rects == grown.clip([0, 0, 0, 0], [640, 460, 640, 460])).all()
    culled = gs_cull.cull(*repeated(scene, n), opacities=scene.opacities, rects=split.rects)
    assert split.counts.tolist() == culled.counts.tolist()
    assert split.n_visible == len(culled)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), n=st.integers(1, 4), halo=st.integers(0, 9))
def test_no_other_cut_has_a_smaller_largest_part(seed: int, n: int, halo: int) -> None:
    rng = np.random.default_rng(seed)
    scene = random_scene(seed, 300, 1, log_scale=(-4.0, 1.0), width=24, height=18)
    scene.means[:, 0] *= np.float32(rng.uniform(0, 1))
    view = (scene.viewmats[0], scene.Ks[0], 24, 18)
    rows = (scene.means, scene.scales, scene.quats)
    split = gs_cull.balanced_split(*rows, *view, n=n, halo=halo)
    boxes = np.array([[a, 0, b, 18] for a in range(24) for b in range(a + 1, 25)])
    counts = gs_cull.cull(*repeated(scene, len(boxes)), rects=boxes).counts
    table = {(a, b): c for (a, _, b, _), c in zip(boxes.tolist(), counts.tolist())}

    def cost(a: int, b: int) -> int:
        return table[max(a - halo, 0), min(b + halo, 24)]

    # Least largest part over all cuts, by dynamic programming.
    best = {b: cost(0, b) for b in range(1, 25)}
    for part in range(1, n):
        best = {
            b: min(max(best[a], cost(a, b)) for a in best if a < b) for b in range(part + 1, 25)
        }
    assert split.counts.max() == best[24]


def test_two_parts_balance() -> None:
    scene = random_scene(7, 50_000, 1, log_scale=(-5.0, 0.5))
    view = (scene.viewmats[0], scene.Ks[0], scene.width, scene.height)
    tensors = [torch.from_numpy(a) for a in (scene.means, scene.scales, scene.quats)]
    matrices = [torch.from_numpy(a) for a in view[:2]]
    split = gs_cull.balanced_split(*tensors, *matrices, *view[2:])
    assert isinstance(split.parts, np.ndarray)
    assert abs(int(split.counts[0]) - int(split.counts[1])) < 0.02 * split.n_visible
    same = gs_cull.balanced_split(scene.means, scene.scales, scene.quats, *view)
    assert same.parts.tolist() == split.parts.tolist()


def test_a_halo_larger_than_the_image_makes_parts_whole() -> None:
    scene = random_scene(8, 50, 1)
    arguments = (
        scene.means, scene.scales, scene.quats, scene.viewmats[0], scene.Ks[0], 640, 460
    )  # fmt: skip
    split = gs_cull.balanced_split(*arguments, n=3, halo=2**31 - 2)
    assert split.rects.tolist() == [[0, 0, 640, 460]] * 3
    assert (split.counts == split.counts[0]).all()


def test_wrong_splits_are_refused() -> None:
    scene = random_scene(8, 50, 1)
    arguments = (
        scene.means, scene.scales, scene.quats, scene.viewmats[0], scene.Ks[0], 640, 460
    )  # fmt: skip
    for options, message in (
        ({"n": 0}, "n must be from 1 to 640, got 0"),
        ({"n": 461, "axis": "y"}, "n must be from 1 to 460, got 461"),
        ({"axis": "z"}, "axis must be x or y, got 'z'"),
        ({"halo": -1}, "halo must be from 0 to 2147483646, got -1"),
    ):
        with pytest.raises(ValueError, match=message):
            gs_cull.balanced_split(*arguments, **options)
