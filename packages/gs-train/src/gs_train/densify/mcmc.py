# SPDX-License-Identifier: Apache-2.0
"""3DGS-MCMC: a budget of Gaussians that move to where they are needed, and noise on the means."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.densify.noise import add_noise
from gs_train.densify.peers import NO_PEERS, Peers
from gs_train.densify.protocol import Changed, multiple_seen
from gs_train.densify.relocation import draw, relocated
from gs_train.errors import InputError
from gs_train.renderers.protocol import Splats
from gs_train.renderers.tables import Direct
from gs_train.rows import rowwise
from gs_train.rows.counter_random import Purpose
from gs_train.rows.operations import RowOperations
from gs_train.sizes import Count

GROWTH = 1.05
"""Of the number of Gaussians in a refinement, up to the cap."""


@dataclass(frozen=True)
class McmcConfig:
    """Options of `Mcmc`: gsplat's names, meanings and defaults. Schedules count images.

    Attributes:
        cap_max: the number of Gaussians that growth never exceeds.
        noise_lr: size of the noise, as a multiple of the means' learning rate.
        refine_start: no relocation or growth up to this image.
        refine_stop: none from this image on. The noise goes on.
        refine_every: images between refinements.
        min_opacity: Gaussians of no higher opacity are relocated, and none is made fainter.
    """

    cap_max: Count = 1_000_000
    noise_lr: float = 5e5
    refine_start: Count = 500
    refine_stop: Count = 25_000
    refine_every: Count = 100
    min_opacity: float = 0.005

    def __post_init__(self) -> None:
        if self.cap_max < 1:
            raise InputError(f"--mcmc.cap-max must be at least 1, got {self.cap_max}")
        if self.refine_every < 1:
            raise InputError(f"--mcmc.refine-every must be at least 1, got {self.refine_every}")
        if not 0 < self.min_opacity < 1:
            raise InputError(
                f"--mcmc.min-opacity must be above 0 and below 1, got {self.min_opacity}"
            )
        if not 0 <= self.noise_lr < math.inf:
            raise InputError(
                f"--mcmc.noise-lr must be finite and not negative, got {self.noise_lr}"
            )


class Mcmc:
    """gsplat 1.5.3's ``MCMCStrategy`` with counter-based random numbers.

    Given the same draws and noise it leaves the same rows with the same moments: a faint Gaussian
    moves onto one drawn by opacity, which shares its opacity with the copies and loses its moments;
    the moved row keeps its own moments, as in gsplat.

    It needs neither ``torch.multinomial``, which stops at 2^24 rows, nor gsplat's CUDA kernel.
    The regularisers of opacity and scale that belong to the method are part of the loss.

    Where the rows are shared among ranks, draws run over the rows of all ranks, and the numbers of
    `Changed` are theirs. A row that moves stays on its rank, and a new row is on its parent's.

    Args:
        config: options.
        seed: of the draws and the noise.
        peers: the ranks among which rows are shared.
    """

    def __init__(self, config: McmcConfig, *, seed: int, peers: Peers = NO_PEERS) -> None:
        self._config = config
        self._seed = seed
        self._peers = peers

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        """Nothing: this method needs no statistics of views."""

    def direct(self, batch_size: int) -> Direct:
        """See `DirectDensifier.direct`: nothing is wanted of views."""
        return Direct(None, batch_size)

    def _refines(self, images_before: int, images_after: int) -> bool:
        config = self._config
        image = multiple_seen(config.refine_every, images_before, images_after)
        return image is not None and config.refine_start < image < config.refine_stop

    @torch.no_grad()
    def after_step(
        self,
        rows: RowOperations,
        *,
        step: int,
        images_before: int,
        images_after: int,
        means_lr: float,
    ) -> Changed:
        """See `Densifier.after_step`. Moves every mean, every step."""
        config = self._config
        n_relocated = n_added = 0
        if self._refines(images_before, images_after):
            # First, because there may be no more keys.
            (n_rows,) = self._peers.sums(rows.n_rows)
            new_keys = rows.keys.born(self._n_new(n_rows))
            n_relocated = self._relocate(rows, step)
            n_added = self._add(rows, new_keys, step)
        add_noise(rows, seed=self._seed, step=step, size=means_lr * config.noise_lr)
        return Changed(
            grown=n_added, relocated=n_relocated, rows_changed=bool(n_relocated or n_added)
        )

    def permute(self, order: Tensor) -> None:
        """Nothing: there is no state."""

    def tensors(self) -> dict[str, Tensor]:
        """Empty: there is no state."""
        return {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Accept the empty state.

        Raises:
            ValueError: it is not empty.
        """
        if tensors:
            raise ValueError(f"tensors must be empty, got {sorted(tensors)}")

    def _relocate(self, rows: RowOperations, step: int) -> int:
        opacities = rowwise.sigmoid(rows.read("opacities"))
        order = rows.keys.order
        is_dead = (opacities <= self._config.min_opacity).index_select(0, order)
        dead, alive = order[is_dead], order[~is_dead]
        moved, kept = self._peers.roll(rows.keys, dead), self._peers.roll(rows.keys, alive)
        if len(moved) == 0 or len(kept) == 0:
            return 0
        drawn = kept.pick(
            draw(
                kept.of_all(opacities[alive]),
                len(moved),
                seed=self._seed,
                purpose=Purpose.RELOCATE,
                step=step,
            )
        )
        sources = alive[drawn.own]
        parents = self._share(rows, sources, opacities)
        dead, at = dead.sort()
        rows.overwrite(dead, drawn.bring(rows.read_rows, sources, targets=moved, order=at))
        rows.zero_moments(parents)
        return len(moved)

    def _n_new(self, n_rows: int) -> int:
        return max(0, min(self._config.cap_max, int(GROWTH * n_rows)) - n_rows)

    def _add(self, rows: RowOperations, new_keys: Tensor, step: int) -> int:
        n_new = len(new_keys)
        if n_new == 0:
            return 0
        opacities = rowwise.sigmoid(rows.read("opacities"))
        order = rows.keys.order
        parents = self._peers.roll(rows.keys, order)
        weights = parents.of_all(opacities.index_select(0, order))
        drawn = parents.pick(
            draw(weights, n_new, seed=self._seed, purpose=Purpose.ADD, step=step).sort().values
        )
        sources, keys = order[drawn.own], drawn.of_own(new_keys)
        self._share(rows, sources, opacities)
        # Neighbours at the end as well.
        sources, at = sources.sort(stable=True)
        labels = rows.keys.labels_of(sources)
        rows.replace(sources[:0], rows.read_rows(sources), keys[at], labels)
        return n_new

    def _share(self, rows: RowOperations, sources: Tensor, opacities: Tensor) -> Tensor:
        """Write what ``sources`` look like once copied; return them sorted and unique."""
        parents, n_copies = torch.unique(sources, return_counts=True)
        opacity, scales = relocated(
            opacities[parents], rows.read("scales", parents).exp(), n_copies + 1
        )
        most = 1.0 - torch.finfo(torch.float32).eps
        opacity.clamp_(self._config.min_opacity, most)
        rows.overwrite(parents, {"opacities": rowwise.logit(opacity), "scales": scales.log()})
        return parents
