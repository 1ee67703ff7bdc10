# SPDX-License-Identifier: Apache-2.0
"""Density control of rows that are shared among ranks leaves, by key, the bits of one rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from one_thread import one_threaded
from refined_among import MakeDensifier, Play, Rank, alone, lively_rows, together
from threads_as_ranks import ThreadWorld, results
from torch import Tensor

from gs_train.densify import Adc, AdcConfig, Mcmc, McmcConfig
from gs_train.densify.peers import NO_PEERS
from gs_train.densify.rank_peers import RankPeers
from gs_train.errors import InputError
from gs_train.rows.keys import END_OF_KEYS, RowKeys
from gs_train.rows.strands import Lattice, owners

N, N_STEPS = 150, 32
ADC = AdcConfig(refine_start=0, refine_every=1, reset_every=12, refine_stop=31, prune_opa=0.01)
SIZES = {"refine_scale2d_stop": 22, "grow_scale2d": 0.13, "prune_scale2d": 0.14}
MCMC = McmcConfig(refine_start=0, refine_every=1, refine_stop=31, cap_max=400, min_opacity=0.06)
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "adc": ("adc", {"grow_grad2d": 0.0004}),
    "adc with a cap": ("adc", {"cap": 230, "revised_opacity": True}),
    "adc with a cap and sizes in views": ("adc", {"cap": 190, **SIZES}),
    "mcmc": ("mcmc", {}),
}


def densifier(kind: str) -> MakeDensifier:
    strategy, options = KINDS[kind]
    if strategy == "mcmc":
        mcmc = replace(MCMC, **options)
        return lambda n_rows, peers: Mcmc(mcmc, seed=5, peers=peers)
    adc = replace(ADC, **options)
    return lambda n_rows, peers: Adc(
        adc, scene_scale=1.5, seed=5, n_rows=n_rows, device="cpu", peers=peers
    )


def play_of(kind: str, *, seed: int = 0, **options: Any) -> Play:
    """Gradients of views are few numbers, so that many candidates of a cap are alike."""
    rows = lively_rows(N, seed)
    options = {"labels": Lattice(0, N).labels(rows["means"]), **options}
    return Play(rows, make=densifier(kind), n_steps=N_STEPS, coarseness=3, **options)


@pytest.mark.parametrize("kind", KINDS)
@one_threaded
def test_any_number_of_ranks_leaves_the_bits_of_one(kind: str) -> None:
    play = play_of(kind)
    expected = alone(play)
    assert sum(changed.grown for changed in expected.changed) > 100
    went = "relocated" if kind == "mcmc" else "pruned"
    assert sum(getattr(changed, went) > 0 for changed in expected.changed) > 4
    for n_ranks in (1, 2, 3):
        left = together(play, n_ranks)
        left.assert_is(expected)
        assert torch.equal(left.labels, expected.labels)  # a child has its parent's
        assert all(own[-1] for own in left.places)


@pytest.mark.parametrize("kind", ["adc with a cap", "mcmc"])
@one_threaded
def test_ranks_without_rows_take_part(kind: str) -> None:
    play = play_of(kind)
    play = replace(play, labels=play.labels % 85)
    left = together(play, 3)
    assert [own[-1] > 0 for own in left.places] == [True, False, False]
    left.assert_is(alone(play))


@one_threaded
def test_rows_move_onto_rows_of_another_rank() -> None:
    """All that are faint when it begins are on one rank."""
    play = play_of("mcmc", home="host")
    is_faint = torch.sigmoid(play.rows["opacities"]) <= MCMC.min_opacity
    assert 0 < int(is_faint.sum()) < N
    play = replace(play, labels=torch.where(is_faint, 255, 0).to(torch.uint8))
    left, expected = together(play, 2), alone(play)
    left.assert_is(expected)
    assert expected.changed[1].relocated >= int(is_faint.sum()) // 2
    assert left.places[1][-1] >= int(is_faint.sum())  # they stay on their rank


@pytest.mark.long
@pytest.mark.parametrize("home", ["host", "device"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(2))
@one_threaded
def test_many_trainings_leave_the_bits_of_one_rank(home: str, kind: str, seed: int) -> None:
    play = play_of(kind, seed=seed, home=home)
    expected = alone(play)
    for n_ranks in (2, 3, 5):
        together(play, n_ranks).assert_is(expected)


# ---------------------------------------------------------------------- rolls

KEYS = torch.tensor([11, 3, 8, 5, 2, 14, 7], dtype=torch.int32)
LABELS = torch.tensor([0, 255, 100, 0, 255, 255, 0], dtype=torch.uint8)


def keys_of_rank(rank: int, n_ranks: int) -> tuple[RowKeys, Tensor]:
    own = (owners(LABELS, n_ranks) == rank).nonzero().squeeze(1)
    keys = RowKeys(KEYS[own], 20)
    return keys, keys.order


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_a_roll_lists_kinds_and_within_them_keys(n_ranks: int) -> None:
    def run(company: ThreadWorld) -> None:
        keys, order = keys_of_rank(company.rank, n_ranks)
        is_odd = keys.values[order] % 2 == 1
        kinds = order[is_odd], order[~is_odd], order[~is_odd]
        roll = RankPeers(company).roll(keys, *kinds)
        own = torch.cat([keys.values[ids] for ids in kinds])
        listed = roll.of_all(own)
        assert listed.tolist() == [3, 5, 7, 11, 2, 8, 14, 2, 8, 14]
        assert len(roll) == 10
        assert torch.equal(roll.own(listed), own)
        picked = roll.pick(torch.tensor([9, 0, 0, 4, 3]))
        of_picks = picked.of_own(torch.tensor([14, 3, 3, 2, 11]))
        assert own[picked.own].tolist() == of_picks.tolist()
        assert len(roll.pick(torch.empty(0, dtype=torch.int64)).own) == 0

    results(n_ranks, run)


def test_the_roll_of_a_rank_with_all_rows_copies_nothing() -> None:
    keys, order = keys_of_rank(0, 1)
    roll, values = NO_PEERS.roll(keys, order[:3], order[3:]), torch.rand(7)
    assert roll.of_all(values) is values
    assert roll.own(values) is values
    places = torch.tensor([3, 3, 1])
    picked = roll.pick(places)
    assert picked.own is places
    assert picked.of_own(values[:3]).data_ptr() == values.data_ptr()
    assert len(roll) == 7
    assert NO_PEERS.sums(4, 2) == (4, 2)


def test_counts_are_summed_over_the_ranks() -> None:
    def run(company: ThreadWorld) -> tuple[int, ...]:
        return RankPeers(company).sums(company.rank, 10, 2**40)

    sums = results(3, run)
    assert sums == [(3, 30, 3 * 2**40)] * 3


@pytest.mark.parametrize("kind", ["adc with a cap", "mcmc"])
@one_threaded
def test_births_beyond_the_last_key_leave_the_rows_of_all_ranks(kind: str) -> None:
    """On ranks, too, for whose own children there would have been keys."""
    play = play_of(kind)

    def run(company: ThreadWorld) -> None:
        rank = Rank.of(play, company)
        rank.train(1)
        rank.model.keys.next = END_OF_KEYS - 3
        before = rank.present()
        with pytest.raises(InputError, match="Gaussians more need keys up to"):
            rank.refine(1)
        assert rank.model.keys.next == END_OF_KEYS - 3
        for name, values in rank.present().items():
            assert torch.equal(values, before[name]), name

    results(3, run)
