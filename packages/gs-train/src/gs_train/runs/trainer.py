# SPDX-License-Identifier: Apache-2.0
"""One optimizer step: render what each view sees, add up gradients, update, densify."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor

from gs_train.backends import make_backend
from gs_train.densify import Changed, Densifier, direct_of
from gs_train.densify.peers import NO_PEERS, Peers
from gs_train.densify.rank_peers import RankPeers
from gs_train.engine.batch_drawing import Truth
from gs_train.engine.exposures import Exposures
from gs_train.engine.together import Sharing
from gs_train.errors import InputError
from gs_train.machine.out_of_memory import memory_for
from gs_train.options.config import FitConfig
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS, Preset
from gs_train.ranks.dealing import Dealing
from gs_train.ranks.first_rows import Ownership, first_rows
from gs_train.renderers import Renderer, Rows, Splats, View, with_depths
from gs_train.rows.keys import RowKeys
from gs_train.rows.operations import Model
from gs_train.rows.restore import Part, Source, as_source, read_all
from gs_train.rows.strands import EXCESS_PERCENT
from gs_train.runs.row_count import RowCount
from gs_train.runs.row_order import RowOrder, sort_rows
from gs_train.runs.step_schedule import StepSchedule
from gs_train.runs.stored_engine import stored_engine
from gs_train.runs.strategies import STRATEGIES, Strategy, StrategyStart, made_by
from gs_train.sizing.choice import expected_rows
from gs_train.tide.model import StoredModel
from gs_train.tide.store_use import StoreUse
from gs_train.world.protocol import World

_MODEL, _CHANGES = "model/", "order/changes"


class _Part(Protocol):
    """What has a state in a checkpoint beside the rows."""

    def tensors(self) -> Mapping[str, Tensor]: ...

    def load(self, tensors: Mapping[str, Tensor]) -> None: ...


@dataclass(frozen=True)
class StepResult:
    """What one step did.

    Attributes:
        loss: () mean photometric loss of the batch, on the device: reading it synchronises.
        changed: what densification did.
    """

    loss: Tensor
    changed: Changed


class Trainer:
    """A model in training: rows, the optimizer's and densification's tensors, and the step.

    Everything else follows from the configuration and the step, random numbers included, so a
    checkpoint of these resumes exactly.

    Args:
        config: the run's options.
        rows: the first Gaussians; those of all ranks, where there are several. None where ``store``
            has a cloud of them.
        row_keys: of these, on the CPU; None: a row's key is its index.
        renderer: draws them; decides the device.
        extent: radius of the scene (see :class:`gs_train.data.frame.Frame`).
        means_extent: what the means' learning rate is a multiple of; ``extent`` when None.
        strategy: makes the densifier; None: the one that the options name. Of several ranks, each
            reports the changes of all, see `Changed`.
        preset: where the rows live.
        limits: of rows, where memory sets them.
        sharing: with other ranks, whose trainers make the same calls; None: there are none. Each
            owns some of the rows.
        store: where the rows are put, of a preset that keeps them on a drive.
        views: names of the training views; needed where exposures are trained.

    Attributes:
        step: steps done.
        schedule: of the steps.
        dealing: which rows are whose; None where one rank has all.
        n_ranks: that own the Gaussians.
        exposures: of the training views; None where they are not trained.
    """

    def __init__(
        self,
        config: FitConfig,
        rows: Rows | None,
        *,
        renderer: Renderer,
        extent: float,
        means_extent: float | None = None,
        strategy: Strategy | None = None,
        preset: Preset = PRESETS["none"],
        limits: Limits = UNLIMITED,
        sharing: Sharing | None = None,
        store: StoreUse | None = None,
        views: Sequence[str] = (),
        row_keys: RowKeys | None = None,
    ) -> None:
        keys = None if row_keys is None else row_keys.to(renderer.device)
        dealing = None
        if sharing is not None and sharing.world.size > 1:
            world = sharing.world
            assert rows is not None
            own = first_rows(rows, rank=world.rank, n_ranks=world.size, keys=row_keys)
            rows, keys = own.rows, own.keys.to(renderer.device)
            dealing = Dealing(world, own.lattice)
        self._start(
            config,
            renderer,
            extent=extent,
            means_extent=means_extent,
            strategy=strategy,
            preset=preset,
            limits=limits,
            rows=rows,
            keys=keys,
            sharing=sharing,
            dealing=dealing,
            store=store,
            views=views,
        )

    @classmethod
    def restore(
        cls,
        config: FitConfig,
        tensors: Source | Mapping[str, Tensor],
        *,
        step: int,
        renderer: Renderer,
        extent: float,
        means_extent: float | None = None,
        strategy: Strategy | None = None,
        preset: Preset = PRESETS["none"],
        limits: Limits = UNLIMITED,
        sharing: Sharing | None = None,
        ownership: Ownership | None = None,
        store: StoreUse | None = None,
        views: Sequence[str] = (),
    ) -> Trainer:
        """The trainer whose :meth:`tensors` these were, after ``step`` steps.

        Args:
            tensors: those of all rows; of several ranks, each gives those of its own rows, and what
                has no rows.
            ownership: of the rows; None where one rank has all.
            store: where the rows are, of a preset that keeps them on a drive.
            views: as of a new trainer.

        Raises:
            ValueError: several ranks share the rows and there is no ownership, or one rank has all
                rows and there is one.
        """
        n_ranks = 1 if sharing is None else sharing.world.size
        if (n_ranks > 1) != (ownership is not None):
            rule = "given" if ownership is None else "None"
            raise ValueError(f"ownership must be {rule} where the rows are of {n_ranks} rank(s)")
        trainer = cls.__new__(cls)
        source = as_source(tensors)
        model = Part(source, _MODEL)
        dealing = None
        if sharing is not None and ownership is not None:
            dealing = Dealing(sharing.world, ownership.lattice)
        trainer._start(
            config,
            renderer,
            extent=extent,
            means_extent=means_extent,
            strategy=strategy,
            preset=preset,
            limits=limits,
            source=model,
            sharing=sharing,
            dealing=dealing,
            store=store,
            views=views,
        )
        if ownership is not None:
            trainer.model.keys.labels = ownership.labels.to(renderer.device)
        trainer.step = step
        if store is not None and (there := cast(StoredModel, trainer.model).rows.step) != step:
            trainer.close()
            raise InputError(
                f"snapshot {store.snapshot} of the store {store.folder} must be of step {step}, "
                f"got {there}"
            )
        for prefix, part in trainer._parts().items():
            part.load(read_all(Part(source, prefix)))
        if _CHANGES in source.shapes:  # earlier versions counted images
            changes = torch.zeros((), dtype=torch.int64)
            source.fill({_CHANGES: changes})
            trainer._order.changes = int(changes)
        return trainer

    def _start(
        self,
        config: FitConfig,
        renderer: Renderer,
        *,
        extent: float,
        means_extent: float | None,
        strategy: Strategy | None,
        preset: Preset,
        limits: Limits,
        rows: Rows | None = None,
        keys: RowKeys | None = None,
        source: Source | None = None,
        sharing: Sharing | None,
        dealing: Dealing | None,
        store: StoreUse | None,
        views: Sequence[str],
    ) -> None:
        """Begin with rows and their keys, or with a source of what `tensors` gave."""
        self.config = config
        self.renderer = renderer
        self.preset = preset
        self.step = 0
        self._order = RowOrder(config.resort_every)
        self._is_whole = True
        self.dealing = dealing
        self.n_ranks = 1 if sharing is None else sharing.world.size
        peers: Peers = NO_PEERS
        world: World | None = None
        if sharing is not None and self.n_ranks > 1:
            world = sharing.world
            peers = RankPeers(world)
        self.exposures: Exposures | None = None
        if config.exposure:
            if not views:
                raise ValueError("views must name the training views where exposures are trained")
            self.exposures = Exposures(views, renderer.device)
        self.schedule = StepSchedule(
            config,
            means_extent=extent if means_extent is None else means_extent,
            exposures=self.exposures,
        )
        if config.depth_weight is not None:
            with_depths(renderer)  # raises where it cannot
        if store is not None:
            self.backend = stored_engine(store, rows, renderer, self.schedule)
        else:
            self.backend = make_backend(
                preset,
                rows,
                source,
                renderer=renderer,
                semantics=config.semantics,
                mem_limit=config.mem_limit,
                limits=limits,
                seed=config.seed,
                keys=keys,
                sharing=sharing,
            )
        self._count = RowCount(self.model.n_rows, peers, world=world, compares=strategy is not None)
        n_expected = expected_rows(config, self.n_rows)
        if self.n_ranks > 1:  # a share, and what it may exceed that by
            n_expected = (100 + EXCESS_PERCENT) * n_expected // (100 * self.n_ranks) + 1
        self.model.expected = min(n_expected, limits.capacity or n_expected)
        start = StrategyStart(
            n_rows=self.model.n_rows,
            scene_scale=extent,
            seed=config.seed,
            device=self.model.device,
            config=config,
            peers=peers,
        )
        self.densifier: Densifier = made_by(strategy or STRATEGIES[config.strategy], start)

    def close(self) -> None:
        """End what is under way, and give memory and files back."""
        self.model.close()

    @property
    def model(self) -> Model:
        """The rows."""
        return self.backend.model

    @property
    def n_rows(self) -> int:
        """Present number of Gaussians, of all ranks."""
        return self._count.n_rows

    @property
    def sorted_at(self) -> int:
        """Steps that were done when this object last re-ordered the rows; 0 if never."""
        return self._order.sorted_at

    @property
    def is_whole(self) -> bool:
        """Whether each step that has changed something has ended: the state may be saved."""
        return self._is_whole and self.backend.is_whole

    def tensors(self) -> dict[str, Tensor]:
        """The whole state but the step, not copied. Waits for work in the background."""
        self.backend.finish()
        state = {_MODEL + name: value for name, value in self.model.tensors().items()}
        for prefix, part in self._parts().items():
            state |= {prefix + name: value for name, value in part.tensors().items()}
        return {**state, _CHANGES: torch.tensor(self._order.changes)}

    def _parts(self) -> dict[str, _Part]:
        """By what precedes their names in `tensors`."""
        parts: dict[str, _Part] = {"densify/": self.densifier, "costs/": self.backend.costs}
        if self.backend.together is not None:
            parts["columns/"] = self.backend.together.columns
        if self.exposures is not None:
            parts["exposure/"] = self.exposures
        return parts

    @property
    def images_seen(self) -> int:
        """Images that the steps so far were made of."""
        return self.schedule.images_before(self.step)

    def train_step(
        self,
        batch: Sequence[tuple[View, Truth]],
        upcoming: Sequence[Sequence[View]] = (),
        *,
        meanwhile: Callable[[], object] | None = None,
    ) -> StepResult:
        """One optimizer update from the mean loss of ``batch``.

        Args:
            batch: views on the renderer's device with their photographs there, (H, W, 3) uint8,
                with a mask or a depth map more bytes a pixel (`gs_train.losses.channels`), or
                functions that return these.
            upcoming: views of the batches that follow, as far as known; two of them are enough. A
                hint that changes no result.
            meanwhile: called while the device draws, before the host waits for it.
        """
        images_before = self.images_seen
        settings = self.schedule.settings(self.step, max_degree=self.model.sh_degree)

        def observe(ids: Tensor, splats: Splats) -> None:
            self.densifier.observe(ids, splats, batch_size=len(batch))

        direct = direct_of(self.densifier, len(batch))
        with self.model.trouble(), memory_for("a batch"):
            loss = self.backend.step(
                batch, settings, observe, direct=direct, upcoming=upcoming, meanwhile=meanwhile
            )
        self._is_whole = False
        self.schedule.update_exposures(settings, self.step, len(batch))

        # The rate that the next step will use, as gsplat's schedulers have already moved on here.
        next_lr = self.schedule.next_means_rate(settings, self.step, len(batch))
        with self.backend.trace.host("densify"), memory_for("a refinement of rows"):
            changed = self.densifier.after_step(
                self.model,
                step=self.step,
                images_before=images_before,
                images_after=images_before + len(batch),
                means_lr=next_lr,
            )
        self.step += 1
        changed = self._resort(changed)
        self._is_whole = True
        return StepResult(loss, changed)

    def news(self) -> list[str]:
        """Lines about what befell a rank and did not end the run, since this was asked last."""
        together = self.backend.together
        return [] if together is None else together.news.lines()

    def _resort(self, changed: Changed) -> Changed:
        """Put the rows in the order of the Morton curve when many came, went or moved: a view then
        sees runs of rows."""
        self._order.changes += changed.n_changes
        self._count.follow(changed, self.model.n_rows, step=self.step)
        if not self._order.is_due(self.n_rows):
            return changed
        with self.backend.trace.host("sort rows"), memory_for("the sorting of rows"):
            self.backend.make_room()
            sort_rows(self.model, self.densifier, self.dealing)
        self._order.begin_again(self.step)
        return dataclasses.replace(changed, rows_changed=True)
