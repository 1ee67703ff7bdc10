# SPDX-License-Identifier: Apache-2.0
"""Marks on a CUDA device: what cull finds there, without a wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import gs_cull

from .oracle import Scene, random_scene
from .test_gpu import on_cuda
from .test_mark import listed, make_odd, marks, rects_of

pytestmark = pytest.mark.gpu

WIDE = gs_cull.Inflate(means=0.3, scales=0.2, quats=0.1, opacities=0.5)

# Some tenths of a second on any device: long beside a call, short beside a test.
LONG = 1_000_000_000


@pytest.fixture(autouse=True)
def trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GS_CHECK_INDEX", "0")


def on_device(scene: Scene, **options: Any) -> tuple[gs_cull.Visibility, Callable[..., Any]]:
    """The early list on the device, and a call that marks it; what the call is given replaces its
    arguments."""
    arguments, opacities = on_cuda(scene)
    early = gs_cull.cull(*arguments, opacities=opacities, inflate=WIDE, **options)
    names = ("means", "scales", "quats", "viewmats", "Ks", "width", "height")
    given = dict(zip(names, arguments), ids=early.ids, mask=early.mask, opacities=opacities)

    def call(**others: Any) -> torch.Tensor:
        return gs_cull.mark(**{**given, **options, **others})

    return early, call


@pytest.mark.parametrize("n_views", [0, 1, 2, 32, 33, 70, 128, 129, 300])
@pytest.mark.parametrize("n", [0, 1, 31, 257, 40_000])
def test_marked_rows_are_those_of_an_exact_cull(n: int, n_views: int) -> None:
    scene = random_scene(3, n, n_views)
    make_odd(scene, np.random.default_rng(3))
    early, call = on_device(scene)
    arguments, opacities = on_cuda(scene)
    exact = gs_cull.cull(*arguments, opacities=opacities)
    found = call()
    assert found.dtype is torch.bool
    assert found.is_cuda
    assert torch.equal(early.ids[found], exact.ids)
    host_early = listed(scene)
    host = host_early.ids[marks(scene, host_early)]
    # exp and sqrt round differently.
    assert np.setxor1d(early.ids[found].cpu().numpy(), host).size <= 3 + 1e-4 * len(host)


@pytest.mark.parametrize("opacity", [True, False])
@pytest.mark.parametrize("antialiased", [True, False])
@pytest.mark.parametrize("camera_model", ["pinhole", "ortho", "fisheye"])
@pytest.mark.parametrize("crops", [True, False])
def test_options_reach_the_kernel(
    opacity: bool, antialiased: bool, camera_model: Any, crops: bool
) -> None:
    scene = random_scene(4, 60_000, 40, opacity=opacity)
    make_odd(scene, np.random.default_rng(4))
    for radius_clip, near, far, eps2d in ((0.0, 0.01, 1e10, 0.3), (3.0, 1.0, 6.0, 0.0)):
        options: dict[str, Any] = {
            "antialiased": antialiased,
            "camera_model": camera_model,
            "radius_clip": radius_clip,
            "near": near,
            "far": far,
            "eps2d": eps2d,
            "rects": rects_of(np.random.default_rng(5), 40) if crops else None,
        }
        early, call = on_device(scene, **options)
        arguments, opacities = on_cuda(scene)
        exact = gs_cull.cull(*arguments, opacities=opacities, **options)
        assert 0 < len(exact) < len(early)
        assert torch.equal(early.ids[call()], exact.ids)


def test_activated_rows_that_have_moved_are_marked_as_they_are_now() -> None:
    scene = random_scene(5, 50_000, 8)
    scene.scales = np.exp(scene.scales)
    scene.opacities = 1 / (1 + np.exp(-scene.opacities))
    early, call = on_device(scene, activated=True)
    (means, scales, quats, *views), opacities = on_cuda(scene)
    means += 0.2 * torch.randn_like(means).sign()
    scales += 0.1
    rows = {"means": means, "scales": scales, "quats": quats, "opacities": opacities}
    viewmats, Ks, width, height = views
    exact = gs_cull.cull(
        **rows, viewmats=viewmats, Ks=Ks, width=width, height=height, activated=True
    )
    assert torch.equal(early.ids[call(**rows)], exact.ids)


def test_views_of_their_own_sizes_are_told_apart() -> None:
    scene = random_scene(6, 5_000, 300)
    rng = np.random.default_rng(0)
    sizes = {"width": rng.integers(100, 800, 300), "height": rng.integers(100, 800, 300)}
    arguments, opacities = on_cuda(scene)
    early = gs_cull.cull(*arguments[:5], **sizes, opacities=opacities, inflate=WIDE)
    exact = gs_cull.cull(*arguments[:5], **sizes, opacities=opacities)
    found = gs_cull.mark(
        *arguments[:5], **sizes, ids=early.ids, mask=early.mask, opacities=opacities
    )
    assert torch.equal(early.ids[found], exact.ids)


def test_only_the_views_of_the_mask_are_asked() -> None:
    scene = random_scene(7, 20_000, 70)
    early, call = on_device(scene)
    arguments, opacities = on_cuda(scene)
    exact = gs_cull.cull(*arguments, opacities=opacities)
    words = torch.zeros((20_000, 3), dtype=torch.int32, device="cuda")
    words[exact.ids.long()] = exact.mask
    generator = torch.Generator("cuda").manual_seed(0)
    some = torch.randint(
        -(2**31), 2**31, early.mask.shape, dtype=torch.int32, device="cuda", generator=generator
    )
    some &= torch.tensor([0, 0x10, 0x3F], dtype=torch.int32, device="cuda")
    expected = (words[early.ids.long()] & some).any(1)
    assert expected.any()
    assert not expected.all()
    assert torch.equal(call(mask=some), expected)
    # A bit at or above B counts for nothing.
    some[:, 2] |= 0x40
    assert torch.equal(call(mask=some), expected)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("n_views", [0, 1, 40, 200])
def test_torch_never_synchronises_in_a_call(n_views: int) -> None:
    scene = random_scene(8, 60_000, n_views)
    early, call = on_device(scene)
    out = torch.ones(len(early), dtype=torch.bool, device="cuda")
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = call()
        assert call(out=out) is out
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert torch.equal(found, out)


@pytest.mark.asynchrony
@pytest.mark.parametrize("n_views", [0, 1, 40, 200])
def test_a_call_waits_for_nothing(n_views: int) -> None:
    _, call = on_device(random_scene(8, 60_000, n_views))
    # Loads kernels and reserves memory for the second call, which may wait for the device.
    expected, spare = call(), call()
    del spare
    torch.cuda.synchronize()
    torch.cuda._sleep(LONG)
    done = torch.cuda.Event()
    done.record()
    found = call()
    assert not done.query(), "mark waited for its stream"
    torch.cuda.synchronize()
    assert torch.equal(found, expected)


def test_work_is_ordered_on_the_current_stream() -> None:
    scene = random_scene(9, 100_000, 5)
    early, call = on_device(scene)
    means = torch.from_numpy(scene.means).cuda()
    expected = call()
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        late = means + 0  # not there before the sleep ends
        ids = early.ids[call(means=late)]
    side.synchronize()
    assert torch.equal(ids, early.ids[expected])


@pytest.mark.parametrize("n_views", [3, 200])
def test_a_graph_marks_the_rows_as_they_are_when_it_runs(n_views: int) -> None:
    scene = random_scene(10, 30_000, n_views)
    early, call = on_device(scene)
    arguments, opacities = on_cuda(scene)
    means = arguments[0]
    out = torch.zeros(len(early), dtype=torch.bool, device="cuda")
    call(means=means, out=out)  # loads the kernel
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call(means=means, out=out)
    for _ in range(2):
        means += 0.1
        graph.replay()
        exact = gs_cull.cull(*arguments, opacities=opacities)
        assert torch.equal(early.ids[out], exact.ids)


def test_only_the_result_is_allocated() -> None:
    scene = random_scene(11, 100_000, 40)
    early, call = on_device(scene)
    call()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    found = call()
    assert torch.cuda.max_memory_allocated() - before <= len(found) + 512  # torch's rounding
    assert len(found) == len(early)


def test_a_faulty_view_sees_no_row() -> None:
    scene = random_scene(12, 5_000, 3)
    early, call = on_device(scene)
    arguments, opacities = on_cuda(scene)
    two = gs_cull.cull(
        *arguments[:3], arguments[3][:2].contiguous(), arguments[4][:2].contiguous(),
        *arguments[5:], opacities=opacities,
    )  # fmt: skip
    broken, singular = arguments[3].clone(), arguments[4].clone()
    broken[2, 1, 3] = torch.nan
    singular[2, 0, 0] = 0
    assert torch.equal(early.ids[call(viewmats=broken)], two.ids)
    assert torch.equal(early.ids[call(Ks=singular)], two.ids)


def test_checked_mode_refuses_what_the_host_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = random_scene(13, 100, 3)
    early, call = on_device(scene)
    arguments, _ = on_cuda(scene)
    out = torch.arange(len(early), device="cuda") % 2 == 0
    before = out.clone()
    monkeypatch.setenv("GS_CHECK_INDEX", "1")
    for wrong in (-1, 100):
        ids = early.ids.clone()
        ids[-1] = wrong
        with pytest.raises(IndexError, match=rf"ids must lie in \[0, 100\), got {wrong}"):
            call(ids=ids, out=out)
    with pytest.raises(ValueError, match=r"mask must have no bits beyond its 3 views, .* view 3"):
        call(mask=early.mask | 8, out=out)
    broken, singular = arguments[3].clone(), arguments[4].clone()
    broken[2, 1, 3] = torch.nan
    singular[1, 0, 0] = 0
    with pytest.raises(ValueError, match="viewmats must be finite, got NaN or Inf in view 2"):
        call(viewmats=broken, out=out)
    with pytest.raises(ValueError, match="got singular intrinsics in view 1"):
        call(Ks=singular, out=out)
    assert torch.equal(out, before)
    checked = call()
    monkeypatch.setenv("GS_CHECK_INDEX", "0")
    assert torch.equal(checked, call())


def test_bad_input_on_the_device_is_named() -> None:
    early, call = on_device(random_scene(14, 100, 3))
    n = len(early)
    for others, error, message in (
        ({"ids": early.ids.cpu()}, ValueError, "ids must be on cuda:0, got the CPU"),
        ({"ids": early.ids.long()}, TypeError, "ids must be int32, got int64"),
        ({"ids": early.ids[:-1]}, ValueError, rf"mask must have shape \({n - 1}, 1\), got"),
        ({"mask": early.mask.repeat(1, 2)}, ValueError, rf"mask must have shape \({n}, 1\), got"),
        ({"mask": early.mask.cpu()}, ValueError, "mask must be on cuda:0, got the CPU"),
        ({"mask": early.mask.float()}, TypeError, "mask must be int32, got float32"),
        ({"out": torch.zeros(n, dtype=torch.bool)}, ValueError, "out must be on cuda:0, got"),
        ({"out": torch.zeros(n, device="cuda")}, TypeError, "out must be bool, got float32"),
        (
            {"out": torch.zeros(2 * n, dtype=torch.bool, device="cuda")[::2]},
            ValueError,
            "out must be contiguous",
        ),
    ):
        with pytest.raises(error, match=message):
            call(**others)


@pytest.mark.parametrize("sizes", [[40], [1] * 8, [3, 0, 30]])
def test_kept_views_mark_and_cull_as_views_that_are_given_anew(sizes: list[int]) -> None:
    scene = random_scene(12, 40_000, sum(sizes))
    early, call = on_device(scene)
    (means, scales, quats, viewmats, Ks, *size), opacities = on_cuda(scene)
    parts = [
        gs_cull.Views(viewmat, K, *size)
        for viewmat, K in zip(viewmats.split(sizes), Ks.split(sizes), strict=True)
    ]
    for _ in range(2):
        views = gs_cull.Views.joined(parts)
        rows = (means, scales, quats)
        for _ in range(2):
            found = views.mark(*rows, early.ids, early.mask, opacities=opacities)
            assert torch.equal(found, call(means=means))
            seen = views.cull(*rows, opacities=opacities, inflate=WIDE)
            again = gs_cull.cull(*rows, viewmats, Ks, *size, opacities=opacities, inflate=WIDE)
            assert torch.equal(seen.ids, again.ids)
            assert torch.equal(seen.mask, again.mask)
        means = means + 0.1  # other memory


def test_values_written_to_kept_matrices_count_on_the_device() -> None:
    scene = random_scene(13, 20_000, 3)
    (means, scales, quats, viewmats, Ks, *size), opacities = on_cuda(scene)
    views = gs_cull.Views(viewmats, Ks, *size)
    rules = gs_cull.Rules(near=0.5, antialiased=True)
    for _ in range(2):
        seen = views.cull(means, scales, quats, opacities=opacities, rules=rules)
        exact = gs_cull.cull(
            means, scales, quats, viewmats, Ks, *size, opacities=opacities, near=0.5,
            antialiased=True,
        )  # fmt: skip
        assert torch.equal(seen.ids, exact.ids)
        viewmats[:, 2, 3] += 1.0


def test_what_is_wrong_beside_kept_views_is_named_on_the_device() -> None:
    scene = random_scene(14, 100, 2)
    (means, scales, quats, viewmats, Ks, *size), _ = on_cuda(scene)
    views = gs_cull.Views(viewmats, Ks, *size)
    seen = views.cull(means, scales, quats)
    for _ in range(2):
        with pytest.raises(ValueError, match="scales must be on cuda:0, got the CPU"):
            views.mark(means, scales.cpu(), quats, seen.ids, seen.mask)
        with pytest.raises(ValueError, match=r"mask must have shape"):
            views.mark(means, scales, quats, seen.ids, seen.mask[:-1])
        with pytest.raises(ValueError, match="viewmats must be on cuda:0, got the CPU"):
            gs_cull.Views(viewmats.cpu(), Ks.cpu(), *size).mark(
                means, scales, quats, seen.ids, seen.mask
            )
        views.mark(means, scales, quats, seen.ids, seen.mask)


def test_rows_that_get_another_shape_type_or_order_in_place_are_checked_anew() -> None:
    scene = random_scene(15, 1_000, 2)
    early, call = on_device(scene)
    (means, *_), opacities = on_cuda(scene)
    expected = call()
    assert torch.equal(call(means=means, opacities=opacities), expected)
    means.resize_(999, 3)
    with pytest.raises(ValueError, match=r"scales must have shape \(999, 3\), got \(1000, 3\)"):
        call(means=means)
    means.resize_(1000, 3)
    kept = means.data
    means.data = kept.view(torch.int32)
    with pytest.raises(TypeError, match="means must be float32, got int32"):
        call(means=means)
    means.data = kept.view(3, 1000)
    means.t_()
    with pytest.raises(ValueError, match="means must be contiguous"):
        call(means=means)
    means.data = kept
    opacities.resize_(1000, 1)
    with pytest.raises(ValueError, match=r"opacities must have shape \(1000\), got \(1000, 1\)"):
        call(means=means, opacities=opacities)
    opacities.resize_(1000)
    assert torch.equal(call(means=means, opacities=opacities), expected)
    assert len(early) == len(expected)
