# SPDX-License-Identifier: Apache-2.0
"""The CPU renderer's contract: same bits, crops, rows that do not show, thresholds."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numba import njit
from torch import Tensor

from gs_train.renderers import TooManyIntersectionsError, protocol
from gs_train.renderers.cpu import CpuRenderer
from gs_train.renderers.cpu.rasterize import _exp
from gs_train.renderers.protocol import Rect, RenderOptions, Splats, View

sys.path.insert(0, str(Path(__file__).parent))
import rasterizer_oracle as oracle

VIEW = oracle.random_view(50, width=150, height=101)
ROWS = {k: v.float() for k, v in oracle.random_rows(50, VIEW, n_rows=600).items()}


def render(
    rows: dict[str, Tensor],
    view: View = VIEW,
    rect: Rect | None = None,
    *,
    sh_degree: int = 3,
    absgrad: bool = False,
    **options,
) -> dict[str, Tensor]:
    """Image, alpha, the six gradients of an arbitrary loss, radii and, if asked for, absgrad."""
    leaves = oracle.leaves(rows, rows["means"].dtype)
    renderer = CpuRenderer(RenderOptions(**options), absgrad=absgrad)
    splats = renderer.project(leaves, view, sh_degree=sh_degree)
    image, alpha = renderer.rasterize(splats, rect)
    (image.square().sum() + (image[..., 0] * alpha[..., 0]).sum()).backward()
    results = {"image": image.detach(), "alpha": alpha.detach(), "radii": splats.radii}
    results |= {f"grad {k}": v.grad for k, v in leaves.items()}
    if absgrad:
        results["absgrad"] = splats.absgrad
    return results


def assert_same_bits(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def facing_camera(depths: list[float], **values: float) -> dict[str, Tensor]:
    """Grey round rows on the optical axis of ``plain_view``."""
    n = len(depths)
    rows = {
        "means": torch.tensor([[0.0, 0.0, z] for z in depths]),
        "scales": torch.full((n, 3), values.get("scale", -1.0)),
        "quats": torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(n, 1),
        "opacities": torch.full((n,), values.get("opacity", 2.0)),
        "sh0": torch.zeros(n, 1, 3),
        "shN": torch.zeros(n, 15, 3),
    }
    return {k: v.double() for k, v in rows.items()}


def plain_view(width: int = 33, height: int = 21) -> View:
    K = torch.tensor([[30.0, 0.0, width / 2], [0.0, 30.0, height / 2], [0.0, 0.0, 1.0]])
    return View("plain", torch.eye(4), K, width, height)


# Same bits


@pytest.fixture
def set_threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_any_number_of_threads_gives_the_same_bits(set_threads):
    set_threads(1)
    expected = render(ROWS, absgrad=True)
    assert expected["image"].max() > 0.5
    for n_threads in (2, 3, 5):
        set_threads(n_threads)
        assert_same_bits(render(ROWS, absgrad=True), expected)


def test_a_second_run_gives_the_same_bits():
    assert_same_bits(render(ROWS, antialiased=True), render(ROWS, antialiased=True))


def test_two_python_threads_may_render_at_once(set_threads):
    set_threads(2)
    expected = render(ROWS)
    results: list[dict[str, Tensor]] = []

    def work() -> None:
        results.extend(render(ROWS) for _ in range(3))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    for result in results:
        assert_same_bits(result, expected)


def run_python(source: str) -> None:
    subprocess.run([sys.executable, "-c", source], check=True, timeout=600)


def test_a_forked_child_renders_after_its_parent_did():
    run_python(
        """
import os, torch
from gs_train.renderers.cpu.parallel import for_each_range
torch.set_num_threads(2)
def count(begin, end, out): out.extend(range(begin, end))
for_each_range(count, 100, [])
child = os.fork()
out = []
for_each_range(count, 100, out)
assert sorted(out) == list(range(100))
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
"""
    )


def test_importing_the_renderers_does_not_import_numba():
    run_python(
        "import sys, gs_train.renderers, gs_train.renderers.protocol\n"
        "assert 'numba' not in sys.modules"
    )


def test_an_exception_of_a_kernel_reaches_the_caller(set_threads):
    from gs_train.renderers.cpu.parallel import for_each_range

    def fail(begin: int, end: int) -> None:
        raise ZeroDivisionError(f"{begin}")

    set_threads(2)
    with pytest.raises(ZeroDivisionError):
        for_each_range(fail, 100)


# Crops


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_the_pixels_of_any_rectangle_equal_those_of_the_whole_image(data):
    x0, x1 = sorted(data.draw(st.tuples(*[st.integers(0, VIEW.width)] * 2)))
    y0, y1 = sorted(data.draw(st.tuples(*[st.integers(0, VIEW.height)] * 2)))
    renderer = CpuRenderer()
    with torch.no_grad():
        splats = renderer.project(ROWS, VIEW, sh_degree=1)
        image, alpha = renderer.rasterize(splats)
        part, part_alpha = renderer.rasterize(splats, Rect(x0, y0, x1, y1))
    assert part.shape == (y1 - y0, x1 - x0, 3)
    assert torch.equal(part, image[y0:y1, x0:x1])
    assert torch.equal(part_alpha, alpha[y0:y1, x0:x1])


def test_gradients_of_crops_add_up_to_those_of_the_whole_image():
    rows = {k: v.double() for k, v in ROWS.items()}
    whole = oracle.leaves(rows, torch.float64)
    parts = oracle.leaves(rows, torch.float64)
    renderer = CpuRenderer(absgrad=True)
    splats = renderer.project(whole, VIEW, sh_degree=3)
    renderer.rasterize(splats)[0].square().sum().backward()
    cropped = renderer.project(parts, VIEW, sh_degree=3)
    cropped.means2d.retain_grad()
    loss = torch.zeros((), dtype=torch.float64)
    for rect in (Rect(0, 0, 71, 101), Rect(71, 0, 150, 40), Rect(71, 40, 150, 101)):
        loss = loss + renderer.rasterize(cropped, rect)[0].square().sum()
    loss.backward()
    assert len(cropped.shifted) == 3
    # The same numbers in another order of addition.
    torch.testing.assert_close(cropped.absgrad, splats.absgrad, rtol=1e-10, atol=1e-11)
    assert cropped.means2d.grad.shape == (600, 2)
    for name in oracle.ATTRIBUTES:
        grad = whole[name].grad
        torch.testing.assert_close(
            parts[name].grad, grad, rtol=1e-8, atol=1e-10 * grad.abs().max().item()
        )


def test_a_rectangle_of_too_many_intersections_is_refused_and_its_halves_are_not(monkeypatch):
    splats = CpuRenderer().project(ROWS, VIEW, sh_degree=0)
    left, right = Rect(0, 0, 75, 101), Rect(75, 0, 150, 101)
    monkeypatch.setattr(protocol, "MOST_INTERSECTIONS", 5_000)
    with pytest.raises(TooManyIntersectionsError, match=r"at most 5,000 tiles in all, got \d,\d+;"):
        CpuRenderer().rasterize(splats)
    for half in (left, right):
        CpuRenderer().rasterize(splats, half)


def test_absgrad_is_an_error_unless_it_was_asked_for():
    splats = CpuRenderer().project(ROWS, VIEW, sh_degree=0)
    CpuRenderer().rasterize(splats)
    with pytest.raises(ValueError, match="absgrad must be enabled"):
        _ = splats.absgrad


# Rows that do not show


def test_no_rows_give_a_black_image_and_empty_gradients():
    results = render({k: v[:0] for k, v in ROWS.items()}, absgrad=True)
    assert results["image"].shape == (101, 150, 3)
    assert results["image"].count_nonzero() == 0
    assert results["alpha"].count_nonzero() == 0
    assert results["grad shN"].shape == (0, 15, 3)
    assert results["absgrad"].shape == (0, 2)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"means": torch.tensor([[0.0, 0.0, -3.0]])}, id="behind the camera"),
        pytest.param({"means": torch.tensor([[0.0, 0.0, 0.009]])}, id="nearer than near"),
        pytest.param({"means": torch.tensor([[0.0, 0.0, 2e10]])}, id="farther than far"),
        pytest.param({"means": torch.tensor([[50.0, 0.0, 3.0]])}, id="beside the image"),
        pytest.param({"opacities": torch.tensor([-5.6])}, id="fainter than 1/255"),
        pytest.param({"opacities": torch.tensor([-torch.inf])}, id="opacity 0"),
        pytest.param({"quats": torch.zeros(1, 4)}, id="no rotation"),
        pytest.param({"scales": torch.full((1, 3), 400.0)}, id="scale that overflows"),
    ],
)
def test_rows_that_cannot_show_draw_nothing_and_get_no_gradient(change):
    rows = facing_camera([3.0]) | {k: v.double() for k, v in change.items()}
    results = render(rows, plain_view())
    assert results["radii"].tolist() == [[0, 0]]
    assert all(value.count_nonzero() == 0 for value in results.values())


# A logit of +infinity is opacity 1.
@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, float("nan")) for name in oracle.ATTRIBUTES),
        *((name, float("inf")) for name in oracle.ATTRIBUTES if name != "opacities"),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_with_values_that_are_not_finite_are_as_if_they_were_not_there(name, value, dtype):
    rows = {k: v.to(dtype) for k, v in ROWS.items()}
    broken = {k: v.clone() for k, v in rows.items()}
    victims = torch.arange(0, 600, 5)
    broken[name].view(600, -1)[victims, -1] = value
    kept = torch.ones(600, dtype=torch.bool)
    kept[victims] = False
    expected = render({k: v[kept] for k, v in rows.items()})
    found = render(broken)
    assert found["radii"][victims].count_nonzero() == 0
    assert torch.equal(found["image"], expected["image"])
    for key in oracle.ATTRIBUTES:
        assert torch.equal(found[f"grad {key}"][kept], expected[f"grad {key}"])
        assert found[f"grad {key}"][victims].count_nonzero() == 0


def test_splats_of_opacity_zero_draw_nothing_and_get_a_finite_gradient():
    n = 2
    splats = Splats(
        means2d=torch.tensor([[10.0, 10.0]] * n).requires_grad_(),
        conics=torch.tensor([[0.1, 0.0, 0.1]] * n).requires_grad_(),
        depths=torch.ones(n),
        radii=torch.full((n, 2), 9, dtype=torch.int32),
        opacities=torch.zeros(n).requires_grad_(),
        colors=torch.ones(n, 3).requires_grad_(),
        view=plain_view(),
    )
    image, alpha = CpuRenderer().rasterize(splats)
    (image.sum() + alpha.sum()).backward()
    assert image.count_nonzero() == 0
    for tensor in (splats.means2d, splats.conics, splats.opacities, splats.colors):
        assert tensor.grad.count_nonzero() == 0
        assert tensor.grad.isfinite().all()


# Extremes and thresholds


def assert_matches_oracle(rows: dict[str, Tensor], view: View) -> dict[str, Tensor]:
    leaves = oracle.leaves(rows, torch.float64)
    splats = oracle.project(leaves, view, sh_degree=0)
    expected = oracle.composite(splats, view.width, view.height)
    image, alpha = expected.image, expected.alpha
    (image.square().sum() + (image[..., 0] * alpha[..., 0]).sum()).backward()
    found = render(rows, view, sh_degree=0)
    torch.testing.assert_close(found["image"], image.detach(), rtol=0, atol=1e-10)
    for name in oracle.ATTRIBUTES:
        grad = leaves[name].grad
        floor = 1e-7 * max(grad.abs().max().item(), 1e-6)
        torch.testing.assert_close(found[f"grad {name}"], grad, rtol=1e-6, atol=floor)
    return found


def test_a_splat_far_larger_than_the_image_covers_all_of_it():
    rows = facing_camera([2.0, 4.0], scale=8.0)
    found = assert_matches_oracle(rows, plain_view(70, 50))
    assert found["radii"].min() > 1e4
    assert found["alpha"].min() > 0.9


def test_alpha_stays_below_its_clamp_and_clamped_pixels_pass_no_gradient_to_opacity():
    rows = facing_camera([3.0], opacity=12.0, scale=2.0)
    found = assert_matches_oracle(rows, plain_view())
    assert found["alpha"].max().item() == pytest.approx(0.999, abs=1e-12)


def test_a_pixel_stops_before_its_transmittance_reaches_the_limit():
    # 0.05^3 = 1.25e-4 stays, the fourth splat would reach 6e-6: it is not drawn at all.
    opacity = torch.logit(torch.tensor(0.95, dtype=torch.float64)).item()
    rows = facing_camera([2.0, 3.0, 4.0, 5.0, 6.0], opacity=opacity, scale=2.0)
    rows["sh0"] = torch.eye(5, 3, dtype=torch.float64)[:, None] * 10
    rows["sh0"][3] = rows["sh0"][4] = 1000.0
    found = assert_matches_oracle(rows, plain_view())
    assert found["alpha"].max() < 1 - 1e-4
    assert found["image"].max() < 5
    assert found["grad opacities"][3:].count_nonzero() == 0


def test_rows_of_equal_depth_are_drawn_in_the_order_of_rows():
    rows = facing_camera([3.0, 3.0], opacity=12.0)
    rows["sh0"] = torch.tensor([[[2.0, -2.0, -2.0]], [[-2.0, 2.0, -2.0]]]).double()
    view = plain_view()
    middle = render(rows, view)["image"][10, 16]
    assert middle[0] > 0.9
    assert middle[1] < 0.01
    swapped = render({k: v.flip(0) for k, v in rows.items()}, view)["image"][10, 16]
    assert torch.equal(swapped, middle[[1, 0, 2]])


def test_many_rows_of_a_few_depths_keep_the_order_of_rows_at_each_depth():
    # Enough of them that a sort which is not stable would mix them up.
    rows = facing_camera([3.0, 2.0] * 150, opacity=-3.0)
    g = torch.Generator().manual_seed(0)
    rows["sh0"] = torch.rand(300, 1, 3, generator=g, dtype=torch.float64)
    assert_matches_oracle(rows, plain_view())


def test_near_and_far_are_included():
    rows = facing_camera([1.0, 2.0, 3.0, 4.0])
    radii = render(rows, plain_view(), near=2.0, far=3.0)["radii"]
    assert (radii > 0).all(1).tolist() == [False, True, True, False]


def test_rows_not_above_the_radius_clip_do_not_show():
    rows = facing_camera([3.0, 30.0], scale=-2.0)
    wide, narrow = render(rows, plain_view())["radii"][:, 0].tolist()
    assert wide > narrow > 0
    clipped = render(rows, plain_view(), radius_clip=narrow)["radii"]
    assert clipped.tolist() == [[wide, wide], [0, 0]]


def test_antialiasing_dims_splats_smaller_than_a_pixel():
    rows = facing_camera([30.0], scale=-1.5)
    classic = render(rows, plain_view())["alpha"].max()
    antialiased = render(rows, plain_view(), antialiased=True)["alpha"].max()
    assert 0 < antialiased < 0.5 * classic


def test_the_degree_in_use_may_be_below_the_degree_that_is_stored():
    results = render(ROWS, sh_degree=1)
    assert results["grad shN"][:, :3].count_nonzero() > 0
    assert results["grad shN"][:, 3:].count_nonzero() == 0
    without = ROWS | {"shN": ROWS["shN"][:, :3]}
    assert torch.equal(render(without, sh_degree=1)["image"], results["image"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_exponential_is_within_one_unit_in_the_last_place(dtype):
    @njit
    def exponentials(values, out):
        for i in range(len(values)):
            out[i] = _exp(values[i])

    values = np.linspace(-80, 0, 100_001).astype(dtype)
    found = np.empty_like(values)
    exponentials(values, found)
    error = np.abs(found / np.exp(values.astype(np.longdouble)) - 1).max()
    assert error < np.finfo(dtype).eps
    assert found[-1] == 1
