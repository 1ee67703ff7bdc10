# SPDX-License-Identifier: Apache-2.0
"""Rows that are dealt to ranks again go on as if they had stayed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from one_thread import one_threaded
from refined_among import Play, Rank, alone, lively_rows, together
from threads_as_ranks import ThreadWorld, results
from torch import Tensor

from gs_train.densify import Adc, AdcConfig, Mcmc, McmcConfig
from gs_train.densify.peers import Peers
from gs_train.ranks import dealing
from gs_train.ranks.dealing import move_home
from gs_train.rows.strands import Lattice, owners

N = 240


def adc(n_rows: int, peers: Peers) -> Adc:
    config = AdcConfig(
        *(0.01, 0.0004), refine_start=0, refine_every=4, reset_every=12, refine_stop=15, cap=400
    )
    return Adc(config, scene_scale=1.5, seed=5, n_rows=n_rows, device="cpu", peers=peers)


def mcmc(n_rows: int, peers: Peers) -> Mcmc:
    config = McmcConfig(
        refine_start=0, refine_every=2, refine_stop=15, cap_max=400, min_opacity=0.06
    )
    return Mcmc(config, seed=5, peers=peers)


def uneven(make: object, **options: object) -> Play:
    """The ranks with the first strands have most rows."""
    rows = lively_rows(N)
    labels = (Lattice(0, N).labels(rows["means"]).float() ** 2 / 256).to(torch.uint8)
    options = {"n_steps": 16, "coarseness": 3, "sort_every": 5, **options}
    return Play(rows, labels, make, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("home", ["host", "device"])
@pytest.mark.parametrize("make", [adc, mcmc])
@one_threaded
def test_dealing_again_leaves_the_bits_of_one_rank(
    make: object, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealing, "PIECE_BYTES", 5_000)  # some twenty rows
    play = uneven(make, home=home)
    expected = alone(play)
    for n_ranks in (2, 3):
        left = together(play, n_ranks)
        left.assert_is(expected)
        first, last = ([own[step] for own in left.places] for step in (0, 5))
        assert max(first) > 1.2 * sum(first) / n_ranks
        assert max(last) < 1.2 * sum(last) / n_ranks


@one_threaded
def test_rows_stay_where_ranks_are_even() -> None:
    play = uneven(mcmc, n_steps=1, sort_every=None)
    play = replace(play, labels=(torch.arange(N) * 256 // N).to(torch.uint8))

    def run(company: ThreadWorld) -> None:
        rank = Rank.of(play, company)
        assert rank.dealing is not None
        lattice, labels = rank.dealing.lattice, rank.model.keys.labels
        assert rank.dealing.again(rank.model, {}) is None
        assert rank.dealing.lattice is lattice
        assert rank.model.keys.labels is labels

    results(2, run)


@pytest.mark.parametrize("home", ["host", "device"])
@one_threaded
def test_rows_arrive_with_all_that_belongs_to_them(home: str) -> None:
    """From one rank that has all of them, to three; sleeping rows are not woken."""
    play = replace(uneven(adc, home=home), labels=torch.zeros(N, dtype=torch.uint8))
    fresh = Lattice(0, N).labels(play.rows["means"])

    def run(company: ThreadWorld) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        rank = Rank.of(play, company)
        for step in range(3):
            rank.train(step)
        before, keys = rank.present(), rank.model.keys
        keys.labels = fresh[keys.values.long()]
        statistics = rank.densifier.tensors()
        kept = {name: values.clone() for name, values in statistics.items()}
        moved = move_home(rank.model, statistics, company)
        for name, values in statistics.items():
            assert torch.equal(values, kept[name])
        rank.densifier.load(moved)
        after = rank.present()
        assert (owners(after["strands"], 3) == company.rank).all()
        rank.model.close()
        return before, after

    left = results(3, run)
    before = left[0][0]
    assert len(before["keys"]) == N
    assert len(before["appearance.last_step"].unique()) > 1
    order, joined = before["keys"].argsort(), torch.cat([own["keys"] for _, own in left]).argsort()
    assert all(len(own["keys"]) for _, own in left)
    for name in before.keys() - {"strands"}:
        if before[name].shape[:1] == (N,):
            moved = torch.cat([own[name] for _, own in left])[joined]
            assert torch.equal(moved, before[name][order]), name


class Scales(ThreadWorld):
    """A carrier that weighs what arrives between one gather and the next."""

    def __init__(self, carrier: ThreadWorld) -> None:
        self.__dict__ = carrier.__dict__
        self.arrived = [0]

    def gather(self, values: Any) -> np.ndarray:
        table = super().gather(values)
        self.arrived.append(0)
        return table

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Any:
        self.arrived[-1] += recv.nbytes
        return super().all_to_all(recv, send, recv_rows, send_rows)


@pytest.mark.parametrize("n_ranks", [2, 4])
@one_threaded
def test_what_arrives_at_once_is_bounded(n_ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where all other ranks send to one."""
    monkeypatch.setattr(dealing, "PIECE_BYTES", 5_000)
    labels = torch.arange(N).mul(256).div(N, rounding_mode="floor").to(torch.uint8)
    play = replace(uneven(adc), labels=labels)

    def run(company: ThreadWorld) -> tuple[list[int], int]:
        rank, scales = Rank.of(play, company), Scales(company)
        assert rank.model.keys.labels is not None
        rank.model.keys.labels.zero_()
        move_home(rank.model, rank.densifier.tensors(), scales)
        n_rows = rank.model.n_rows
        rank.model.close()
        return scales.arrived, n_rows

    left = results(n_ranks, run)
    assert [n_rows for _, n_rows in left] == [N] + [0] * (n_ranks - 1)
    arrived = left[0][0]
    assert 2_500 < max(arrived) <= 5_000
    assert sum(n > 0 for n in arrived) >= 5
