# SPDX-License-Identifier: Apache-2.0
"""A batch on several ranks leaves the bits that it leaves on one, whoever draws what."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import torch
from one_thread import one_threaded
from played_ranks import Job, Outcome, Rank, alone, together
from street import NOTHING, street_rows, street_views
from torch import Tensor

from gs_train.losses.loss import Crop
from gs_train.ranks.cuts import cut_left_over
from gs_train.renderers import Renderer, RenderOptions, View, make_renderer
from gs_train.renderers.culling import visible_ids
from gs_train.rows.strands import Lattice, owners

N_ROWS = 3000
on_renderers = pytest.mark.parametrize(
    "drawn_by", ["cpu", pytest.param("raster", marks=pytest.mark.gpu)]
)


class Batch:
    """Views of a street that has clones, and their photographs.

    Every fifth row is a clone of the row before: of the same place and depth, with another colour.
    """

    def __init__(self, drawn_by: str, views: Sequence[int], *, absgrad: bool = False) -> None:
        self.renderer: Renderer = make_renderer(drawn_by, RenderOptions(), absgrad=absgrad)
        self.absgrad = absgrad
        device = self.renderer.device
        rows = street_rows(N_ROWS)
        for name in ("means", "quats", "scales"):
            rows[name][4::5] = rows[name][3::5]
        rows["opacities"] += 3.0  # which of two clones is in front makes a difference
        self.rows = {name: values.to(device) for name, values in rows.items()}
        every = [view.to(device) for view in street_views(width=96, height=64, focal=0.6)]
        self.views: list[View] = [every[i] for i in views]
        draw = torch.Generator().manual_seed(3)
        self.truths = [
            torch.randint(0, 256, (64, 96, 3), generator=draw, dtype=torch.uint8).to(device)
            for _ in views
        ]
        self.jobs = [Job(Crop(v, v.rect), t) for v, t in zip(self.views, self.truths)]
        labels = Lattice.of_cloud(self.rows["means"]).labels(self.rows["means"])
        labels[4::5] += 128  # children may have labels that no longer fit their place
        self.labels = labels

    def visible(self, jobs: Sequence[Job]) -> list[Tensor]:
        return [visible_ids(self.rows, job.crop.view, self.renderer) for job in jobs]

    def ranks(self, n_ranks: int, owner: Tensor | None = None) -> list[Rank]:
        """The rows dealt by strands, each rank's in an order of its own."""
        owner = owners(self.labels, n_ranks) if owner is None else owner
        draw = torch.Generator().manual_seed(n_ranks)
        found = []
        for rank in range(n_ranks):
            own = (owner == rank).nonzero().squeeze(1)
            order = torch.randperm(len(own), generator=draw).to(own.device)
            found.append(Rank(self.rows, own[order], absgrad=self.absgrad))
        return found

    def on_one(self, jobs: Sequence[Job] | None = None) -> Outcome:
        jobs = self.jobs if jobs is None else jobs
        (rank,) = self.ranks(1)
        return alone(rank, jobs, self.visible(jobs), self.renderer)

    def on_many(
        self,
        n_ranks: int,
        seed: int,
        *,
        jobs: Sequence[Job] | None = None,
        owner: Tensor | None = None,
        most_spare: int = 0,
    ) -> Outcome:
        jobs = self.jobs if jobs is None else jobs
        ranks = self.ranks(n_ranks, owner)
        visible = self.visible(jobs)
        chance = Random(seed)
        return together(ranks, jobs, visible, self.renderer, chance, most_spare=most_spare)


@on_renderers
@pytest.mark.parametrize("absgrad", [False, True])
@one_threaded
def test_a_batch_leaves_the_same_bits_on_any_number_of_ranks(drawn_by: str, absgrad: bool) -> None:
    batch = Batch(drawn_by, [32, 7, NOTHING, 30, 9], absgrad=absgrad)
    expected = batch.on_one()
    assert min(len(ids) for ids in batch.visible(batch.jobs)[:2]) > 100
    assert not batch.visible(batch.jobs)[2].numel()
    assert not expected.images[2].any()
    for n_ranks in (1, 2, 3):
        for seed in (0, 1):
            batch.on_many(n_ranks, seed).assert_is(expected)
    assert expected.count.max() > 1


@on_renderers
@one_threaded
def test_room_that_no_row_needs_changes_nothing(drawn_by: str) -> None:
    batch = Batch(drawn_by, [30, 7, NOTHING])
    expected = batch.on_one()
    for n_ranks in (1, 3):
        batch.on_many(n_ranks, n_ranks, most_spare=40).assert_is(expected)


@on_renderers
@one_threaded
def test_a_rank_may_have_no_rows_or_no_view(drawn_by: str) -> None:
    batch = Batch(drawn_by, [7, 32])
    expected = batch.on_one()
    everything_on = {
        rank: torch.full((N_ROWS,), rank, device=batch.labels.device) for rank in (0, 2)
    }
    for rank, owner in everything_on.items():
        batch.on_many(3, rank, owner=owner).assert_is(expected)
    batch.on_many(5, 0).assert_is(expected)


@on_renderers
@one_threaded
def test_the_order_of_clones_matters_and_is_that_of_their_keys(drawn_by: str) -> None:
    batch = Batch(drawn_by, [30])
    expected = batch.on_one()
    for name, values in batch.rows.items():  # a clone and its parent change keys
        flipped = values.clone()
        flipped[3::5], flipped[4::5] = values[4::5], values[3::5]
        batch.rows[name] = flipped
    assert not torch.equal(batch.on_one().images[0], expected.images[0])
    batch.on_many(2, 0).assert_is(batch.on_one())


@on_renderers
@one_threaded
def test_a_view_that_is_left_over_is_drawn_in_crops(drawn_by: str) -> None:
    batch = Batch(drawn_by, [30, 7])
    crops = cut_left_over([job.crop for job in batch.jobs], [9, 5], [None, None], 3)
    assert [len(parts) for parts in crops] == [2, 1]
    jobs = [Job(crop, job.truth) for job, parts in zip(batch.jobs, crops) for crop in parts]
    whole, in_crops = batch.on_one(), batch.on_one(jobs)
    batch.on_many(3, 0, jobs=jobs).assert_is(in_crops)
    for name, sums in whole.sums.items():
        most = float(sums.abs().max())
        torch.testing.assert_close(in_crops.sums[name], sums, atol=1e-6 * most, rtol=0)
    # A row of two crops is a row of one view.
    assert torch.equal(in_crops.count, whole.count)
    most = float(whole.grad2d.abs().max())
    torch.testing.assert_close(in_crops.grad2d, whole.grad2d, atol=1e-6 * most, rtol=0)
