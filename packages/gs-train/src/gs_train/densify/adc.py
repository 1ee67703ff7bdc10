# SPDX-License-Identifier: Apache-2.0
"""Adaptive density control: clone, split and prune by image gradients, opacity and size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gs_train.densify.peers import NO_PEERS, Peers
from gs_train.densify.protocol import Changed, multiple_seen
from gs_train.densify.statistics import Statistics
from gs_train.errors import InputError
from gs_train.renderers.protocol import Splats
from gs_train.renderers.tables import Direct
from gs_train.rows import counter_random, rowwise
from gs_train.rows.counter_random import Purpose
from gs_train.rows.keys import RowKeys
from gs_train.rows.operations import RowOperations
from gs_train.sizes import Count

_SHRINK = 1.6
"""Split Gaussians are this factor smaller, as in the original paper's code."""

_PIECE = 1 << 22
"""Rows that are looked at at once."""


_SIZES = ("grow_grad2d", "grow_scale3d", "grow_scale2d", "prune_scale3d", "prune_scale2d")


@dataclass(frozen=True)
class AdcConfig:
    """Options of `Adc`: gsplat's names, meanings and defaults. Schedules count images.

    Attributes:
        prune_opa: Gaussians of lower opacity are pruned.
        grow_grad2d: Gaussians with a higher mean image gradient are cloned or split. About
            0.0008 suits ``absgrad``.
        grow_scale3d: such Gaussians are cloned up to this size (as a fraction of the scene's),
            split above.
        grow_scale2d: Gaussians of larger extent in some view (as a fraction of the longer image
            side) are split, until image ``refine_scale2d_stop``.
        prune_scale3d: larger Gaussians are pruned, once ``reset_every`` images were seen.
        prune_scale2d: Gaussians of larger extent in some view are pruned, in that time and until
            image ``refine_scale2d_stop``.
        refine_scale2d_stop: see above; 0 switches the two rules off.
        refine_start: no growing or pruning up to this image.
        refine_stop: none, and no opacity reset, from this image on.
        reset_every: opacities are lowered to twice ``prune_opa`` after so many images.
        refine_every: images between refinements.
        pause_refine_after_reset: no refinement for so many images after a reset.
        absgrad: sum absolute gradients over pixels (AbsGS, Ye et al. 2024); the renderer must
            provide them.
        revised_opacity: split Gaussians get the opacity that composes to the original's
            (Rota Bulo et al. 2024, arXiv:2404.06109).
        cap: the number of Gaussians that growth never exceeds; None means no limit.
    """

    prune_opa: float = 0.005
    grow_grad2d: float = 0.0002
    grow_scale3d: float = 0.01
    grow_scale2d: float = 0.05
    prune_scale3d: float = 0.1
    prune_scale2d: float = 0.15
    refine_scale2d_stop: Count = 0
    refine_start: Count = 500
    refine_stop: Count = 15_000
    reset_every: Count = 3000
    refine_every: Count = 100
    pause_refine_after_reset: Count = 0
    absgrad: bool = False
    revised_opacity: bool = False
    cap: Count | None = None

    def __post_init__(self) -> None:
        if not 0 < self.prune_opa < 0.5:
            raise InputError(f"--adc.prune-opa must be above 0 and below 0.5, got {self.prune_opa}")
        for least, names in {0: _SIZES, 1: ("refine_every", "reset_every", "cap")}.items():
            for name in names:
                value = getattr(self, name)
                if value is not None and not value >= least:
                    option = f"--adc.{name.replace('_', '-')}"
                    raise InputError(f"{option} must be at least {least}, got {value}")


class Adc:
    """gsplat 1.5.3's ``DefaultStrategy`` with counter-based random numbers.

    Given the same statistics and noise it leaves the same rows with the same moments, in another
    order: new rows take the places of those that go. It differs in four more ways:

    - Schedules count images, not steps: with B views a step, an event fires in the step whose
      images include the multiple. With B = 1 that is gsplat's arithmetic.
    - Opacities are reset every ``reset_every`` images. gsplat documents that, but its condition
      ``step % reset_every == 0 & step > 0`` binds as ``... == (0 & step) > 0`` and never holds.
    - ``cap`` bounds the number of rows: when there are more candidates than room, the highest
      mean gradients grow (clones before splits, lower keys first where equal). Room is counted
      before pruning.
    - The noise of a split is keyed by the key of the row that is split.

    Which rows there are, and what each holds, depends on keys and not on the rows' order. New rows
    get their keys as clones, first halves, second halves, each in the order of their parents' keys.
    Where the rows are shared among ranks, the cap and these orders are of all ranks' rows, and so
    are the numbers of `Changed`.
    """

    def __init__(
        self,
        config: AdcConfig,
        *,
        scene_scale: float,
        seed: int,
        n_rows: int,
        device: torch.device | str,
        peers: Peers = NO_PEERS,
    ) -> None:
        """Start without observations.

        Args:
            config: options.
            scene_scale: radius of the scene in world units, which 3D sizes are relative to.
            seed: of the positions of split Gaussians.
            n_rows: the number of rows now, of this rank.
            device: of the rows' splats.
            peers: the ranks among which rows are shared.
        """
        if not 0 < scene_scale < math.inf:
            raise InputError(f"scene_scale must be above 0 and finite, got {scene_scale}")
        self._config = config
        self._scene_scale = scene_scale
        self._seed = seed
        self._peers = peers
        # None once nothing will be refined any more.
        self._statistics: Statistics | None = Statistics(
            n_rows,
            device=device,
            absgrad=config.absgrad,
            radii=config.refine_scale2d_stop > 0,
        )

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        """See `Densifier.observe` and `Statistics.observe`."""
        if self._statistics is not None:
            self._statistics.observe(ids, splats, batch_size=batch_size)

    def direct(self, batch_size: int) -> Direct:
        """See `DirectDensifier.direct`."""
        return Direct(self._statistics, batch_size)

    def _refinement(self, images_before: int, images_after: int) -> int | None:
        """The image whose refinement is due."""
        config = self._config
        image = multiple_seen(config.refine_every, images_before, images_after)
        if (
            image is not None
            and config.refine_start < image < config.refine_stop
            and image % config.reset_every >= config.pause_refine_after_reset
        ):
            return image
        return None

    def after_step(
        self,
        rows: RowOperations,
        *,
        step: int,
        images_before: int,
        images_after: int,
        means_lr: float,
    ) -> Changed:
        """See `Densifier.after_step`. Synchronises when it refines, not otherwise."""
        config, statistics = self._config, self._statistics
        changed = Changed()
        if statistics is None:
            return changed
        image = self._refinement(images_before, images_after)
        if image is not None:
            changed = self._refine(rows, statistics, step=step, image=image)
            statistics.reset(rows.n_rows)
        image = multiple_seen(config.reset_every, images_before, images_after)
        if image is not None and 0 < image < config.refine_stop:
            self._reset_opacities(rows)
        if images_after >= config.refine_stop:
            self._statistics = None
        return changed

    def permute(self, order: Tensor) -> None:
        """See `Densifier.permute`."""
        if self._statistics is not None:
            self._statistics.permute(order)

    def tensors(self) -> dict[str, Tensor]:
        """See `Statistics.tensors`; empty after ``refine_stop`` images."""
        return {} if self._statistics is None else self._statistics.tensors()

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """See `Statistics.load`; empty means that ``refine_stop`` images were seen."""
        if not tensors:
            self._statistics = None
        elif self._statistics is None:
            raise ValueError(f"tensors must be empty once refining is over, got {sorted(tensors)}")
        else:
            self._statistics.load(tensors)

    @torch.no_grad()
    def _refine(
        self, rows: RowOperations, statistics: Statistics, *, step: int, image: int
    ) -> Changed:
        n_before, radii = rows.n_rows, statistics.radii
        if statistics.n_rows != n_before:
            raise ValueError(
                f"rows must be the {statistics.n_rows} that were observed, got {n_before}"
            )
        clones, splits, pruned = self._look_through(rows, statistics, image)
        clones, splits = self._within_cap(rows, statistics, clones, splits)
        parents = torch.cat((clones, splits, splits))
        new = self._grown(rows, parents, splits, step)
        births = self._peers.roll(rows.keys, clones, splits, splits)
        keys = births.own(rows.keys.born(len(births)))
        new_radii = None if radii is None else radii[parents]
        is_pruned = self._is_pruned(new["opacities"], new["scales"], new_radii, image)
        # Where parents lie: a child then takes the place of a row that was removed nearby.
        kept = (~is_pruned).nonzero().flatten()
        parents, at = parents[kept].sort(stable=True)
        kept = kept[at]
        removed = torch.cat((pruned, splits)).unique()
        if len(removed) or len(kept):
            new = {name: values.index_select(0, kept) for name, values in new.items()}
            labels = rows.keys.labels_of(parents)
            rows.replace(removed, new, keys.index_select(0, kept), labels)
        n_grown = len(clones) + len(splits)
        n_pruned = len(removed) - len(splits) + len(is_pruned) - len(kept)
        assert rows.n_rows == n_before + n_grown - n_pruned
        n_grown, n_pruned = self._peers.sums(n_grown, n_pruned)
        return Changed(grown=n_grown, pruned=n_pruned, rows_changed=bool(n_grown or n_pruned))

    def _look_through(
        self, rows: RowOperations, statistics: Statistics, image: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Ids of the rows to clone, to split and to prune: part by part, because masks and sizes
        of all rows at once would be much on the device."""
        config, n = self._config, rows.n_rows
        scales, opacities = rows.read("scales"), rows.read("opacities")
        found: list[tuple[Tensor, Tensor, Tensor]] = []
        for first in range(0, max(n, 1), _PIECE):
            part = slice(first, min(first + _PIECE, n))
            is_high = statistics.average_gradient(part) > config.grow_grad2d
            size = scales[part].amax(dim=-1).exp()
            is_small = size <= config.grow_scale3d * self._scene_scale
            is_split = is_high & ~is_small
            radii = None if statistics.radii is None else statistics.radii[part]
            if radii is not None and image < config.refine_scale2d_stop:
                is_split |= radii > config.grow_scale2d
            is_pruned = self._is_pruned(opacities[part], scales[part], radii, image)
            masks = is_high & is_small, is_split, is_pruned
            clones, splits, pruned = (mask.nonzero().flatten().add_(first) for mask in masks)
            found.append((clones, splits, pruned))
        clones, splits, pruned = (torch.cat(ids) for ids in zip(*found, strict=True))
        return clones, splits, pruned

    def _within_cap(
        self, rows: RowOperations, statistics: Statistics, clones: Tensor, splits: Tensor
    ) -> tuple[Tensor, Tensor]:
        """As many of the rows to clone and to split as there is room for, in the order of their
        keys."""
        config, peers = self._config, self._peers
        clones, splits = _in_order(clones, rows.keys), _in_order(splits, rows.keys)
        if config.cap is None:
            return clones, splits
        n_rows, n_candidates = peers.sums(rows.n_rows, len(clones) + len(splits))
        room = max(0, config.cap - n_rows)
        if n_candidates <= room:
            return clones, splits
        candidates = peers.roll(rows.keys, clones, splits)
        gradient = candidates.of_all(statistics.average_gradient(torch.cat((clones, splits))))
        by_gradient = torch.sort(gradient, descending=True, stable=True).indices
        chosen = candidates.pick(by_gradient[:room].sort().values).own
        is_clone = chosen < len(clones)
        return clones[chosen[is_clone]], splits[chosen[~is_clone] - len(clones)]

    def _grown(
        self, rows: RowOperations, parents: Tensor, splits: Tensor, step: int
    ) -> dict[str, Tensor]:
        """The new rows: the clones, then the first halves of the splits, then the second."""
        new = rows.read_rows(parents)
        if len(splits) == 0:
            return new
        halves = slice(len(parents) - 2 * len(splits), None)
        new["means"][halves] += self._offsets(rows, splits, step)
        new["scales"][halves] -= math.log(_SHRINK)
        if self._config.revised_opacity:
            opacity = rowwise.sigmoid(new["opacities"][halves])
            new["opacities"][halves] = rowwise.logit(1.0 - torch.sqrt(1.0 - opacity))
        return new

    def _offsets(self, rows: RowOperations, splits: Tensor, step: int) -> Tensor:
        """(2 S, 3) samples of the split rows' own Gaussians."""
        keys = rows.keys.values.index_select(0, splits)
        noise = counter_random.normal(self._seed, Purpose.SPLIT, step, keys, 6)
        noise = noise.view(-1, 2, 3).transpose(0, 1)
        scaled = rows.read("scales", splits).exp() * noise
        return rowwise.rotated(rows.read("quats", splits), scaled).reshape(-1, 3)

    def _is_pruned(
        self, opacities: Tensor, scales: Tensor, radii: Tensor | None, image: int
    ) -> Tensor:
        config = self._config
        pruned = rowwise.sigmoid(opacities) < config.prune_opa
        if image > config.reset_every:
            pruned |= scales.amax(dim=-1).exp() > config.prune_scale3d * self._scene_scale
            if radii is not None and image < config.refine_scale2d_stop:
                pruned |= radii > config.prune_scale2d
        return pruned

    @torch.no_grad()
    def _reset_opacities(self, rows: RowOperations) -> None:
        opacity = 2.0 * self._config.prune_opa
        most = rowwise.logit(torch.tensor(opacity)).item()
        rows.overwrite(None, {"opacities": rows.read("opacities").clamp(max=most)})
        rows.zero_moments(names=["opacities"])


def _in_order(ids: Tensor, keys: RowKeys) -> Tensor:
    """Ids in the order of their rows' keys."""
    return ids[torch.argsort(keys.values.index_select(0, ids))]
