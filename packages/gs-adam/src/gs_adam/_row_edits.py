# SPDX-License-Identifier: Apache-2.0
"""Edits of a host optimizer's rows, for densification."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from gs_adam import _memory
from gs_adam._arguments import listed, whole
from gs_adam._steps import Steps
from gs_adam._storage import check_params, row_ids
from gs_adam._tensors import MOMENTS, check_apart, first_unsorted


class RowEdits(Steps):
    """`append_rows`, `keep_rows`, `permute_rows`, `zero_rows`, `rebind`."""

    def append_rows(self, count: int) -> None:
        """Add rows with zero moments to the state; the parameters' new rows are the caller's.

        This and the other row operations edit the optimizer's own state. Make the same edit to
        the parameters (in place, as new tensors or as new Parameter objects) before or after; the
        next step checks that both fit. Values of rows that are copied or edited must be up to
        date: `flush` them first.

        Raises:
            RuntimeError: a step is open, or the storage is adopted.
            ValueError: ``count`` is negative.
        """
        count = whole(count, "count", least=0)

        def edit(old: torch.Tensor) -> torch.Tensor:
            grown = _memory.empty((len(old) + count, *old.shape[1:]), old.dtype)
            grown[: len(old)] = old
            grown[len(old) :] = self._schedule.step if old.dtype == torch.int32 else 0
            return grown

        self._edit_rows(edit)

    def keep_rows(self, rows: Any) -> None:
        """Drop the state of all rows but some, which keep their order. See `append_rows`.

        Args:
            rows: (R,) int32 or int64 ids, sorted and unique, or a mask.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: as `append_rows` and `update`; nothing
                is changed.
        """
        with self._lock:
            ids = row_ids(rows, self._storage.n_state_rows(), "rows")
            if bool((ids[1:] <= ids[:-1]).any()):
                raise ValueError(f"rows must be sorted and unique, got {first_unsorted(ids)}")
            self._edit_rows(lambda old: _memory.select(old, ids))

    def permute_rows(self, order: Any) -> None:
        """Make the state of row ``order[i]`` that of row i. See `append_rows`.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: ``order`` is no permutation, else as
                `append_rows`; nothing is changed.
        """
        with self._lock:
            n_rows = self._storage.n_state_rows()
            ids = row_ids(order, n_rows, "order")
            if len(ids) != n_rows or not bool((torch.bincount(ids, minlength=n_rows) == 1).all()):
                raise ValueError(
                    f"order must be a permutation of {n_rows} rows, got {len(ids)} ids, "
                    f"{len(ids.unique())} of them distinct"
                )
            self._edit_rows(lambda old: _memory.select(old, ids))

    @torch.no_grad()
    def zero_rows(self, rows: Any = None) -> None:
        """Bring rows up to date and forget their moments.

        Args:
            rows: ids in any order or a mask; None means all.

        Raises:
            RuntimeError, TypeError, ValueError, IndexError: a step is open; else as `update`.
        """
        with self._lock:
            self._need_rest("zero_rows()")
            self._storage.follow()
            if rows is None:
                ids = torch.arange(self.n_rows, device="cpu")
            else:
                ids = row_ids(rows, self.n_rows, "rows")
            self.flush(None if rows is None else ids.unique())
            for param in self._params():
                for key in MOMENTS:
                    self.state[param][key].index_fill_(0, ids, 0.0)

    def _need_editable(self, what: str) -> None:
        """Raise where a row operation would.

        Raises:
            RuntimeError: a step is open, a worker has tasks left, or the storage is adopted.
        """
        with self._lock:
            self._need_rest(what)
            self._storage.check_own()

    def rebind(
        self, params: Sequence[torch.Tensor], *, state: dict[str, Any] | None = None
    ) -> None:
        """Continue with other tensors for the same parameters, after their storage has moved.

        Args:
            params: aligned with the parameters so far, of any number of rows.
            state: as the constructor's, when the storage is adopted; None keeps the state, which
                must fit (see `append_rows`).

        Raises:
            RuntimeError: a step is open.
            TypeError, ValueError: tensors do not fit. Nothing is changed.
        """
        with self._lock:
            self._need_rest("rebind()")
            old = self._params()
            params = listed(params, "params")
            if len(params) != len(old):
                raise ValueError(f"params must be {len(old)} tensors, got {len(params)}")
            check_params(params, 0)
            for k, (new, before) in enumerate(zip(params, old, strict=True)):
                if new.shape[1:] != before.shape[1:]:
                    raise ValueError(
                        f"params[{k}] must have rows of shape {tuple(before.shape[1:])} as before, "
                        f"got {tuple(new.shape[1:])}"
                    )
            if state is None and len(params[0]) != self._storage.n_state_rows():
                raise ValueError(
                    f"params must have {self._storage.n_state_rows()} rows as the state, got "
                    f"{len(params[0])}"
                )
            if state is None:
                known = [self.state.get(param) or {} for param in old]
                check_apart(params, [{key: s[key] for key in MOMENTS if s} for s in known])
            stateful = [*old, *self._storage.known]  # others may have replaced parameters
            self._replace(params)
            if state is None:
                self._storage.settle()
                return
            try:
                self._storage.adopt(state)
            except BaseException:
                self._replace(old)
                raise
            for param in stateful:
                if all(param is not other for other in params):
                    self.state.pop(param, None)
            last_step = self._storage.last_step
            if last_step is not None:
                self._all_awake = bool((last_step == self._schedule.step).all())

    def _replace(self, params: Sequence[torch.Tensor]) -> None:
        left = iter(params)
        for group in self.param_groups:
            group["params"] = [next(left) for _ in group["params"]]

    def _edit_rows(self, edit: Callable[[torch.Tensor], torch.Tensor]) -> None:
        with self._lock:
            self._need_rest("a row operation")
            self._storage.edit_rows(edit)
