# SPDX-License-Identifier: Apache-2.0
"""Adam over rows in host memory."""

from __future__ import annotations

from typing import Any

from gs_adam import _checkpoint, _core
from gs_adam._options import options_of
from gs_adam._row_edits import RowEdits


class HostAdam(RowEdits):
    """Adam on float32 CPU tensors whose first dimension is the row, touching only rows with work.

    All tensors have the same number of rows N; each group has its own lr, betas and eps. They may
    be strided views of one table (``table[:, :3]``), page-locked or not. One pass over a row
    updates all its tensors.

    Semantics:
        ``"dense"``: torch.optim.Adam (AdamW with weight decay). Rows not given to a step get the
            update of a zero gradient when it ends.
        ``"deferred"``: the same result, but rows not given to a step sleep and are caught up in
            closed form when they are next updated, flushed or looked ahead. Until then the stored
            values of a sleeping row are this object's own affair.
        ``"sparse"``: rows not given to a step stand still, moments included.

    State is as torch.optim.Adam's: ``step``, ``exp_avg``, ``exp_avg_sq``, made at the first step;
    state dicts can be exchanged with it (a deferred one after `flush`). Replaced Parameter objects
    in ``param_groups`` are followed. Learning-rate schedulers work; a rate holds from
    `begin_step` on.

    Args:
        params: tensors or groups, as for any torch optimizer.
        lr: learning rate.
        betas: decay rates of the moments.
        eps: added to the root of the second moment; deferred needs at least 1e-20.
        weight_decay: decoupled (AdamW), never added to the gradient.
        semantics: what happens to rows that a step is not given.
        bias_correction: ``"global"`` counts the optimizer's steps; ``"off"`` (sparse only)
            corrects nothing, as gsplat's SelectiveAdam.
        threads: of the pool that updates rows, shared by all optimizers of that size; one per
            usable processor when None. torch's own threads are left alone.
        state: storage to adopt instead of allocating: a dict of ``exp_avg`` and ``exp_avg_sq``,
            lists aligned with the parameters and of their shapes, and for deferred ``last_step``,
            (N,) int32. Row operations are then the owner's affair, followed by `rebind`.
        skip_nonfinite: treat a row whose gradient holds NaN or Inf as if it had none. Such rows
            are counted in `nonfinite_rows` either way.

    Raises:
        TypeError, ValueError: options out of range, or tensors of another dtype, device, stride or
            number of rows, or more than 32.

    Threads: `update`, `lookahead`, ``flush(rows)`` and a `Worker`'s submissions run beside each
        other, on disjoint rows. Every call that needs all rows (`step`, ``flush()``, `state_dict`,
        `load_state_dict`, row operations, `rebind`) waits for those of other threads that are under
        way, and later ones wait for it; it raises RuntimeError where a step is open, a worker has
        tasks left, or its own thread is inside a call. `end_step` waits for calls of other threads
        as well, and from its beginning on the step takes no further rows.
    Cost: a row costs 28 bytes of memory traffic a value; nothing grows with N except dense
        semantics, bool masks and ``flush()`` of all rows. The GIL is released; one SIMD level gives
        the same bits however rows are divided.
    """

    def state_dict(self) -> dict[str, Any]:
        """torch.optim.Adam's state dict; deferred adds ``last_step`` and the steps' rates.

        Tensors are not copied and sleeping rows not flushed: loading it continues bit for bit.

        Raises:
            RuntimeError: a step is open.
        """
        with self._lock:
            self._need_rest("state_dict()")
            self._storage.settle()
            self._storage.count(self._schedule.step)  # Ctrl-C may have come before
            state_dict = super().state_dict()
            if self._semantics == "deferred":
                state_dict[_checkpoint.KEY] = {
                    "last_step": self._storage.last_step,
                    "schedule": _checkpoint.pack_schedule(self._schedule, len(self.param_groups)),
                }
            return state_dict

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from this optimizer's or torch.optim.Adam's state dict.

        As with torch's optimizers, tensors of fitting dtype are taken over, not copied; adopted
        storage is written to.

        Raises:
            RuntimeError: a step is open.
            ValueError: other groups, shapes or options. Nothing is changed.
        """
        with self._lock:
            self._need_rest("load_state_dict()")
            self._storage.settle()
            self._load(state_dict)

    def _load(self, state_dict: dict[str, Any]) -> None:
        self._check_rows()
        step = _checkpoint.check_fits(
            state_dict, self.param_groups, is_copied=self._storage.is_adopted
        )
        for group in state_dict["param_groups"]:
            options_of(group)
        own = state_dict.get(_checkpoint.KEY)
        if own is not None:
            _checkpoint.check_own(
                own,
                step=step,
                n_rows=self.n_rows,
                n_groups=len(self.param_groups),
                deferred=self._semantics == "deferred",
            )
            if self._semantics == "deferred" and own["schedule"]:
                # A schedule that does not fit is found before anything changes.
                trial = _core.Schedule(len(self.param_groups), self._semantics, True)
                trial.restore(step, _checkpoint.unpack_schedule(own["schedule"]))
        self._storage.make_marks()
        adopted = dict(self.state) if self._storage.is_adopted else {}
        super().load_state_dict(state_dict)
        self._storage.write_back(adopted)
        for group in self.param_groups:
            if not group["weight_decay"]:
                group["decoupled_weight_decay"] = True
        self._storage.forget_marks()
        self._restore(step, own if self._semantics == "deferred" else None)

    def _check_rows(self) -> None:
        last_step = self._storage.last_step
        if last_step is None or len(last_step) == self.n_rows or not self._storage.is_adopted:
            return
        raise ValueError(
            f"params must have {len(last_step)} rows as the adopted state, got {self.n_rows}; call "
            "rebind with state of as many"
        )

    def _restore(self, step: int, own: dict[str, Any] | None) -> None:
        self._all_awake = True
        last_step = self._storage.last_step
        if own is not None and own["schedule"]:
            assert last_step is not None
            last_step.copy_(own["last_step"])
            self._restore_steps(step, own["schedule"])
            self._all_awake = bool((last_step == step).all())
            return
        if last_step is not None:
            last_step.fill_(step)
        self._restore_steps(step, [])

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("HostAdam must be saved with state_dict(), got a request to pickle it")
