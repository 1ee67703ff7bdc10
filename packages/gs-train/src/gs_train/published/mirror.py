# SPDX-License-Identifier: Apache-2.0
"""The placement whose rows and gradients are all on the device."""

from __future__ import annotations

import numpy as np
import torch

from gs_train.engine.geometry import add_to, penalties, set_options
from gs_train.engine.lookahead import EarlyList
from gs_train.engine.placement import Batch, Taken, Tools
from gs_train.engine.places import Places
from gs_train.engine.settings import StepSettings
from gs_train.rows.gaussians import Gaussians


class MirrorPlacement:
    """A `Placement`: gradients of all rows are added up on the device, and all rows are updated.

    Args:
        model: the rows. Its optimizer decides where moments live, and whether a master copy of the
            rows is in host memory; its ``step`` takes no argument.
        tools: of the engine.
    """

    is_resident = False
    lists_ahead = 0
    expecting_waits = False

    def __init__(self, model: Gaussians, tools: Tools) -> None:
        self._model = model
        self._tools = tools
        self._step = 0
        self._batch: Batch
        self._places: Places
        self._settings: StepSettings

    @property
    def n_bytes(self) -> int:
        grads = [param.grad for param in self._model.params.values()]
        return sum(grad.nbytes for grad in grads if grad is not None)

    def fits(self, n_rows: int) -> bool:
        return True

    def open(self, batch: Batch) -> np.ndarray:
        self._batch = batch
        self._places = Places(batch.seen, batch.seen.ids, batch.order)
        return batch.order

    def begin(self, settings: StepSettings, edited: torch.cuda.Event | None) -> int:
        self._settings = settings
        self._step += 1
        self._model.zero_gradients()
        return self._step

    def take(self, k: int) -> Taken:
        with self._tools.trace.on("compute", f"take {k}"):
            ids = self._places.of(int(self._batch.order[k])).ids
            return Taken(ids, self._model.leaves(ids))

    def give(self, k: int, taken: Taken) -> None:
        with self._tools.trace.on("compute", f"give {k}"):
            self._model.add_gradients(taken.ids, taken.leaves)

    def tables(self, k: int) -> None:
        return None

    def expect(self, following: EarlyList | None) -> None:
        """Nothing comes early."""

    def update(self, looked: torch.cuda.Event | None) -> None:
        seen, trace = self._batch.seen, self._tools.trace
        set_options(self._model.optimizer, self._settings)
        with trace.both("update"):
            self._regularise()
            self._model.optimizer.step()
        n = self._model.n_rows
        self._tools.stats.count(
            seen,
            loaded=n,  # parameters in, gradients out
            stored=n,
            row_bytes=sum(param[0].nbytes for param in self._model.params.values()) if n else 0,
            n_slots=n,
        )
        self._tools.stats.count_rows(seen=len(seen.ids), updated=n)

    @torch.no_grad()
    def _regularise(self) -> None:
        """Add the gradients of the penalties, on all rows or on those that the batch sees."""
        model, losses = self._model, penalties(self._settings, self._batch.n_rows)
        gradients = {name: p.grad for name, p in model.params.items() if p.grad is not None}
        if self._settings.regularise_all:
            add_to(gradients, model.params, losses)
            return
        rows = self._batch.seen.ids.long()
        compact = {name: gradients[name].index_select(0, rows) for name in losses}
        add_to(compact, {name: model.params[name].index_select(0, rows) for name in losses}, losses)
        for name in losses:
            gradients[name].index_copy_(0, rows, compact[name])

    def close(self) -> None:
        del self._batch, self._places

    def finish(self) -> None:
        """Nothing is in the background."""

    def leave(self) -> None:
        self._model.drop_gradients()
