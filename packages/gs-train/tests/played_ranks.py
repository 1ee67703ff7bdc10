# SPDX-License-Identifier: Apache-2.0
"""One process that plays all ranks, each on a thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch
from threads_as_ranks import ThreadWorld, on_ranks
from torch import Tensor

from gs_train.densify.statistics import Statistics
from gs_train.engine.crop_statistics import CropStatistics
from gs_train.engine.microbatches import Microbatch
from gs_train.losses.loss import Crop, loss_and_gradient
from gs_train.ranks.exchange import Exchange
from gs_train.ranks.rounds import draw_in_rounds
from gs_train.ranks.turns import Turns
from gs_train.renderers import Renderer, Splats
from gs_train.renderers.raster import RasterRenderer
from gs_train.renderers.records import GRADIENT_WORDS, RecordRenderer, SplatRecords

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
        self._told: CropStatistics | None = None

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

    def add(self, m: int, jobs: Sequence[Job]) -> None:
        """What the leaves of a microbatch have got, and what density control is told."""
        ids, leaves, splats = self.drawn.pop(m)
        for name, leaf in leaves.items():
            if leaf.grad is not None:
                self.sums[name].index_add_(0, ids, leaf.grad)
        if self._told is None:
            n_views = _n_views(jobs)
            self._told = CropStatistics(
                lambda ids, splats: self.statistics.observe(ids, splats, batch_size=n_views)
            )
        self._told.note(_microbatch(m, jobs), ids, splats if len(ids) else None)


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
        rank.add(m, jobs)
        images.append(image.detach())
        losses.append(share)
    return outcome_of([rank], images, losses)


class RankWork:
    """What one rank does for a batch.

    Args:
        rank: its rows.
        listed: (M,) which of them each microbatch shows.
        jobs: the microbatches.
        renderer: draws them.
    """

    def __init__(
        self, rank: Rank, listed: Sequence[Tensor], jobs: Sequence[Job], renderer: Renderer
    ) -> None:
        self._rank, self._listed = rank, listed
        self._jobs, self._n_views = jobs, _n_views(jobs)
        self._renderer = renderer
        self._records: RecordRenderer = renderer.records  # type: ignore[attr-defined]
        self.images: dict[int, Tensor] = {}
        self.losses: dict[int, Tensor] = {}

    def project(
        self, microbatches: Sequence[int], out: SplatRecords, segments: Sequence[range]
    ) -> None:
        for m, segment in zip(microbatches, segments, strict=True):
            splats = self._rank.project(m, self._listed[m], self._jobs[m], self._renderer)
            self._records.write(splats, out.part(segment))

    def draw(self, microbatch: int, records: SplatRecords) -> Callable[[], Tensor]:
        job = self._jobs[microbatch]
        drawn = self._records.draw(records, job.crop.view, job.crop.rect)
        self.images[microbatch] = drawn.image.clone()
        self.losses[microbatch], gradient = _loss(drawn.image, job, self._n_views)
        gradients = self._records.send_back(drawn, gradient)
        return lambda: gradients

    def give_back(
        self, microbatches: Sequence[int], gradients: Tensor, segments: Sequence[range]
    ) -> None:
        for m, segment in zip(microbatches, segments, strict=True):
            ids, _, splats = self._rank.drawn[m]
            if len(ids):
                self._records.backward(splats, gradients[segment.start : segment.stop])
            self._rank.add(m, self._jobs)


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
    listed = [[rank.listed(keys) for keys in visible] for rank in ranks]
    counts = [[len(ids) + random.randint(0, most_spare) for ids in lists] for lists in listed]
    turns = Turns.of(counts, paces=[random.uniform(0.1, 10.0) for _ in ranks])
    work = [RankWork(rank, ids, jobs, of_rank(renderer)) for rank, ids in zip(ranks, listed)]

    def run(carrier: ThreadWorld) -> None:
        draw_in_rounds(turns, Exchange(carrier, GRADIENT_WORDS), work[carrier.rank])

    on_ranks(len(ranks), renderer.device, run)
    images: dict[int, Tensor] = {}
    losses: dict[int, Tensor] = {}
    for one in work:
        images |= one.images
        losses |= one.losses
    order = range(len(jobs))
    return outcome_of(ranks, [images[m] for m in order], [losses[m] for m in order])


def of_rank(renderer: Renderer) -> Renderer:
    """A renderer like this one for a rank of its own, which draws while others do."""
    if not isinstance(renderer, RasterRenderer):
        return renderer  # keeps nothing from drawing to drawing
    how = {"device": renderer.device, "absgrad": renderer.absgrad}
    return RasterRenderer(renderer.options, **how)


def _n_views(jobs: Sequence[Job]) -> int:
    return len({job.crop.view.name for job in jobs})


def _microbatch(m: int, jobs: Sequence[Job]) -> Microbatch:
    names = [job.crop.view.name for job in jobs]
    return Microbatch(names.index(names[m]), jobs[m].crop, names.count(names[m]))


def _loss(image: Tensor, job: Job, n_views: int) -> tuple[Tensor, Tensor]:
    return loss_and_gradient(image, job.part, job.crop, SSIM_LAMBDA, weight=1.0 / n_views)
