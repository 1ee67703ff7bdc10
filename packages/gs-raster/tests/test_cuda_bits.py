# SPDX-License-Identifier: Apache-2.0
"""The same bits: from run to run, from any rectangle, from rows in any order, on any stream."""

from __future__ import annotations

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, assert_same_bits, bits, draw, noise, sent, view_of
from raster_drawing import facing_camera, plain_view
from raster_held_stream import held
from torch import Tensor

import gs_raster
from gs_raster import Options, Rect, Rows

pytestmark = pytest.mark.gpu


def scene(seed: int, n_rows: int = 3000) -> tuple[dict[str, Tensor], gs_raster.View]:
    view = oracle.random_view(seed, width=150, height=101)
    rows = oracle.random_rows(seed, view, n_rows=n_rows)
    rows["scales"] -= 0.75
    return sent(rows), view_of(view)


def everything(
    rows: dict[str, Tensor],
    view: gs_raster.View,
    keys: Tensor | None = None,
    rects: list[Rect] | None = None,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Image, depth, and the gradients of rows, drawn by rectangles that tile the view."""
    on_device = Rows.of(rows)
    how = {"sh_degree": 3, "options": Options(antialiased=True)}
    splats = gs_raster.project(on_device, view, keys=keys, **how)  # type: ignore[arg-type]
    image = torch.empty(view.height, view.width, 3, device=DEVICE)
    depth = torch.empty(view.height, view.width, device=DEVICE)
    grads = noise(view.height, view.width, 3), noise(view.height, view.width, seed=1)
    gradients = torch.zeros(splats.n, 12, device=DEVICE)
    for rect in rects or [view.rect]:
        where = slice(rect.y0, rect.y1), slice(rect.x0, rect.x1)
        lists, pixels = draw(splats, rect, depth=True)
        image[where] = pixels.image
        assert pixels.depth is not None
        depth[where] = pixels.depth
        of_image, of_alpha = (grad[where].contiguous() for grad in grads)
        gs_raster.blend_backward(
            splats, lists, pixels, of_image, of_alpha, of_alpha, absgrad=True, out=gradients
        )
    found = gs_raster.project_backward(on_device, view, splats, gradients, **how)  # type: ignore[arg-type]
    return image, depth, found.columns


def test_two_runs_give_the_same_bits() -> None:
    rows, view = scene(1)
    first, second = everything(rows, view), everything(rows, view)
    assert first[0].count_nonzero() > 10_000
    assert_same_bits(bits(*second[:2], *second[2].values()), bits(*first[:2], *first[2].values()))


def test_rectangles_have_the_pixels_of_the_whole_image_bit_for_bit() -> None:
    rows, view = scene(2)
    # Columns and rows that do not fall on tiles.
    rects = [Rect(0, 0, 71, 101), Rect(71, 0, 150, 43), Rect(71, 43, 150, 101)]
    image, depth, gradients = everything(rows, view)
    parts = everything(rows, view, rects=rects)
    assert_same_bits(bits(*parts[:2]), bits(image, depth))
    for name, gradient in gradients.items():  # sums over pixels, in another order
        difference = (parts[2][name] - gradient).norm()
        assert difference <= 1e-4 * gradient.norm(), name


def test_rows_in_another_order_give_the_same_bits() -> None:
    rows, view = scene(3)
    # A third of the rows share one depth: the camera looks along a row of viewmat.
    axis = view.viewmat[2, :3]
    depth = rows["means"] @ axis
    rows["means"][::3] += (2.0 - depth[::3])[:, None] * axis
    n = len(depth)
    keys = torch.randperm(n, generator=torch.Generator().manual_seed(0)).int().to(DEVICE)
    shuffle = torch.randperm(n, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    image, depth, gradients = everything(rows, view, keys)
    moved = {name: values[shuffle] for name, values in rows.items()}
    other = everything(moved, view, keys[shuffle].contiguous())
    assert_same_bits(bits(*other[:2]), bits(image, depth))
    for name, gradient in gradients.items():
        assert_same_bits(bits(other[2][name]), bits(gradient[shuffle]))


@pytest.mark.parametrize("n", [2, 33, 5000])
def test_a_run_of_rows_of_one_depth_is_blended_by_key(n: int) -> None:
    rows, view = sent(facing_camera([2.0] * n, opacity=-3.0)), view_of(plain_view())
    rows["sh0"] = noise(n, 1, 3)
    others = 1 + torch.randperm(n - 1, generator=torch.Generator().manual_seed(2))
    keys = torch.cat([others, torch.zeros(1)]).int().to(DEVICE)  # the last row comes first
    by_key = keys.argsort()
    splats = gs_raster.project(Rows.of(rows), view, sh_degree=0, keys=keys)
    assert torch.equal(splats.order.long(), by_key)
    sorted_rows = {name: values[by_key] for name, values in rows.items()}
    image, *_ = everything(rows, view, keys)
    expected, *_ = everything(sorted_rows, view)
    assert_same_bits(bits(image), bits(expected))
    unkeyed, *_ = everything(rows, view)
    assert not torch.equal(unkeyed, expected)


def test_keys_need_not_be_small() -> None:
    rows, view = scene(4, 500)
    small = torch.arange(500, dtype=torch.int32, device=DEVICE).flip(0)
    large = small * 4_000_000 + 2**20
    assert_same_bits(bits(everything(rows, view, large)[0]), bits(everything(rows, view, small)[0]))


def test_another_stream_gives_the_same_bits() -> None:
    rows, view = scene(5)
    expected = everything(rows, view)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        found = everything(rows, view)
    torch.cuda.current_stream().wait_stream(side)
    assert_same_bits(
        bits(*found[:2], *found[2].values()), bits(*expected[:2], *expected[2].values())
    )


def test_stages_wait_for_their_own_stream_alone() -> None:
    rows, view = scene(6)
    expected = bits(everything(rows, view)[0])
    busy, side = torch.cuda.Stream(), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        everything(rows, view)  # takes the memory, which waits for the device
    side.synchronize()
    with held(busy), torch.cuda.stream(side):
        splats = gs_raster.project(
            Rows.of(rows), view, sh_degree=3, options=Options(antialiased=True)
        )
        _, pixels = draw(splats, depth=True)  # would wait for ever
    side.synchronize()
    assert_same_bits(bits(pixels.image), expected)


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
def test_torch_never_synchronises_in_a_stage() -> None:
    # The native part waits once, in sort(); torch reports its own waits here.
    rows, view = scene(7)
    everything(rows, view)
    on_device = Rows.of(rows)
    grad = noise(view.height, view.width, 3)
    torch.cuda.set_sync_debug_mode("error")
    try:
        splats = gs_raster.project(on_device, view, sh_degree=3, radii=True)
        lists, pixels = draw(splats)
        gradients = gs_raster.blend_backward(splats, lists, pixels, grad)
        gs_raster.project_backward(on_device, view, splats, gradients, sh_degree=3)
    finally:
        torch.cuda.set_sync_debug_mode("default")
