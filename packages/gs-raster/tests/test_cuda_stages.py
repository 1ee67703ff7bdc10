# SPDX-License-Identifier: Apache-2.0
"""Each stage on the device against the same stage for the CPU in float64, on the same inputs."""

from __future__ import annotations

import numpy as np
import pytest
import raster_oracle as oracle
import torch
from raster_device import (
    DEVICE,
    GRADIENTS,
    NAMES,
    draw,
    exact_camera,
    exact_rows,
    exact_splats,
    noise,
    off,
    rows_of,
    splats_of,
    view_of,
)
from torch import Tensor

import gs_raster
from gs_raster import Options, Rect, cpu

pytestmark = pytest.mark.gpu
MODES = pytest.mark.parametrize("antialiased", [False, True], ids=["classic", "antialiased"])


def scene(seed: int, n_rows: int = 2000) -> tuple[dict[str, Tensor], oracle.View]:
    view = oracle.random_view(seed, width=150, height=101)
    rows = {k: v.float() for k, v in oracle.random_rows(seed, view, n_rows=n_rows).items()}
    # Fainter and smaller than on the CPU's tests, which leaves part of the image translucent.
    rows["opacities"] -= 2.0
    rows["scales"] -= 0.75
    return rows, view


@MODES
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_splats_equal_those_of_float64(sh_degree: int, antialiased: bool) -> None:
    rows, view = scene(sh_degree)
    options = Options(antialiased=antialiased)
    found = gs_raster.project(
        rows_of(rows), view_of(view), sh_degree=sh_degree, options=options, radii=True
    )
    expected = cpu.project(
        exact_rows(rows), exact_camera(view), sh_degree=sh_degree, options=options
    )
    shows, should = found.shows.cpu().numpy(), (expected.radii > 0).all(1)
    # A row at a threshold, and a radius, a ceiling, at an integer may tip over.
    assert (shows != should).sum() <= 2
    both = shows & should
    assert 300 < both.sum() < 1900
    assert found.radii is not None
    extents = found.radii.cpu().numpy()
    assert (extents[~shows] == 0).all()
    assert np.abs(extents - expected.radii)[both].max() <= 1
    assert (extents != expected.radii)[both].sum() <= 10
    a, b, c = expected.conics[both].T
    # A needle's inverse amplifies the rounding of its covariance.
    condition = a * c / (a * c - b * b)
    bounds = {
        "means2d": 1e-5 * (150 + np.abs(expected.means2d[both])),
        "conics": 3e-6 * (condition * np.maximum(a, c))[:, None],
        "depths": 1e-5 * np.ones(both.sum()),
        "opacities": 1e-5 * (condition if antialiased else np.ones(both.sum())),
        "colors": 1e-5 * np.ones((both.sum(), 1)),
    }
    for name in NAMES:
        difference = np.abs(
            getattr(found, name).cpu().numpy()[both] - getattr(expected, name)[both]
        )
        assert (difference <= bounds[name]).all(), f"{name}: {(difference / bounds[name]).max()}"


@MODES
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_gradients_of_rows_equal_those_of_float64(sh_degree: int, antialiased: bool) -> None:
    rows, view = scene(10 + sh_degree)
    on_device, camera = rows_of(rows), view_of(view)
    how = {"sh_degree": sh_degree, "options": Options(antialiased=antialiased)}
    splats = gs_raster.project(on_device, camera, radii=True, **how)
    assert splats.radii is not None
    gradients = noise(splats.n, 12)
    found = gs_raster.project_backward(on_device, camera, splats, gradients, **how)
    parts = {
        name: gradients[:, where].double().cpu().numpy()
        for name, where in GRADIENTS.items()
        if name != "absgrad"
    }
    # Rows that show on one side alone have no gradient on the other.
    radii = splats.radii.cpu().numpy()
    expected = cpu.project_backward(
        exact_rows(rows), exact_camera(view), cpu.SplatGradients(**parts), radii=radii, **how
    )
    hidden = ~splats.shows
    assert 100 < hidden.sum() < 1900
    for name, reference in expected._asdict().items():
        gradient = found.columns[name]
        assert gradient[hidden].count_nonzero() == 0
        if name == "shN" and sh_degree == 0:
            assert gradient.count_nonzero() == 0
            continue
        assert off(gradient, torch.from_numpy(reference)) < 1e-4, name


def test_bases_above_the_degree_have_gradient_zero() -> None:
    rows, view = scene(20, 100)
    on_device, camera = rows_of(rows), view_of(view)
    splats = gs_raster.project(on_device, camera, sh_degree=1)
    found = gs_raster.project_backward(on_device, camera, splats, noise(splats.n, 12), sh_degree=1)
    assert found.shN[:, :3].count_nonzero() > 0
    assert found.shN[:, 3:].count_nonzero() == 0


def test_order_is_by_depth_then_by_row_with_hidden_rows_last() -> None:
    rows, view = scene(21)
    splats = splats_of(rows, view)
    order = splats.order.cpu().numpy()
    shows = splats.shows.cpu().numpy()
    depths = splats.depths.cpu().numpy()
    n = shows.sum()
    assert sorted(order) == list(range(splats.n))
    assert shows[order[:n]].all()
    assert not shows[order[n:]].any()
    rows_shown = np.flatnonzero(shows)
    expected = rows_shown[np.argsort(depths[rows_shown], kind="stable")]
    assert (order[:n] == expected).all()


def tiles_that_splats_draw_in(splats: gs_raster.Splats, rect: Rect) -> list[np.ndarray]:
    """By tile of the rectangle: splats whose alpha in some pixel is clearly not below 1/255."""
    exact, found = exact_splats(splats), []
    shows = np.flatnonzero((exact.radii > 0).all(1))
    a, b, c = (exact.conics[shows, i, None, None] for i in range(3))
    mean, opacity = exact.means2d[shows], exact.opacities[shows, None, None]
    for y in range(rect.y0 // 16 * 16, rect.y1, 16):
        for x in range(rect.x0 // 16 * 16, rect.x1, 16):
            xs = np.arange(x, min(x + 16, splats.view.width)) + 0.5
            ys = np.arange(y, min(y + 16, splats.view.height)) + 0.5
            dx = mean[:, 0, None, None] - xs[None, None, :]
            dy = mean[:, 1, None, None] - ys[None, :, None]
            sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
            drawn = (opacity * np.exp(-sigma) >= 1.0001 / 255).any((1, 2))
            # Beyond its box a splat is cut off.
            reach = exact.radii[shows]
            inside = (np.abs(dx[:, 0]).min(1) < reach[:, 0]) & (
                np.abs(dy[:, :, 0]).min(1) < reach[:, 1]
            )
            found.append(shows[drawn & inside])
    return found


@pytest.mark.parametrize("rect", [None, Rect(17, 5, 140, 90), Rect(33, 47, 34, 48)])
def test_tile_lists_hold_every_splat_that_draws_a_pixel_front_to_back(rect: Rect | None) -> None:
    rows, view = scene(22)
    splats = splats_of(rows, view)
    lists = gs_raster.sort(splats, rect)
    rect = rect or Rect(0, 0, view.width, view.height)
    expected = cpu.sort(exact_splats(splats), rect)
    begins, ids = lists.begins.cpu().numpy(), lists.splats.cpu().numpy()
    place = np.empty(splats.n, np.int64)
    place[splats.order.cpu().numpy()] = np.arange(splats.n)
    assert len(begins) == expected.n_tiles + 1
    assert begins[0] == 0
    assert begins[-1] == lists.n_instances == len(ids)
    assert 0 < lists.n_instances <= expected.n_pairs  # the CPU lists whole boxes
    must = tiles_that_splats_draw_in(splats, rect)
    for t in range(expected.n_tiles):
        mine = ids[begins[t] : begins[t + 1]]
        assert (np.diff(place[mine]) > 0).all(), "front to back, each once"
        theirs = expected.order[expected.splats[expected.offsets[t] : expected.offsets[t + 1]]]
        assert set(must[t]) <= set(mine) <= set(theirs)
    # Slots number the instances splat by splat.
    slots, firsts, counts = (t.cpu().numpy() for t in (lists.slots, lists.firsts, lists.counts))
    assert sorted(slots) == list(range(lists.n_instances))
    assert counts.sum() == lists.n_instances
    assert ((slots >= firsts[ids]) & (slots < firsts[ids] + counts[ids])).all()


def reference(
    splats: gs_raster.Splats, rect: Rect, *, with_depth: bool = False
) -> tuple[cpu.Blended, Tensor]:
    """The pixels in float64, and (h, w) bool where no comparison is near its threshold."""
    exact = exact_splats(splats)
    blended = cpu.blend(exact, cpu.sort(exact, rect), with_depth=with_depth)
    fields = {name: torch.from_numpy(values) for name, values in exact._asdict().items()}
    with torch.no_grad():
        margin = oracle.composite(oracle.Projected(**fields), rect.width, rect.height).margin
    # Relatively: rounding of 1 - alpha near the largest alpha of 0.999 is a thousandfold.
    clear = margin > 1e-4
    assert (~clear).sum() <= 0.003 * clear.numel(), "too few pixels left to compare"
    return blended, clear


@MODES
def test_pixels_equal_those_of_float64_from_the_same_splats(antialiased: bool) -> None:
    rows, view = scene(23, 400)
    splats = splats_of(rows, view, antialiased=antialiased)
    expected, clear = reference(splats, Rect(0, 0, view.width, view.height))
    _, pixels = draw(splats)
    scale = expected.image.max()
    image = (pixels.image.double().cpu() - torch.from_numpy(expected.image)).abs()
    alpha = (pixels.alpha.double().cpu() - torch.from_numpy(expected.alpha)[..., 0]).abs()
    assert image[clear].max() <= 1e-5 * scale
    assert alpha[clear].max() <= 1e-5
    behind = torch.from_numpy(expected.transmittance)
    assert (pixels.transmittance.double().cpu() - behind)[clear].abs().max() <= 1e-5
    assert ((pixels.last.cpu() < 0) == (torch.from_numpy(expected.last) < 0))[clear].all()
    # At a threshold a pixel gains or loses one splat.
    assert image.max() <= scale


def test_a_background_shows_by_what_is_left_of_the_light() -> None:
    rows, view = scene(24, 100)
    splats = splats_of(rows, view)
    background = torch.tensor([0.2, 0.5, 0.9], device=DEVICE)
    lists, black = draw(splats)
    found = gs_raster.blend(splats, lists, background=background)
    expected = black.image + black.transmittance[..., None] * background
    torch.testing.assert_close(found.image, expected, rtol=1e-6, atol=1e-6)
    assert torch.equal(found.alpha, black.alpha)


def test_depth_is_the_sum_of_weight_times_depth() -> None:
    rows, view = scene(25, 400)
    splats = splats_of(rows, view)
    lists, plain = draw(splats)
    pixels = gs_raster.blend(splats, lists, depth=True)
    assert torch.equal(pixels.image, plain.image)
    assert plain.depth is None
    assert pixels.depth is not None
    expected, clear = reference(splats, Rect(0, 0, view.width, view.height), with_depth=True)
    depth = torch.from_numpy(expected.image[..., 3])
    assert (pixels.depth.double().cpu() - depth)[clear].abs().max() <= 1e-5 * depth.max()


@pytest.mark.parametrize("absgrad", [False, True])
@pytest.mark.parametrize("depth", [False, True])
@MODES
def test_gradients_of_splats_equal_those_of_float64(
    antialiased: bool, depth: bool, absgrad: bool
) -> None:
    rows, view = scene(26, 400)
    splats = splats_of(rows, view, antialiased=antialiased)
    rect = Rect(0, 0, view.width, view.height)
    expected, clear = reference(splats, rect, with_depth=depth)
    lists, pixels = draw(splats, depth=depth)
    clear = clear.to(DEVICE)
    grad_image = noise(view.height, view.width, 3, seed=1) * clear[..., None]
    grad_alpha = noise(view.height, view.width, seed=2) * clear
    grad_depth = noise(view.height, view.width, seed=3) * clear if depth else None
    found = gs_raster.blend_backward(
        splats, lists, pixels, grad_image, grad_alpha, grad_depth, absgrad=absgrad
    )
    channels = [grad_image] if grad_depth is None else [grad_image, grad_depth[..., None]]
    exact = cpu.blend_backward(
        expected,
        torch.cat(channels, -1).double().cpu().numpy(),
        grad_alpha.double().cpu().numpy()[..., None],
        absgrad=absgrad,
    )
    parts = {k: torch.from_numpy(v) for k, v in exact._asdict().items() if v is not None}
    assert ("depths" in parts, "absgrad" in parts) == (depth, absgrad)
    for name, part in parts.items():
        assert off(found[:, GRADIENTS[name]], part) < 2e-4, name
    if not depth:
        assert found[:, 9].count_nonzero() == 0
    if not absgrad:
        assert found[:, 10:].count_nonzero() == 0
    else:
        assert (found[:, 10:] >= found[:, :2].abs() * (1 - 1e-4) - 1e-6).all()
    assert found[~splats.shows].count_nonzero() == 0


def test_gradients_are_added_to_what_is_there() -> None:
    rows, view = scene(27, 300)
    splats = splats_of(rows, view)
    lists, pixels = draw(splats)
    grad_image = noise(view.height, view.width, 3)
    once = gs_raster.blend_backward(splats, lists, pixels, grad_image)
    before = noise(splats.n, 12, seed=4)
    out = before.clone()
    assert gs_raster.blend_backward(splats, lists, pixels, grad_image, out=out) is out
    torch.testing.assert_close(out, before + once, rtol=1e-6, atol=1e-6)
    assert torch.equal(out[:, 9:], before[:, 9:])


def test_a_background_has_its_part_in_the_gradient() -> None:
    rows, view = scene(28, 300)
    splats = splats_of(rows, view)
    background = torch.tensor([0.2, 0.5, 0.9], device=DEVICE)
    lists, pixels = draw(splats, background=background)
    grad_image = noise(view.height, view.width, 3)
    found = gs_raster.blend_backward(splats, lists, pixels, grad_image, background=background)
    # What is behind shows by 1 - alpha: its gradient is one of alpha.
    of_alpha = -(grad_image * background).sum(-1)
    expected = gs_raster.blend_backward(splats, lists, pixels, grad_image, of_alpha)
    assert off(found, expected) < 1e-5


def test_workspace_bytes_cover_what_a_view_takes() -> None:
    rows, view = scene(29)
    on_device, camera = rows_of(rows), view_of(view)
    torch.cuda.synchronize()

    def whole() -> gs_raster.TileLists:
        splats = gs_raster.project(on_device, camera, sh_degree=3, radii=True)
        lists = gs_raster.sort(splats)
        pixels = gs_raster.blend(splats, lists)
        grads = torch.ones_like(pixels.image), torch.ones_like(pixels.alpha)
        gs_raster.blend_backward(splats, lists, pixels, *grads)
        return lists

    n_instances = whole().n_instances
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    whole()
    taken = torch.cuda.max_memory_allocated() - before
    planned = gs_raster.workspace_bytes(len(rows["means"]), n_instances, view.width, view.height)
    # The allocator rounds each of some 20 tensors up to 512 bytes.
    assert taken <= planned + 20 * 512
    assert planned < 4 * taken
