# SPDX-License-Identifier: Apache-2.0
"""Small, empty, huge and faulty inputs on the device."""

from __future__ import annotations

import math

import pytest
import raster_oracle as oracle
import torch
from raster_device import DEVICE, draw, exact_camera, exact_rows, noise, rows_of, view_of
from raster_drawing import facing_camera, plain_view
from torch import Tensor

import gs_raster
from gs_raster import Options, Rect, cpu

pytestmark = pytest.mark.gpu


def drawn(
    rows: dict[str, Tensor], view: oracle.View, rect: Rect | None = None, **options: float
) -> tuple[gs_raster.Splats, gs_raster.Pixels, gs_raster.RowGradients]:
    """Splats, pixels and the gradients of some loss."""
    on_device, camera = rows_of(rows), view_of(view)
    how = {"sh_degree": 3, "options": Options(**options)}  # type: ignore[arg-type]
    splats = gs_raster.project(on_device, camera, radii=True, **how)  # type: ignore[arg-type]
    lists, pixels = draw(splats, rect)
    grads = noise(*pixels.image.shape), noise(*pixels.alpha.shape, seed=1)
    gradients = gs_raster.blend_backward(splats, lists, pixels, *grads)
    found = gs_raster.project_backward(on_device, camera, splats, gradients, **how)  # type: ignore[arg-type]
    return splats, pixels, found


def by_cpu(rows: dict[str, Tensor], view: oracle.View, **options: float) -> cpu.Blended:
    """The pixels in float64."""
    splats = cpu.project(
        exact_rows(rows),
        exact_camera(view),
        sh_degree=3,
        options=Options(**options),  # type: ignore[arg-type]
    )
    return cpu.blend(splats, cpu.sort(splats, view.rect))


def assert_pixels_close(pixels: gs_raster.Pixels, expected: cpu.Blended) -> None:
    assert (pixels.image.double().cpu() - torch.from_numpy(expected.image)).abs().max() < 1e-4
    assert (
        pixels.alpha.double().cpu() - torch.from_numpy(expected.alpha)[..., 0]
    ).abs().max() < 1e-4


def assert_nothing(
    splats: gs_raster.Splats, pixels: gs_raster.Pixels, found: gs_raster.RowGradients
) -> None:
    assert not splats.shows.any()
    assert splats.radii is not None
    assert splats.radii.count_nonzero() == 0
    assert pixels.image.count_nonzero() == 0
    assert pixels.alpha.count_nonzero() == 0
    assert (pixels.transmittance == 1).all()
    assert (pixels.last == -1).all()
    assert all(gradient.count_nonzero() == 0 for gradient in found.columns.values())


def test_no_rows() -> None:
    rows = {name: values[:0] for name, values in facing_camera([2.0]).items()}
    splats, pixels, found = drawn(rows, plain_view())
    assert_nothing(splats, pixels, found)
    assert found.n == 0


def test_no_rows_over_a_background() -> None:
    rows = {name: values[:0] for name, values in facing_camera([2.0]).items()}
    splats = gs_raster.project(rows_of(rows), view_of(plain_view()), sh_degree=0)
    background = torch.tensor([0.25, 0.5, 0.75], device=DEVICE)
    _, pixels = draw(splats, background=background, depth=True)
    assert (pixels.image == background).all()
    assert pixels.depth is not None
    assert pixels.depth.count_nonzero() == 0


def test_one_row() -> None:
    rows, view = facing_camera([2.0]), plain_view()
    splats, pixels, found = drawn(rows, view)
    assert splats.shows.all()
    assert_pixels_close(pixels, by_cpu(rows, view))
    assert found.opacities.count_nonzero() == 1


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 40), (40, 1), (16, 16), (17, 16)])
def test_images_of_few_pixels(width: int, height: int) -> None:
    rows, view = facing_camera([2.0, 3.0]), plain_view(width, height)
    _, pixels, _ = drawn(rows, view)
    assert pixels.image.shape == (height, width, 3)
    assert_pixels_close(pixels, by_cpu(rows, view))


@pytest.mark.parametrize("rect", [Rect(0, 0, 0, 0), Rect(5, 3, 5, 20), Rect(33, 21, 33, 21)])
def test_empty_rectangles(rect: Rect) -> None:
    splats, pixels, found = drawn(facing_camera([2.0]), plain_view(), rect)
    assert splats.shows.all()
    assert pixels.image.shape == (rect.height, rect.width, 3)
    assert all(gradient.count_nonzero() == 0 for gradient in found.columns.values())


def test_an_empty_rectangle_adds_nothing_to_gradients() -> None:
    splats = gs_raster.project(rows_of(facing_camera([2.0])), view_of(plain_view()), sh_degree=0)
    lists, pixels = draw(splats, Rect(4, 4, 4, 9))
    out = noise(1, 12)
    expected = out.clone()
    gs_raster.blend_backward(splats, lists, pixels, pixels.image, out=out)
    assert torch.equal(out, expected)


@pytest.mark.parametrize(
    "rows",
    [
        facing_camera([-2.0, -0.5, 0.0]),
        facing_camera([0.009]),
        facing_camera([2.0], opacity=-8.0),
        {**facing_camera([2.0]), "means": torch.tensor([[500.0, 0.0, 2.0]]).double()},
    ],
    ids=["behind the camera", "before the near plane", "too faint", "beside the image"],
)
def test_a_view_that_shows_nothing_is_black_and_has_no_gradient(rows: dict[str, Tensor]) -> None:
    assert_nothing(*drawn(rows, plain_view()))


def test_rows_on_the_near_and_far_plane_show() -> None:
    rows = facing_camera([1.0, 2.0, 4.0, 0.99999, 4.00001])
    splats, _, _ = drawn(rows, plain_view(), near=1.0, far=4.0)
    assert splats.shows.tolist() == [True, True, True, False, False]


def test_rows_at_the_threshold_of_opacity() -> None:
    rows = facing_camera([2.0] * 3)
    rows["opacities"] = torch.logit(torch.tensor([1.001, 0.999, 1.5]).double() / 255)
    splats, pixels, found = drawn(rows, plain_view())
    assert splats.shows.tolist() == [True, False, True]
    assert pixels.image.isfinite().all()
    assert found.opacities[1] == 0


def test_a_clip_of_radii_hides_small_rows() -> None:
    rows = facing_camera([2.0, 2.0])
    rows["scales"][1] = -5.0
    splats, _, _ = drawn(rows, plain_view(), radius_clip=5.0)
    assert splats.shows.tolist() == [True, False]


@pytest.mark.parametrize("opacity", [-3.0, 0.0, 20.0])
def test_a_splat_that_covers_the_whole_image(opacity: float) -> None:
    rows = facing_camera([2.0, 3.0], scale=4.0, opacity=opacity)
    rows["means"][1] = torch.tensor([1.0, -0.5, 3.0])
    rows["sh0"][1] = 1.0
    view = plain_view(200, 150)
    splats, pixels, found = drawn(rows, view)
    assert splats.shows.all()
    assert (pixels.last >= 0).all()
    assert_pixels_close(pixels, by_cpu(rows, view))
    assert all(gradient.isfinite().all() for gradient in found.columns.values())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("quats", 0.0),
        *((name, math.nan) for name in oracle.ATTRIBUTES),
        *((name, math.inf) for name in ("means", "scales", "quats", "sh0", "shN")),
    ],
)
def test_a_row_that_is_not_finite_does_not_show_and_harms_no_other(name: str, value: float) -> None:
    rows, view = facing_camera([2.0, 2.5, 3.0]), plain_view()
    alone = {key: values[[0, 2]] for key, values in rows.items()}
    rows[name][1] = value
    splats, pixels, found = drawn(rows, view)
    assert splats.shows.tolist() == [True, False, True]
    _, expected, _ = drawn(alone, view)
    assert torch.equal(pixels.image, expected.image)
    assert all(gradient.isfinite().all() for gradient in found.columns.values())
    assert all(gradient[1].count_nonzero() == 0 for gradient in found.columns.values())


@pytest.mark.parametrize(
    "scales",
    [(-40.0, -40.0, -40.0), (-40.0, -1.0, -40.0), (-1.0, -1.0, -60.0), (5.0, -30.0, -30.0)],
)
@pytest.mark.parametrize("antialiased", [False, True])
def test_degenerate_scales(scales: tuple[float, ...], antialiased: bool) -> None:
    rows = facing_camera([2.0])
    rows["scales"] = torch.tensor([scales]).double()
    rows["quats"] = torch.tensor([[0.7, 0.2, -0.4, 0.5]]).double()
    _, pixels, found = drawn(rows, plain_view(), antialiased=antialiased)
    assert pixels.image.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in found.columns.values())


@pytest.mark.parametrize("length", [1e-30, 1e-3, 1e25])
def test_quaternions_of_any_length(length: float) -> None:
    rows, view = facing_camera([2.0]), plain_view()
    rows["scales"] = torch.tensor([[-1.0, -2.0, -3.0]]).double()
    rows["quats"] = torch.tensor([[0.7, 0.2, -0.4, 0.5]]).double()
    expected = by_cpu(rows, view)
    rows["quats"] = rows["quats"] * length
    _, pixels, _ = drawn(rows, view)
    assert_pixels_close(pixels, expected)


def test_a_logit_of_infinity_is_an_opacity_of_one() -> None:
    rows, view = facing_camera([2.0]), plain_view()
    rows["opacities"][0] = math.inf
    splats, pixels, found = drawn(rows, view)
    assert splats.opacities.tolist() == [1.0]
    assert pixels.alpha.max().item() == pytest.approx(0.999)
    assert all(gradient.isfinite().all() for gradient in found.columns.values())


def test_a_view_that_is_not_finite_shows_nothing() -> None:
    view = plain_view()
    view.viewmat[0, 3] = math.nan
    splats = gs_raster.project(rows_of(facing_camera([2.0])), view_of(view), sh_degree=0)
    assert not splats.shows.any()
    _, pixels = draw(splats)
    assert pixels.image.count_nonzero() == 0


def test_an_image_of_4k() -> None:
    view = oracle.random_view(50, width=3840, height=2160)
    rows = oracle.random_rows(50, view, n_rows=3000)
    rows["scales"] -= 2.0
    splats, pixels, found = drawn(rows, view)
    assert pixels.image.shape == (2160, 3840, 3)
    assert pixels.image.isfinite().all()
    assert pixels.alpha.count_nonzero() > 100_000
    # The last tiles, beyond 65,536 pixels of the first, hold what a rectangle holds.
    corner = Rect(3700, 2000, 3840, 2160)
    _, part = draw(splats, corner)
    assert torch.equal(part.image, pixels.image[2000:, 3700:])
    assert all(gradient.isfinite().all() for gradient in found.columns.values())


def test_more_instances_than_32_bits_count_are_refused_before_memory_is_taken() -> None:
    # Each of 33,000 splats touches all 65,536 tiles of this view, 2^31 + 2^24 in all.
    n, side = 33_000, 16 * 256
    rows = {name: values.repeat(n, *[1] * (values.dim() - 1)) for name, values in
            facing_camera([2.0], scale=6.0).items()}  # fmt: skip
    K = torch.tensor([[3e3, 0.0, side / 2], [0.0, 3e3, side / 2], [0.0, 0.0, 1.0]])
    view = oracle.View(torch.eye(4), K, side, side)
    splats = gs_raster.project(rows_of(rows), view_of(view), sh_degree=0)
    with pytest.raises(gs_raster.TooManyInstancesError, match=r"got 2,16\d,\d\d\d,\d\d\d; raster"):
        gs_raster.sort(splats)
    half = gs_raster.sort(splats, Rect(0, 0, 16, 16))
    assert half.n_instances == n


@pytest.mark.parametrize(("thickness", "least"), [(0.0135, 500), (0.3, 10_000), (3.0, 10_000)])
def test_no_tile_of_a_long_needle_is_left_out(thickness: float, least: int) -> None:
    # Conics whose determinant has no digit left in float32, and some that have few: tiles that the
    # stages list must hold all pixels that are drawn where every tile of the box is listed. Of the
    # thinnest needles few pixels are certain.
    width, height, n = 1600, 1000, 200
    generator = torch.Generator().manual_seed(5)
    angle, along, where = torch.rand(3, n, generator=generator, dtype=torch.float64)
    angle, along = (angle - 0.5) * 3.0, 10 ** (2 + 1.5 * along)
    c, s = angle.cos(), angle.sin()
    xx, yy = (c * along) ** 2 + (s * thickness) ** 2, (s * along) ** 2 + (c * thickness) ** 2
    xy, det = c * s * (along**2 - thickness**2), (along * thickness) ** 2
    splats = torch.zeros(n, 12, dtype=torch.float32)
    splats[:, 0], splats[:, 1] = (where * width).float(), (where.flip(0) * height).float()
    splats[:, 2], splats[:, 3] = 0.73, torch.arange(1, n + 1)
    splats[:, 4], splats[:, 5], splats[:, 6] = yy / det, -xy / det, xx / det
    splats[:, 8:11] = 1.0
    records = splats.view(torch.int32)
    records[:, 7], records[:, 11] = (-(-width // 16)) << 16, (-(-height // 16)) << 16
    view = gs_raster.View(torch.eye(4, device=DEVICE), torch.eye(3, device=DEVICE), width, height)
    x = torch.arange(width, device=DEVICE) + 0.5
    y = (torch.arange(height, device=DEVICE) + 0.5)[:, None]
    n_drawn = 0
    for row in records.to(DEVICE).split(1):
        one = gs_raster.Splats(row.clone(), view)
        _, pixels = draw(one)
        mean, (a, b, c_) = one.means2d[0], one.conics[0]
        dx, dy = mean[0] - x, mean[1] - y
        sigma = 0.5 * (a * dx * dx + c_ * dy * dy) + b * dx * dy
        alpha = 0.73 * torch.exp(-sigma)
        # Rounding of sigma, which differs between the two, grows with the terms that cancel.
        slack = 4e-6 * (a * dx * dx + c_ * dy * dy)
        certain = (sigma - slack >= 0) & (alpha * torch.exp(-slack) > 1.01 / 255)
        assert (pixels.alpha[certain] > 0).all()
        n_drawn += int(certain.sum())
    assert n_drawn > least
