# SPDX-License-Identifier: Apache-2.0
"""Training that is written down beforehand, refined by one rank or by several.

What a step does to a row depends on the row's key and the step alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from street import street_rows
from threads_as_ranks import ThreadWorld, results
from torch import Tensor

from gs_train.densify import Changed, Densifier
from gs_train.densify.peers import NO_PEERS, Peers
from gs_train.densify.rank_peers import RankPeers
from gs_train.ranks.dealing import Dealing
from gs_train.renderers.protocol import Splats, View
from gs_train.rows import counter_random
from gs_train.rows.attributes import GEOMETRY, columns
from gs_train.rows.counter_random import Purpose
from gs_train.rows.keys import RowKeys
from gs_train.rows.strands import Lattice, owners
from gs_train.rows.tiered import Home, TieredGaussians
from gs_train.runs.row_order import sort_rows

SIZE = 64
RATES = {"means": 1e-3, "scales": 5e-3, "quats": 1e-3, "opacities": 5e-2, "sh0": 2.5e-3,
         "shN": 1.25e-4}  # fmt: skip
BETAS, EPS = (0.9, 0.999), 1e-15

MakeDensifier = Callable[[int, Peers], Densifier]
"""Makes the densifier of so many rows."""


@dataclass(frozen=True)
class Play:
    """A training.

    Attributes:
        rows: the first ones, of all ranks; row i has key i.
        labels: (N,) uint8 strands of the rows.
        make: see `MakeDensifier`.
        n_steps: how many steps.
        home: of the appearance.
        coarseness: gradients of views are this many numbers: with few of them many rows are alike.
        sort_every: steps from one re-sort to the next; None: never.
    """

    rows: dict[str, Tensor]
    labels: Tensor
    make: MakeDensifier
    n_steps: int = 60
    home: Home = "device"
    coarseness: int = 1 << 20
    sort_every: int | None = None


@dataclass
class Left:
    """What a training leaves.

    Attributes:
        tensors: by name; those with a row for each Gaussian in the order of keys.
        labels: (N,) strands in the same order.
        next_key: the next free one.
        changed: what each step changed.
        places: (ranks, steps) rows of each rank after each step.
    """

    tensors: dict[str, Tensor]
    labels: Tensor
    next_key: int
    changed: list[Changed]
    places: list[list[int]]

    def assert_is(self, other: Left) -> None:
        """The same bits, whoever owns the rows."""
        assert self.changed == other.changed
        assert self.next_key == other.next_key
        assert self.tensors.keys() == other.tensors.keys()
        for name, values in self.tensors.items():
            assert torch.equal(values, other.tensors[name]), name


def lively_rows(n: int, seed: int = 0) -> dict[str, Tensor]:
    """Some large, some small; some faint."""
    draw = torch.Generator().manual_seed(seed)
    rows = street_rows(n, seed=seed, sh_degree=1)
    rows["scales"] = torch.log(10.0 ** (torch.rand(n, 3, generator=draw) * 3 - 3.5))
    rows["opacities"] = torch.rand(n, generator=draw) * 10 - 6
    return {name: values.contiguous() for name, values in rows.items()}


def alone(play: Play) -> Left:
    """One rank, which has no peers."""
    return _joined([Rank(play, torch.arange(len(play.labels))).run()])


def together(play: Play, n_ranks: int) -> Left:
    """Several ranks, each with the rows of its strands."""

    def run(company: ThreadWorld) -> Left:
        return Rank.of(play, company).run()

    return _joined(results(n_ranks, run))


class Rank:
    """The rows of one rank and their densifier.

    Args:
        own: keys of its rows.
        company: the ranks; None: it has all rows.
    """

    def __init__(self, play: Play, own: Tensor, company: ThreadWorld | None = None) -> None:
        self._play = play
        self._company = company
        # Neither in the order of keys nor in that of the other ranks.
        own = own[torch.randperm(len(own), generator=torch.Generator().manual_seed(len(own)))]
        self.model = TieredGaussians(
            {name: values[own] for name, values in play.rows.items()},
            device="cpu",
            semantics="deferred",
            home=play.home,
            keys=RowKeys(own.int(), len(play.labels), play.labels[own]),
        )
        self.densifier = play.make(len(own), NO_PEERS if company is None else RankPeers(company))
        self.dealing = None if company is None else Dealing(company, Lattice(0, len(play.labels)))

    @classmethod
    def of(cls, play: Play, company: ThreadWorld) -> Rank:
        """A rank with the rows of its strands."""
        own = (owners(play.labels, company.size) == company.rank).nonzero().squeeze(1)
        return cls(play, own, company)

    def run(self) -> Left:
        """The whole training."""
        changed, places = [], []
        for step in range(self._play.n_steps):
            self.train(step)
            changed.append(self.refine(step))
            places.append(self.model.n_rows)
            if self._play.sort_every and (step + 1) % self._play.sort_every == 0:
                sort_rows(self.model, self.densifier, self.dealing)
            self._check_ownership()
        tensors = self.present()
        self.model.close()
        return Left(tensors, tensors.pop("strands"), self.model.keys.next, changed, [places])

    def _check_ownership(self) -> None:
        labels = self.model.keys.labels
        assert labels is not None
        assert len(labels) == self.model.n_rows
        if self._company is not None:
            assert (owners(labels, self._company.size) == self._company.rank).all()

    def present(self) -> dict[str, Tensor]:
        """Copies of all tensors of the model and the densifier."""
        tensors = {**self.model.tensors(), **self.densifier.tensors()}
        return {name: values.clone() for name, values in tensors.items()}

    def train(self, step: int) -> None:
        """A step up to its refinement."""
        self._optimize(step)
        self._look(step)

    def refine(self, step: int) -> Changed:
        """What is due after the step."""
        return self.densifier.after_step(
            self.model,
            step=step,
            images_before=step,
            images_after=step + 1,
            means_lr=RATES["means"],
        )

    def _numbers(self, step: int, n_columns: int, most: int) -> Tensor:
        """(N, C) whole numbers from -most to most, of each row's key and the step."""
        keys = self.model.keys.values
        uniform = counter_random.uniform(77, Purpose.INITIAL_POINTS, step, keys, n_columns)
        return torch.floor(uniform * (2 * most + 1)) - most

    @torch.no_grad()
    def _optimize(self, step: int) -> None:
        """A step of some rows; the others sleep."""
        model, appearance = self.model, self.model.appearance
        widths = {name: math.prod(param.shape[1:]) for name, param in model.params.items()}
        numbers = self._numbers(step, 1 + sum(widths.values()) + appearance.width, 3)
        ids = (numbers[:, 0] > 0).nonzero().squeeze(1).int()
        chosen = numbers[ids.long()]
        parts = chosen[:, 1:].split([*widths.values(), appearance.width], dim=1)
        for group in model.geometry.optimizer.param_groups:
            group.update(lr=RATES[group["name"]], betas=BETAS, eps=EPS)
        gradients = [
            part.reshape(len(ids), *model.params[name].shape[1:]).contiguous()
            for name, part in zip(GEOMETRY, parts)
        ]
        model.geometry.optimizer.step(ids, gradients)  # type: ignore[call-overload]
        appearance.set_rates(RATES, betas=BETAS, eps=EPS)
        harmonics = parts[-1].contiguous()
        if self._play.home == "host":
            model.host.adam.step(ids, [part.contiguous() for part in columns(harmonics).values()])
            return
        number = appearance.begin()
        model.local.wake(ids, number, None)
        model.local.update(ids, harmonics, number, None)
        appearance.end(number)

    def _look(self, step: int) -> None:
        """A view of some rows."""
        numbers = self._numbers(1000 + step, 5, self._play.coarseness)
        ids = (numbers[:, 0] > 0).nonzero().squeeze(1)
        chosen = numbers[ids] / self._play.coarseness
        means2d = torch.zeros(len(ids), 2, requires_grad=True)
        means2d.grad = chosen[:, 1:3] * 1e-5
        splats = Splats(
            means2d=means2d,
            conics=torch.zeros(len(ids), 3),
            depths=torch.zeros(len(ids)),
            radii=((chosen[:, 3:] + 1) * 4).int(),
            opacities=torch.zeros(len(ids)),
            colors=torch.zeros(len(ids), 3),
            view=View("a", torch.eye(4), torch.eye(3), SIZE, SIZE),
            shifted=[means2d],
        )
        self.densifier.observe(ids, splats, batch_size=1)


def _joined(parts: Sequence[Left]) -> Left:
    """What all ranks leave, in the order of keys."""
    order = torch.cat([part.tensors["keys"] for part in parts]).argsort()
    labels = torch.cat([part.labels for part in parts])[order]
    tensors: dict[str, Any] = {}
    for name, first in parts[0].tensors.items():
        has_rows = first.shape[:1] == parts[0].tensors["keys"].shape and "schedule" not in name
        if has_rows:
            tensors[name] = torch.cat([part.tensors[name] for part in parts])[order]
        else:
            assert all(torch.equal(part.tensors[name], first) for part in parts), name
            tensors[name] = first
    for part in parts:
        assert part.changed == parts[0].changed
        assert part.next_key == parts[0].next_key
    places = [own for part in parts for own in part.places]
    return replace(parts[0], tensors=tensors, labels=labels, places=places)
