# SPDX-License-Identifier: Apache-2.0
"""Strands: labels that depend on a row's position alone, and shares of a scene that are even."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from street import street_rows, street_views
from torch import Tensor

from gs_train.renderers import RenderOptions, make_renderer
from gs_train.renderers.culling import visible_ids
from gs_train.rows.strands import (
    N_STRANDS,
    ROWS_A_CELL,
    Lattice,
    dealt,
    must_deal_again,
    owners,
    rows_of_strands,
    strands_of,
)


def a_surface(n: int, *, seed: int = 0) -> Tensor:
    """Points on a bumpy surface of 100 by 100 units."""
    draw = torch.Generator().manual_seed(seed)
    means = 100 * torch.rand(n, 3, generator=draw)
    means[:, 2] = 3 * torch.sin(means[:, 0]) + 0.1 * means[:, 2]
    return means


@settings(deadline=None)
@given(n_ranks=st.integers(1, N_STRANDS))
def test_every_strand_has_one_owner(n_ranks: int) -> None:
    labels = torch.arange(N_STRANDS, dtype=torch.uint8)
    shares = [strands_of(rank, n_ranks) for rank in range(n_ranks)]
    assert [label for share in shares for label in share] == list(range(N_STRANDS))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
    expected = [rank for rank, share in enumerate(shares) for _ in share]
    assert owners(labels, n_ranks).tolist() == expected


@pytest.mark.parametrize("n_ranks", [1, 3, N_STRANDS])
def test_rows_are_dealt_in_their_order(n_ranks: int) -> None:
    draw = torch.Generator().manual_seed(n_ranks)
    labels = torch.randint(0, N_STRANDS, (1000,), generator=draw, dtype=torch.uint8)
    order, counts = dealt(labels, n_ranks)
    for rank, rows in enumerate(order.split(counts.tolist())):
        assert torch.equal(rows, (owners(labels, n_ranks) == rank).nonzero().squeeze(1))
    assert len(counts) == n_ranks


def test_there_are_no_other_ranks() -> None:
    with pytest.raises(ValueError, match="n_ranks must be from 1 to 256, got 257"):
        strands_of(0, 257)
    with pytest.raises(ValueError, match="rank must be from 0 to 1, got 2"):
        strands_of(2, 2)


def test_a_label_follows_from_the_position_alone() -> None:
    means = a_surface(5000)
    lattice = Lattice.of_cloud(means)
    labels = lattice.labels(means)
    order = torch.randperm(5000, generator=torch.Generator().manual_seed(1))
    assert labels.dtype == torch.uint8
    assert torch.equal(lattice.labels(means[order]), labels[order])
    assert torch.equal(torch.cat([lattice.labels(part) for part in means.split(7)]), labels)
    assert torch.equal(lattice.labels(means.double()), labels)
    assert Lattice.of_cloud(means[order]) == lattice


def test_rows_of_a_cell_have_one_label() -> None:
    lattice = Lattice(-2, 100)
    corner = torch.tensor([[-7.25, 3.0, 11.5]])
    inside = corner + torch.tensor([[0.0, 0.0, 0.0], [0.249, 0.1, 0.2]])
    assert len(lattice.labels(inside).unique()) == 1
    around = corner + 0.25 * torch.cartesian_prod(*3 * [torch.arange(-1.0, 2.0)])
    assert len(lattice.labels(around).unique()) == 27


def test_positions_without_a_cell_have_a_label() -> None:
    wild = torch.tensor([[torch.nan, 0, 0], [torch.inf, 0, 0], [3e38, -3e38, 0], [0, 0, 0.0]])
    labels = Lattice(-60, 4).labels(wild)
    assert labels[0] == labels[1] == labels[3]
    assert len(Lattice(3, 0).labels(torch.empty(0, 3))) == 0


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e7])
def test_cells_are_as_large_as_the_cloud_allows(scale: float) -> None:
    means = a_surface(50_000) * scale
    lattice = Lattice.of_cloud(means)

    def rows_a_cell(exponent: int) -> float:
        cells = torch.floor(means.double() * 2.0**-exponent)
        counts = cells.unique(dim=0, return_counts=True)[1].double()
        return float(counts.square().sum() / len(means))

    assert rows_a_cell(lattice.exponent) <= ROWS_A_CELL < rows_a_cell(lattice.exponent + 1)
    assert lattice.n_rows == 50_000


def test_cells_of_a_large_cloud_are_counted_from_some() -> None:
    means = a_surface(50_000)
    assert Lattice.of_cloud(means, sampled=5000) == Lattice.of_cloud(means)


def test_rows_at_the_origin_do_not_count_more_than_others() -> None:
    draw = torch.Generator().manual_seed(0)
    means = 100 * torch.rand(400_000, 3, generator=draw)
    means[:700] = 0.0
    moved = means.clone()
    moved[:700] = 50.0
    sampled = [Lattice.of_cloud(each, sampled=4000).exponent for each in (means, moved)]
    assert sampled[0] == sampled[1]


def test_few_places_are_all_counted() -> None:
    """A sample of cells may have none of them."""
    places = a_surface(40)
    means = places.repeat(5000, 1)
    every = Lattice.of_cloud(means)
    assert all(Lattice.of_cloud(means, sampled=n) == every for n in (100, 1000, 4000, 20_000))


@pytest.mark.parametrize("n", [0, 1, 100])
def test_rows_in_one_place_have_a_lattice(n: int) -> None:
    means = torch.full((n, 3), 0.3)
    assert Lattice.of_cloud(means) == Lattice(0, n)
    far = torch.cat([means, means + 1e-4, torch.full((1, 3), 1e6)])
    Lattice.of_cloud(far).labels(far)


def test_the_lattice_of_a_grown_scene_is_finer() -> None:
    lattice = Lattice(-3, 1000)
    assert lattice.for_rows(500) is lattice
    assert lattice.for_rows(3999) is lattice
    assert lattice.for_rows(4000) == Lattice(-4, 4000)
    grown = lattice.for_rows(100_000)
    assert grown == Lattice(-6, 64_000)
    assert lattice.for_rows(5000).for_rows(100_000) == grown
    assert Lattice(0, 0).for_rows(3) == Lattice(0, 0)


def test_a_lattice_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="exponent must be from -60 to 60, got 61"):
        Lattice(61, 1)
    with pytest.raises(ValueError, match="n_rows must be at least 0, got -1"):
        Lattice(0, -1)


def test_ranks_have_about_as_much_of_every_view() -> None:
    rows = street_rows(400_000, sh_degree=0)
    labels = Lattice.of_cloud(rows["means"]).labels(rows["means"])
    renderer = make_renderer("cpu", RenderOptions())
    views = street_views(8, width=320, height=240, focal=0.3)[:-1]
    seen = [visible_ids(rows, view, renderer) for view in views]
    for n_ranks in (2, 3, 8):
        owner = owners(labels, n_ranks)
        shares = [torch.bincount(owner[ids], minlength=n_ranks) for ids in seen]
        assert max(float(share.max() / share.double().mean()) for share in shares) < 1.05


def test_rows_are_dealt_again_where_a_rank_has_too_many() -> None:
    even = torch.full((N_STRANDS,), 100)
    tilted = even.clone()
    tilted[:128] = 112  # 1.057 of the mean on the first of two ranks
    slightly = even.clone()
    slightly[:128] = 110  # 1.048
    assert must_deal_again(tilted, even, 2)
    assert not must_deal_again(slightly, even, 2)
    assert not must_deal_again(tilted, tilted, 2)  # nothing would be gained
    assert not must_deal_again(tilted, even, 1)
    assert not must_deal_again(even, even, 3)  # 85 and 86 strands are no excess
    assert not must_deal_again(0 * even, 0 * even, 3)


def test_strands_are_counted() -> None:
    labels = torch.tensor([0, 255, 7, 255], dtype=torch.uint8)
    counts = rows_of_strands(labels)
    assert counts.sum() == 4
    assert np.flatnonzero(counts.numpy()).tolist() == [0, 7, 255]
    assert rows_of_strands(labels[:0]).tolist() == [0] * N_STRANDS
