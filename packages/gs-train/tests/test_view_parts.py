# SPDX-License-Identifier: Apache-2.0
"""Views drawn part by part: the same pixels as the whole, in colour, depth and opacity."""

import numpy as np
import pytest
import torch
from cloud import cloud_rows, views_along

from gs_train.renderers import Rect, RenderOptions, TooManyIntersectionsError
from gs_train.renderers.cpu import CpuRenderer
from gs_train.rows.gaussians import Gaussians
from gs_train.rows.restore import InMemory, restored_tiered
from gs_train.rows.view_parts import Box, Quantity, view_parts
from gs_train.rows.visible import render_view

EVERYTHING = {"most_rows": 1 << 30, "most_pixels": 1 << 30}


def in_one_memory(n: int = 400) -> Gaussians:
    return Gaussians(cloud_rows(n), device="cpu", make_optimizer=torch.optim.SGD)


def assembled(parts, view, channels):
    whole = torch.full((view.height, view.width, channels), torch.nan)
    for rect, pixels in parts:
        assert whole[rect.y0 : rect.y1, rect.x0 : rect.x1].isnan().all()  # nothing twice
        whole[rect.y0 : rect.y1, rect.x0 : rect.x1] = pixels
    assert not whole.isnan().any()
    return whole


@pytest.mark.parametrize("limits", [(1 << 30, 700), (60, 1 << 30), (60, 700), (1, 1 << 30)])
@pytest.mark.parametrize(("quantity", "channels"), [("color", 3), ("depth", 1), ("alpha", 1)])
def test_parts_have_the_bits_of_the_whole_view(
    quantity: Quantity, channels: int, limits: tuple[int, int]
) -> None:
    model, (view,), renderer = in_one_memory(), views_along(1, 48, 40), CpuRenderer()
    whole = dict(view_parts(model, view, renderer, quantity=quantity, **EVERYTHING))
    rows, pixels = limits
    if limits == (1, 1 << 30):  # cut down to pixels that one row at most, or several, cover
        view = views_along(1, 12, 10)[0]
        whole = dict(view_parts(model, view, renderer, quantity=quantity, **EVERYTHING))
    parts = list(
        view_parts(model, view, renderer, quantity=quantity, most_rows=rows, most_pixels=pixels)
    )
    assert len(parts) > 1
    torch.testing.assert_close(assembled(parts, view, channels), whole[view.rect], rtol=0, atol=0)


def test_colours_are_those_of_render_view_wherever_appearance_lives() -> None:
    (view,), renderer = views_along(1), CpuRenderer()
    model = in_one_memory()
    expected = render_view(model, view, renderer)
    tiered = restored_tiered(
        InMemory(model.tensors()), device=torch.device("cpu"), semantics="dense", to_look_at=True
    )
    try:
        for each in (model, tiered):
            ((_, image),) = view_parts(each, view, renderer, **EVERYTHING)
            torch.testing.assert_close(image, expected, rtol=0, atol=0)
    finally:
        tiered.close()


@pytest.mark.parametrize("limits", [(1 << 30, 1 << 30), (60, 700)])
def test_colours_lie_over_a_background_and_have_an_exposure(limits: tuple[int, int]) -> None:
    model, (view,), renderer = in_one_memory(), views_along(1, 48, 40), CpuRenderer()
    rows, pixels = limits
    colour = (1.0, 0.5, 0.25)
    how = {"background": colour, "most_rows": rows, "most_pixels": pixels}
    plain = assembled(view_parts(model, view, renderer, **how), view, 3)
    expected = render_view(model, view, renderer, colour)
    torch.testing.assert_close(plain, expected, rtol=0, atol=0)
    exposure = torch.tensor([[0.5, 0.1, 0.0, 0.05], [0.0, 0.75, 0.1, -0.25], [0.1, 0.0, 1.5, 0.0]])
    parts = view_parts(model, view, renderer, exposure=exposure, **how)
    eighth = assembled(
        view_parts(model, view, renderer, exposure=torch.eye(3, 4) / 8, **how), view, 3
    )
    assert 1 / 8 < eighth.max() < 1  # colours beyond 1 count as in training, where an exposure
    torch.testing.assert_close((eighth * 8).clamp(0, 1), plain, rtol=0, atol=1e-6)  # brings them in
    expected = eighth * 8 @ exposure[:, :3].T + exposure[:, 3]
    assert (expected < 0).any()
    assert (expected > 1).any()
    torch.testing.assert_close(assembled(parts, view, 3), expected.clamp(0, 1), rtol=0, atol=1e-6)
    for quantity in ("depth", "alpha"):  # which know neither
        ((_, with_both),) = view_parts(
            model,
            view,
            renderer,
            quantity=quantity,
            background=colour,
            exposure=exposure,
            **EVERYTHING,
        )
        ((_, alone),) = view_parts(model, view, renderer, quantity=quantity, **EVERYTHING)
        torch.testing.assert_close(with_both, alone, rtol=0, atol=0)


def test_where_no_row_is_seen_there_is_the_background_with_the_exposure() -> None:
    model, (view,) = in_one_memory(), views_along(1)
    box = Box((90.0, 0.0, 0.0), tuple(map(tuple, np.eye(3).tolist())), (1.0, 1.0, 1.0))
    exposure = torch.eye(3, 4) / 2
    how = {"box": box, "background": (1.0, 1.0, 1.0), "exposure": exposure}
    ((_, image),) = view_parts(model, view, CpuRenderer(), **how, **EVERYTHING)
    assert (image == 0.5).all()
    ((_, depth),) = view_parts(model, view, CpuRenderer(), quantity="depth", **how, **EVERYTHING)
    assert not depth.any()


def test_depth_is_the_distance_of_one_opaque_row_and_nothing_where_nothing_is() -> None:
    rows = {name: values[:1] for name, values in cloud_rows(1).items()}
    rows |= {
        "means": torch.tensor([[0.1, 0.0, 4.25]]),
        "scales": torch.full((1, 3), -1.5),
        "opacities": torch.tensor([9.0]),
    }
    model = Gaussians(rows, device="cpu", make_optimizer=torch.optim.SGD)
    view = views_along(2)[1]
    ((_, depth),) = view_parts(model, view, CpuRenderer(), quantity="depth", **EVERYTHING)
    ((_, alpha),) = view_parts(model, view, CpuRenderer(), quantity="alpha", **EVERYTHING)
    assert (alpha > 0.9).any()
    assert (alpha == 0).any()
    # Alpha is 1 less what passes: of 1/255, the least, float32 leaves 1.5e-5.
    expected = torch.full_like(depth[alpha > 0], 4.25)
    torch.testing.assert_close(depth[alpha > 0], expected, rtol=3e-5, atol=0)
    assert (depth[alpha == 0] == 0).all()


def test_a_box_leaves_out_the_rows_whose_centres_are_outside() -> None:
    model, (view,), renderer = in_one_memory(), views_along(1), CpuRenderer()
    turn = np.array([[0.8, -0.6, 0], [0.6, 0.8, 0], [0, 0, 1]])
    box = Box((0.2, 0.0, 6.0), tuple(map(tuple, turn.tolist())), (1.5, 0.8, 3.0))
    means = model.params["means"].detach().double().numpy()
    inside = (np.abs((means - np.array(box.centre)) @ turn) <= np.array(box.size) / 2).all(1)
    assert 5 < inside.sum() < len(means) - 5
    assert box.holds(model.params["means"].detach()).tolist() == inside.tolist()
    kept = Gaussians(
        {name: param.detach()[inside] for name, param in model.params.items()},
        device="cpu",
        make_optimizer=torch.optim.SGD,
    )
    ((_, image),) = view_parts(model, view, renderer, box=box, **EVERYTHING)
    torch.testing.assert_close(image, render_view(kept, view, renderer), rtol=0, atol=0)


def test_a_box_around_nothing_gives_black_in_parts_as_asked_for() -> None:
    model, (view,) = in_one_memory(), views_along(1)
    box = Box((90.0, 0.0, 0.0), tuple(map(tuple, np.eye(3).tolist())), (1.0, 1.0, 1.0))
    parts = view_parts(model, view, CpuRenderer(), box=box, most_rows=10, most_pixels=2000)
    assert not assembled(parts, view, 3).any()


class FewIntersections(CpuRenderer):
    """Refuses rectangles above a number of pixels."""

    def rasterize(self, splats, rect=None):
        rect = rect or splats.view.rect
        if rect.width * rect.height > 1000:
            raise TooManyIntersectionsError(1 << 31)
        return super().rasterize(splats, rect)


def test_a_rectangle_with_too_many_intersections_is_halved() -> None:
    model, (view,) = in_one_memory(), views_along(1)
    parts = list(view_parts(model, view, FewIntersections(), **EVERYTHING))
    assert len(parts) == 8
    expected = render_view(model, view, CpuRenderer())
    torch.testing.assert_close(assembled(parts, view, 3), expected, rtol=0, atol=0)


def test_what_renders_is_what_the_options_say() -> None:
    model, (view,) = in_one_memory(), views_along(1)
    antialiased = CpuRenderer(RenderOptions(antialiased=True))
    ((rect, image),) = view_parts(model, view, antialiased, **EVERYTHING)
    assert rect == Rect(0, 0, view.width, view.height)
    torch.testing.assert_close(image, render_view(model, view, antialiased), rtol=0, atol=0)
