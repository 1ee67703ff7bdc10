# SPDX-License-Identifier: Apache-2.0
"""Rounds on threads as ranks: what arrives, in which order, and what is left alone meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

import pytest
import torch
from threads_as_ranks import Board, ThreadWorld, results
from torch import Tensor

from gs_train.ranks.exchange import Exchange
from gs_train.ranks.rounds import draw_in_rounds
from gs_train.ranks.turns import Turns
from gs_train.renderers.records import SplatRecords

CPU = torch.device("cpu")
WORDS = 9


class Numbers:
    """Records that say whose they are, and gradients that say what they are of."""

    def __init__(self, rank: int, turns: Turns) -> None:
        self.rank, self.counts = rank, turns.counts
        self.written: dict[int, tuple[SplatRecords, Tensor]] = {}
        self.calls: list[tuple[str, int]] = []

    def project(
        self, microbatches: Sequence[int], out: SplatRecords, segments: Sequence[range]
    ) -> None:
        assert sorted(i for segment in segments for i in segment) == list(range(out.n))
        for m, segment in zip(microbatches, map(out.part, segments), strict=True):
            self.calls.append(("project", m))
            assert segment.n == self.counts[self.rank, m]
            segment.words[:] = torch.arange(segment.n, dtype=torch.int32)[:, None]
            segment.words[:, :2] = torch.tensor([self.rank, m])
            segment.keys[:] = segment.words[:, 5:6] * 10 + self.rank
            self.written[m] = segment, segment.words.clone()

    def draw(self, microbatch: int, records: SplatRecords) -> Callable[[], Tensor]:
        self.calls.append(("draw", microbatch))
        assert records.words[:, 1].eq(microbatch).all()
        sources = [
            torch.full((n,), rank, dtype=torch.int32)
            for rank, n in enumerate(self.counts[:, microbatch].tolist())
        ]
        assert torch.equal(records.words[:, 0], torch.cat(sources))
        assert torch.equal(records.keys[:, 0], records.words[:, 5] * 10 + records.words[:, 0])

        def gradients() -> Tensor:
            self.calls.append(("gradients", microbatch))
            return records.words[:, :WORDS].float() + 0.5

        return gradients

    def give_back(
        self, microbatches: Sequence[int], gradients: Tensor, segments: Sequence[range]
    ) -> None:
        for m, segment in zip(microbatches, segments, strict=True):
            self.calls.append(("give back", m))
            written, words = self.written.pop(m)
            assert torch.equal(written.words, words)  # was left alone
            of_records = gradients[segment.start : segment.stop]
            assert torch.equal(of_records, words[:, :WORDS].float() + 0.5)


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("n_microbatches", [0, 1, 4, 11])
def test_every_rank_gets_what_others_sent(n_ranks: int, n_microbatches: int) -> None:
    chance = Random(n_ranks)
    counts = [
        [chance.choice([0, 0, 1, 5, 5000]) for _ in range(n_microbatches)] for _ in range(n_ranks)
    ]
    turns = Turns.of(torch.tensor(counts).view(n_ranks, n_microbatches).numpy())

    def run(carrier: ThreadWorld) -> tuple[list[tuple[str, int]], int, int]:
        exchange = Exchange(carrier, WORDS)
        sizes = []
        for _ in range(2):
            work = Numbers(carrier.rank, turns)
            draw_in_rounds(turns, exchange, work)
            assert not work.written
            sizes.append(exchange.n_bytes)
        exchange.release()
        assert exchange.n_bytes == 0
        return work.calls, *sizes

    found = results(n_ranks, run)
    for rank, (calls, first, second) in enumerate(found):
        assert first == second  # memory is taken once
        for what in ("project", "give back"):
            assert [m for name, m in calls if name == what] == list(range(n_microbatches))
        drawn = [m for name, m in calls if name == "draw"]
        assert drawn == [turn.drawn[rank] for turn in turns.rounds if turn.drawn[rank] >= 0]


def test_two_rounds_are_on_their_way_at_once() -> None:
    turns = Turns.of([[1, 1, 1, 1]])

    def run(carrier: ThreadWorld) -> list[tuple[str, int]]:
        work = Numbers(0, turns)
        draw_in_rounds(turns, Exchange(carrier, WORDS), work)
        return work.calls

    (calls,) = results(1, run)
    assert [f"{name} {m}" for name, m in calls] == [
        *("project 0", "project 1"),
        *("draw 0", "project 2", "gradients 0"),
        *("draw 1", "give back 0", "project 3", "gradients 1"),
        *("draw 2", "give back 1", "gradients 2"),
        *("draw 3", "give back 2", "gradients 3"),
        "give back 3",
    ]


def test_gradients_of_other_splats_are_refused() -> None:
    turns = Turns.of([[3]])
    exchange = Exchange(ThreadWorld(Board(1), 0, CPU), WORDS)
    parcels = exchange.round(0, turns)
    parcels.sent.words.zero_()
    parcels.send()
    assert parcels.receive().n == 3
    with pytest.raises(ValueError, match=r"gradients must be \(3, 9\), got \(3, 12\)"):
        parcels.send_back(torch.zeros(3, 12))
