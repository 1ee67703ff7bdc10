# SPDX-License-Identifier: Apache-2.0
"""What a trainer asks of densification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, cast

from torch import Tensor

from gs_train.renderers.protocol import Splats
from gs_train.renderers.tables import Direct
from gs_train.rows.operations import RowOperations


@dataclass(frozen=True)
class Changed:
    """What densification did after a step, to the rows of all ranks that share them.

    Ranks decide with these counts whether to sort and to deal rows, so each rank must report the
    same: `gs_train.densify.peers.Peers.sums` adds up the counts of all.

    Attributes:
        grown: Gaussians added, net of the originals that splitting removed.
        pruned: Gaussians removed because they are faint or too large.
        relocated: faint Gaussians moved onto others.
        rows_changed: some row id no longer means the Gaussian that it meant before, so that
            whatever is indexed by rows (visible sets, caches) is stale.
    """

    grown: int = 0
    pruned: int = 0
    relocated: int = 0
    rows_changed: bool = False

    @property
    def n_changes(self) -> int:
        """Gaussians that came, went or moved, each of which may lie where no neighbour does."""
        return self.grown + self.pruned + self.relocated


class Densifier(Protocol):
    """Grows and prunes the rows while they are trained."""

    def observe(self, ids: Tensor | None, splats: Splats, *, batch_size: int) -> None:
        """Note one view after its backward pass.

        Args:
            ids: (R,) rows that were projected, sorted and unique; None means all.
            splats: their projection, with gradients from all crops of the view.
            batch_size: views that the loss is the mean of.
        """
        ...

    def after_step(
        self,
        rows: RowOperations,
        *,
        step: int,
        images_before: int,
        images_after: int,
        means_lr: float,
    ) -> Changed:
        """Do what is due after the optimizer step ``step`` (0-based).

        Args:
            rows: the model; its gradients are not needed any more.
            step: key of the random numbers.
            images_before: views seen before this step; this step's are ``images_before`` to
                ``images_after - 1``, and schedules count them.
            images_after: views seen so far.
            means_lr: learning rate of the means as the next step will use it.
        """
        ...

    def permute(self, order: Tensor) -> None:
        """Follow rows that were re-ordered: row ``order[i]`` is now row i."""
        ...

    def tensors(self) -> Mapping[str, Tensor]:
        """The state for a checkpoint, as `load` takes it."""
        ...

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Replace the state by a checkpoint's."""
        ...


class DirectDensifier(Densifier, Protocol):
    """A densifier that takes views from renderers, see `Direct`, instead of calls of `observe`."""

    def direct(self, batch_size: int) -> Direct:
        """Where the views of a batch go that are drawn from tables; see `Direct`.

        Args:
            batch_size: views that the loss is the mean of.
        """
        ...


def direct_of(densifier: Densifier, batch_size: int) -> Direct | None:
    """See `DirectDensifier.direct`; None where views must be observed: an object or a subclass may
    have an ``observe`` of its own."""
    for owner in (densifier, *type(densifier).__mro__):
        names = getattr(owner, "__dict__", ())
        if "direct" in names:
            return cast(DirectDensifier, densifier).direct(batch_size)
        if "observe" in names:
            break
    return None


def multiple_seen(every: int, images_before: int, images_after: int) -> int | None:
    """The last multiple of ``every`` among images ``images_before`` to ``images_after - 1``.

    Images are numbered from 0, so with one image a step this is gsplat's
    ``step % refine_every == 0``; None when there is no multiple.
    """
    last = (images_after - 1) // every * every
    return last if last >= images_before else None
