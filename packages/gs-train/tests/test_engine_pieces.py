# SPDX-License-Identifier: Apache-2.0
"""Parts of the engine by themselves: crops, drawing, sums, and the bound on a step."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from street import street_rows, street_views, whole_street
from torch import Tensor

import gs_cull
import gs_order
from gs_train.engine.drawing import Drawing
from gs_train.engine.lookahead import largest_move
from gs_train.engine.microbatches import Microbatch, look
from gs_train.engine.settings import StepSettings
from gs_train.engine.view_costs import ViewCosts
from gs_train.losses.loss import Crop
from gs_train.losses.ssim import HALO
from gs_train.published.returning import Returning
from gs_train.renderers import Renderer, RenderOptions, Splats, make_renderer
from gs_train.rows.attributes import NAMES
from gs_train.rows.copies import add_rows
from gs_train.rows.initial_sums import InitialSums

RATES = {"means": 3e-3, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2}
STEP = StepSettings(sh_degree=1, rates=RATES, betas=(0.9, 0.999), eps=1e-15, ssim_lambda=0.2)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """torch's threads wait for each other by spinning, which a loaded machine punishes."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@functools.cache
def rows() -> dict[str, Tensor]:
    return street_rows(3000, sh_degree=1)


@functools.cache
def renderer() -> Renderer:
    return make_renderer("cpu", RenderOptions())


# -- microbatches


def test_views_that_see_too_much_are_cut_and_the_crops_tile_them() -> None:
    views = [*street_views()[3:5], whole_street()]
    seen = look(rows(), views, renderer(), most_rows=1500)
    parts = [m for m in seen.microbatches if m.index == 2]
    assert [m.index for m in seen.microbatches[:2]] == [0, 1]
    assert all(m.is_whole for m in seen.microbatches[:2])
    assert len(parts) > 1
    assert all(m.n_crops == len(parts) for m in parts)
    painted = torch.zeros(views[2].height, views[2].width, dtype=torch.int32)
    for part in parts:
        core = part.crop.core
        painted[core.y0 : core.y1, core.x0 : core.x1] += 1
    assert (painted == 1).all()


def test_crops_see_together_what_the_view_sees() -> None:
    view = whole_street()
    whole = look(rows(), [view], renderer())
    cut = look(rows(), [view], renderer(), most_rows=1000)
    assert len(cut.microbatches) > 1
    assert torch.equal(cut.ids, whole.ids)
    assert whole.counts[0] > 1000
    assert sum(cut.counts) > whole.counts[0], "rows on a seam are seen by both sides"


def test_a_view_that_cannot_be_cut_far_enough_is_drawn_all_the_same() -> None:
    seen = look(rows(), [whole_street()], renderer(), most_rows=1)
    assert len(seen.ids) == len(look(rows(), [whole_street()], renderer()).ids)
    assert min(m.crop.core.width for m in seen.microbatches) > 2 * HALO


def test_a_view_of_nothing_is_one_microbatch_without_rows() -> None:
    seen = look(rows(), street_views()[-1:], renderer(), most_rows=10)
    assert seen.counts == (0,)
    assert len(seen.microbatches) == 1
    assert len(seen.ids) == 0


# -- drawing


def _leaves(ids: Tensor) -> dict[str, Tensor]:
    return {name: rows()[name][ids.long()].requires_grad_() for name in NAMES}


def _keys() -> Tensor:
    return torch.arange(len(rows()["means"]), dtype=torch.int32)


def _truth(view: object) -> Tensor:
    draw = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (64, 96, 3), generator=draw, dtype=torch.uint8)


def _drawn(
    most_rows: int | None,
) -> tuple[float, dict[str, Tensor], tuple[Tensor, Splats], int]:
    """One view of a batch of two: loss, gradients of all rows, what densification was told."""
    view = whole_street()
    seen = look(rows(), [view], renderer(), most_rows=most_rows)
    told: list[tuple[Tensor, Splats]] = []
    drawing = Drawing(
        renderer(), STEP, lambda ids, splats: told.append((ids, splats)), 2, _keys(), ViewCosts()
    )
    total = {name: torch.zeros_like(values) for name, values in rows().items()}
    loss = 0.0
    for m, microbatch in enumerate(seen.microbatches):
        ids = seen.ids[(seen.mask[:, m // 32] >> (m % 32)) & 1 == 1]
        leaves = _leaves(ids)
        loss += float(drawing.draw(microbatch, _truth(view), ids, leaves))
        for name in NAMES:
            grad = leaves[name].grad
            assert grad is not None
            total[name].index_add_(0, ids.long(), grad)
    assert len(told) == 1, "densification counts views, not crops"
    return loss, total, told[0], len(seen.microbatches)


def test_crops_of_a_view_add_up_to_its_loss_gradients_and_statistics() -> None:
    loss, gradients, (ids, splats), n = _drawn(None)
    cut_loss, cut_gradients, (cut_ids, cut_splats), n_cut = _drawn(1000)
    assert (n, n_cut > 1) == (1, True)
    assert cut_loss == pytest.approx(loss, rel=1e-5)
    for name in NAMES:
        scale = gradients[name].abs().max()
        assert scale > 0
        assert (cut_gradients[name] - gradients[name]).abs().max() <= 1e-4 * scale, name
    assert torch.equal(cut_ids.long(), ids.long())
    assert torch.equal(cut_splats.radii, splats.radii)
    assert splats.means2d.grad is not None
    assert cut_splats.means2d.grad is not None
    scale = splats.means2d.grad.abs().max()
    assert (cut_splats.means2d.grad - splats.means2d.grad).abs().max() <= 1e-4 * scale


def test_crops_that_have_been_drawn_hold_no_rows() -> None:
    view = whole_street()
    seen = look(rows(), [view], renderer(), most_rows=1000)
    assert len(seen.microbatches) > 1
    drawing = Drawing(renderer(), STEP, lambda *_: None, 1, _keys(), ViewCosts())
    ids = seen.ids[seen.mask[:, 0] & 1 == 1]
    leaves = _leaves(ids)
    drawing.draw(seen.microbatches[0], _truth(view), ids, leaves)
    colours = weakref.ref(leaves["shN"])  # dead only when no graph holds it either
    leaves.clear()
    assert colours() is None


class _TightOnce:
    """A renderer whose first rasterization finds no memory; notes what is left of that pass when
    the next one begins."""

    blends_by_key = False

    def __init__(self) -> None:
        self._renderer = renderer()
        self._colours: list[weakref.ref[Tensor]] = []
        self.is_left: bool | None = None

    def project(self, *args: Any, **options: Any) -> Splats:
        if self._colours:
            self.is_left = self._colours[0]() is not None
        splats = self._renderer.project(*args, **options)
        self._colours.append(weakref.ref(splats.colors))
        return splats

    def rasterize(self, splats: Splats, rect: Any = None) -> tuple[Tensor, Tensor]:
        if len(self._colours) == 1:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return self._renderer.rasterize(splats, rect)


def test_a_pass_that_found_no_memory_is_gone_when_it_is_tried_again() -> None:
    view = whole_street()
    seen = look(rows(), [view], renderer())
    tight = _TightOnce()
    drawing = Drawing(tight, STEP, lambda *_: None, 1, _keys(), ViewCosts())  # type: ignore[arg-type]
    drawing.draw(seen.microbatches[0], _truth(view), seen.ids, _leaves(seen.ids))
    assert tight.is_left is False


def test_a_crop_without_rows_still_has_a_loss() -> None:
    view = street_views()[-1]
    told: list[object] = []
    drawing = Drawing(renderer(), STEP, lambda *_: told.append(None), 1, _keys(), ViewCosts())
    none = torch.zeros(0, dtype=torch.int32)
    loss = drawing.draw(Microbatch(0, Crop(view, view.rect)), _truth(view), none, _leaves(none))
    assert float(loss) > 0
    assert not told


# -- sums


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_returning_rows_are_complete_when_they_are_final(data: st.DataObject) -> None:
    """Rows leave after each use; those that come back begin with what they had come to, whatever
    is in the slots."""
    n, width = data.draw(st.integers(1, 12)), 6
    parts = data.draw(st.lists(st.sets(st.integers(0, n - 1)), min_size=1, max_size=5))
    ids = torch.arange(n, dtype=torch.int32)
    mask = torch.zeros((n, 1), dtype=torch.int32)
    for k, part in enumerate(parts):
        mask[sorted(part), 0] |= 1 << k
    plan = gs_order.plan(ids, mask, np.arange(len(parts)), retain="previous")
    returning = Returning(plan, width)
    assert returning.ids.tolist() == sorted(set(plan.ids["returning"].values.tolist()))
    dense = torch.zeros(n, width)
    buffers = [torch.full((plan.n_slots, width), 1e6) for _ in range(2)]
    for k, part in enumerate(parts):
        step, own = plan[k], buffers[k % 2]
        gradients = torch.randint(-9, 10, (len(part), width)).float()
        dense[sorted(part)] += gradients
        at = returning.first_sums(step)
        begun = InitialSums(at, {"shN": buffers[(k - 1) % 2]}, {"shN": returning.sums})
        add_rows({"shN": own}, {"shN": gradients}, None, step.slots, begun)
        returning.put(step.returning, own, step.slots_of("returning"))
        assert torch.equal(own[step.slots_of("final").long()], dense[step.final.long()])


# -- how far a step moves a row


def _worst_gradients(betas: tuple[float, float], n: int) -> Tensor:
    """The sequence for which Cauchy and Schwarz is an equality: growing by b2 / b1 each step."""
    return (betas[1] / betas[0]) ** torch.arange(n, dtype=torch.float64)


SEQUENCES = ("worst", "random", "spike", "constant", "tiny", "signs")


def _gradients(kind: str, betas: tuple[float, float], n: int, seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    random = torch.randn(n, generator=draw, dtype=torch.float64)
    if kind == "worst":
        return _worst_gradients(betas, n)
    if kind == "random":
        return random
    if kind == "spike":
        return torch.where(torch.arange(n) == n - 1, 1e8, random)
    if kind == "constant":
        return torch.ones(n, dtype=torch.float64)
    if kind == "tiny":
        return random * 1e-18
    return random.sign() * 10.0 ** torch.randint(-8, 8, (n,), generator=draw)


def _furthest(kind: str, betas: tuple[float, float], n: int, seed: int, lr: float) -> float:
    """The largest ratio of a torch.optim.Adam step to its bound, in float64."""
    param = torch.zeros(1, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.Adam([param], lr=lr, betas=betas, eps=1e-15)
    worst = 0.0
    for step, gradient in enumerate(_gradients(kind, betas, n, seed), 1):
        before = param.detach().clone()
        param.grad = gradient[None].clone()
        adam.step()
        bound = largest_move(dict.fromkeys(RATES, lr), betas, step)
        assert bound is not None
        worst = max(worst, float((param.detach() - before).abs()) / max(bound.means, 1e-300))
    return worst


@pytest.mark.parametrize("batch", [1, 4, 16])
@pytest.mark.parametrize("kind", SEQUENCES)
def test_no_step_moves_a_row_further_than_the_bound(kind: str, batch: int) -> None:
    betas = (0.9**batch, 0.999**batch)
    for seed, n in itertools.product(range(3), (1, 3, 60)):
        assert _furthest(kind, betas, n, seed, 0.01) <= 1.0


def test_the_bound_is_not_far_above_what_a_step_can_do() -> None:
    """So that one factor less is noticed: the worst sequence comes within a thousandth."""
    assert _furthest("worst", (0.9, 0.999), 300, 0, 0.01) > 0.999


def test_there_is_no_bound_where_the_first_moment_forgets_more_slowly() -> None:
    assert largest_move(RATES, (0.999, 0.9), 3) is None


def _missed_after_one_step(factor: float) -> int:
    """Rows that a view sees after the worst step, and that culling before it did not keep."""
    views = street_views()[:-1:6]
    geometry = {name: rows()[name].clone() for name in RATES}
    betas, n = (0.9, 0.999), 100
    bound = largest_move(RATES, betas, n)
    assert bound is not None
    kept = look(
        geometry,
        views,
        renderer(),
        inflate=gs_cull.Inflate(**{name: value * factor for name, value in vars(bound).items()}),
    )
    draw = torch.Generator().manual_seed(2)
    for name, values in geometry.items():
        # Opacities and scales grow, the others go anywhere, all as far as any history allows.
        sign = torch.randn(values.shape, generator=draw).sign()
        sign = sign if name in ("means", "quats") else torch.ones_like(sign)
        param = values.clone().requires_grad_()
        adam = torch.optim.Adam([param], lr=RATES[name], betas=betas, eps=1e-15)
        for gradient in _worst_gradients(betas, n):
            before = param.detach().clone()
            param.grad = -sign * float(gradient)
            adam.step()
        geometry[name] = values + (param.detach() - before)
    after = look(geometry, views, renderer())
    missed = 0
    for m in range(len(views)):
        was = set(kept.ids[(kept.mask[:, m // 32] >> (m % 32)) & 1 == 1].tolist())
        sees = set(after.ids[(after.mask[:, m // 32] >> (m % 32)) & 1 == 1].tolist())
        missed += len(sees - was)
    return missed


def test_rows_seen_after_the_worst_step_were_kept_before_it() -> None:
    assert _missed_after_one_step(1.0) == 0
    assert _missed_after_one_step(0.0) > 0, "the bound must be what keeps them"


def test_moves_of_several_steps_add_up() -> None:
    betas = (0.9, 0.999)
    one, other, both = (
        largest_move(RATES, betas, 5), largest_move(RATES, betas, 6),
        largest_move(RATES, betas, 5, 2),
    )  # fmt: skip
    assert one is not None
    assert other is not None
    assert both is not None
    for name in dataclasses.asdict(both):
        assert getattr(both, name) == pytest.approx(getattr(one, name) + getattr(other, name))


def test_moves_grow_with_the_rates_and_shrink_with_the_steps() -> None:
    first, later = (largest_move(RATES, (0.9, 0.999), step) for step in (1, 1000))
    assert first is not None
    assert later is not None
    # One step after a fresh start moves by lr; the bound is 2.3 lr there, towards 7.3 lr later.
    assert RATES["means"] < first.means < 2.4 * RATES["means"]
    assert later.means > 4 * RATES["means"]
    doubled = largest_move({name: 2 * rate for name, rate in RATES.items()}, (0.9, 0.999), 1000)
    assert doubled is not None
    for name in dataclasses.asdict(later):
        assert getattr(doubled, name) == pytest.approx(2 * getattr(later, name))
