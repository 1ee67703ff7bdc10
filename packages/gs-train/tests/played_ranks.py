# SPDX-License-Identifier: Apache-2.0
"""One process that plays all ranks: what an exchange moves, it moves from list to list."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from gs_train.densify.statistics import Statistics
from gs_train.losses.loss import Crop, loss_and_gradient
from gs_train.ranks.turns import Turns
from gs_train.renderers import Renderer, Splats
from gs_train.renderers.records import RecordRenderer, SplatRecords

SH_DEGREE, SSIM_LAMBDA = 3, 0.2


@dataclass(frozen=True)
class Job:
    """A microbatch of a batch: what is drawn of which view, and its photograph."""

    crop: Crop
    truth: Tensor

    @property
    def part(self) -> Tensor:
        """The photograph where something is drawn."""
        rect = self.crop.rect
        return self.truth[rect.y0 : rect.y1, rect.x0 : rect.x1]


@dataclass
class Outcome:
    """What a batch leaves, in the order of the microbatches or by key.

    Attributes:
        images, losses: of each microbatch.
        sums: gradients of all rows by attribute.
        grad2d, count: what density control has been told.
    """

    images: list[Tensor]
    losses: list[Tensor]
    sums: dict[str, Tensor]
    grad2d: Tensor
    count: Tensor

    def assert_is(self, other: Outcome) -> None:
        """The same bits."""
        for name in ("images", "losses"):
            for one, another in zip(getattr(self, name), getattr(other, name), strict=True):
                assert torch.equal(one, another), name
        for name, sums in self.sums.items():
            assert torch.equal(sums, other.sums[name]), name
        assert torch.equal(self.grad2d, other.grad2d)
        assert torch.equal(self.count, other.count)


class Rank:
    """The rows of one rank, in an order of its own.

    Args:
        rows: of all ranks; row i has key i.
        own: keys of those that this rank owns.
        absgrad: of the renderer.
    """

    def __init__(self, rows: dict[str, Tensor], own: Tensor, *, absgrad: bool) -> None:
        self.keys = own.int()
        self.rows = {name: values.index_select(0, own) for name, values in rows.items()}
        self.sums = {name: torch.zeros_like(values) for name, values in self.rows.items()}
        self.statistics = Statistics(len(own), device=own.device, absgrad=absgrad, radii=True)
        self.drawn: dict[int, tuple[Tensor, dict[str, Tensor], Splats]] = {}

    def listed(self, visible: Tensor) -> Tensor:
        """Which of the rank's rows are among these keys."""
        return torch.isin(self.keys, visible.int()).nonzero().squeeze(1)

    def project(self, m: int, ids: Tensor, job: Job, renderer: Renderer) -> Splats:
        """Rows as leaves, and their splats."""
        leaves = {
            name: values.index_select(0, ids).requires_grad_() for name, values in self.rows.items()
        }
        keys = self.keys.index_select(0, ids)
        splats = renderer.project(leaves, job.crop.view, sh_degree=SH_DEGREE, keys=keys)
        splats.means2d.retain_grad()
        self.drawn[m] = ids, leaves, splats
        return splats

    def add(self, m: int, n_views: int) -> None:
        """What the leaves of a microbatch have got, and what density control is told."""
        ids, leaves, splats = self.drawn.pop(m)
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                self.sums[name].index_add_(0, ids, leaf.grad)
        if len(ids):
            self.statistics.observe(ids, splats, batch_size=n_views)


def outcome_of(ranks: Sequence[Rank], images: list[Tensor], losses: list[Tensor]) -> Outcome:
    """By key."""
    order = torch.cat([rank.keys for rank in ranks]).argsort()

    def joined(parts: list[Tensor]) -> Tensor:
        return torch.cat(parts).index_select(0, order)

    sums = {name: joined([rank.sums[name] for rank in ranks]) for name in ranks[0].sums}
    grad2d = joined([rank.statistics.grad2d for rank in ranks])
    return Outcome(images, losses, sums, grad2d, joined([rank.statistics.count for rank in ranks]))


def alone(
    rank: Rank, jobs: Sequence[Job], visible: Sequence[Tensor], renderer: Renderer
) -> Outcome:
    """A batch on one rank, as the engine draws it: one graph from rows to pixels."""
    images, losses, n_views = [], [], _n_views(jobs)
    for m, job in enumerate(jobs):
        ids = rank.listed(visible[m])
        splats = rank.project(m, ids, job, renderer)
        image, _ = renderer.rasterize(splats, job.crop.rect)
        share, gradient = _loss(image, job, n_views)
        if len(ids):
            image.backward(gradient)
        rank.add(m, n_views)
        images.append(image.detach())
        losses.append(share)
    return outcome_of([rank], images, losses)


def together(
    ranks: Sequence[Rank],
    jobs: Sequence[Job],
    visible: Sequence[Tensor],
    renderer: Renderer,
    random: Random,
    *,
    most_spare: int = 0,
) -> Outcome:
    """The same batch on several ranks, drawn by whom chance decides.

    Args:
        most_spare: a rank announces up to so many rows more than a view shows.
    """
    records: RecordRenderer = renderer.records  # type: ignore[attr-defined]
    device, n_views = renderer.device, _n_views(jobs)
    listed = [[rank.listed(keys) for keys in visible] for rank in ranks]
    counts = [[len(ids) + random.randint(0, most_spare) for ids in of_rank] for of_rank in listed]
    paces = [random.uniform(0.1, 10.0) for _ in ranks]
    turns = Turns.of(counts, paces=paces)
    images: list[Tensor] = [torch.empty(0)] * len(jobs)
    losses = list(images)
    for index, turn in enumerate(turns.rounds):
        splits = [turns.splits(index, r) for r in range(len(ranks))]
        outboxes = []
        for r, rank in enumerate(ranks):
            outbox = SplatRecords.room_for(sum(splits[r].sent), device)
            segments = _segments(outbox, splits[r].sent)
            for m in turn.microbatches:
                splats = rank.project(m, listed[r][m], jobs[m], renderer)
                records.write(splats, segments[turn.drawer(m)])
            outboxes.append(segments)
        words = {}
        for r, m in enumerate(turn.drawn):
            if m not in turn.microbatches:
                continue
            parts = [segments[r] for segments in outboxes]
            inbox = SplatRecords(
                torch.cat([part.words for part in parts]), torch.cat([part.keys for part in parts])
            )
            drawn = records.draw(inbox, jobs[m].crop.view, jobs[m].crop.rect)
            losses[m], gradient = _loss(drawn.image, jobs[m], n_views)
            images[m] = drawn.image
            words[r] = records.send_back(drawn, gradient).split(list(splits[r].received))
        for r, rank in enumerate(ranks):
            for m in turn.microbatches:
                drawer = turn.drawer(m)
                ids, _, splats = rank.drawn[m]
                if len(ids):
                    records.backward(splats, words[drawer][r])
                rank.add(m, n_views)
    return outcome_of(ranks, images, losses)


def _segments(records: SplatRecords, sizes: Sequence[int]) -> list[SplatRecords]:
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    return [records.part(start, stop) for start, stop in itertools.pairwise(ends)]


def _n_views(jobs: Sequence[Job]) -> int:
    return len({job.crop.view.name for job in jobs})


def _loss(image: Tensor, job: Job, n_views: int) -> tuple[Tensor, Tensor]:
    return loss_and_gradient(image, job.part, job.crop, SSIM_LAMBDA, weight=1.0 / n_views)
