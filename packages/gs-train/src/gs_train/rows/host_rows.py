# SPDX-License-Identifier: Apache-2.0
"""Appearance of the Gaussians in host memory, with its optimizer and the worker that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_train.renderers.protocol import Rows
from gs_train.rows.attributes import APPEARANCE, Semantics, appearance_shapes, columns
from gs_train.rows.away import Away
from gs_train.rows.checks import (
    check_appended,
    check_capacity,
    check_ids,
    check_overwriting,
    check_permutation,
    check_range,
    check_rows,
    check_sorted,
)
from gs_train.rows.host_state import MOMENTS, flat_state, load_state, split_state
from gs_train.rows.host_tables import HostTables
from gs_train.rows.replacement import Replacement


class HostRows:
    """N rows of ``sh0`` and ``shN``, 3 + 3K floats each, in host memory.

    A `RowOperations` for these two attributes. Ids and values that go in and come
    out are on `device`; the rows, page-locked where that is a GPU, are on the host. With deferred
    semantics stored rows may sleep: what is read or edited is caught up first, rows that only move
    are not.

    Row operations and reads wait for the worker and end open steps. What reads or edits all rows
    also brings home what is `away`; some rows are read, edited and replaced where they are. One
    thread at a time; `worker` may be used from others meanwhile.

    Args:
        rows: ``sh0`` (N, 1, 3) and ``shN`` (N, K, 3), float32, on any device; copied.
        semantics: of `gs_adam.HostAdam`.
        device: where ids and values are exchanged.
        travels: rows go to the device with their moments, which are then page-locked as well.
        capacity: the most rows ever; None for as many as the machine's memory holds.

    Attributes:
        adam: the optimizer, with two groups named ``sh0`` and ``shN``.
        worker: runs it in the background.
        away: who has rows on the device; None: nobody.

    Raises:
        TypeError, ValueError: rows of other names, types or shapes.
        MemoryError: the memory is not there.
    """

    def __init__(
        self,
        rows: Rows,
        *,
        semantics: Semantics,
        device: torch.device | str,
        travels: bool = False,
        capacity: int | None = None,
    ) -> None:
        check_rows(rows, APPEARANCE)
        self._device = torch.device(device)
        self._k = rows["shN"].shape[1]
        self._capacity = capacity
        self._tables = HostTables(
            len(rows["sh0"]),
            appearance_shapes(self._k),
            sleeps=semantics == "deferred",
            is_locked=self._device.type == "cuda",
            is_state_locked=travels and self._device.type == "cuda",
            capacity=capacity,
        )
        self._tables.write(self._tables.values, rows)
        groups = zip(APPEARANCE, self._tables.adam_params(), strict=True)
        self.adam = gs_adam.HostAdam(
            [{"params": [values], "name": name} for name, values in groups],
            semantics=semantics,
            # As gsplat's SelectiveAdam, which corrects nothing.
            bias_correction="off" if semantics == "sparse" else "global",
            state=self._tables.adam_state(),
        )
        self.worker = gs_adam.Worker(self.adam)
        self.away: Away | None = None

    def __len__(self) -> int:
        return self.n_rows

    def __repr__(self) -> str:
        return f"HostRows({self.n_rows} rows, K={self._k}, {self.adam.semantics}, {self.table!r})"

    @property
    def table(self) -> gs_pinned.Table:
        """(N, 3 + 3K) float32 with fields ``sh0`` and, unless K is 0, ``shN``; rows may sleep."""
        return self._tables.values

    @property
    def moments(self) -> tuple[gs_pinned.Table, gs_pinned.Table]:
        """First and second moments, like `table`."""
        return self._tables.exp_avg, self._tables.exp_avg_sq

    @property
    def steps(self) -> gs_pinned.Table | None:
        """(N, 1) int32: the step of each row's last update; None where rows do not sleep."""
        return self._tables.steps

    @property
    def device(self) -> torch.device:
        """Where ids and values are exchanged."""
        return self._device

    @property
    def n_rows(self) -> int:
        """N."""
        return self._tables.n_rows

    @property
    def k(self) -> int:
        """K, the width of ``shN``."""
        return self._k

    @property
    def width(self) -> int:
        """Floats of a row, 3 + 3K."""
        return self.table.width

    # ------------------------------------------------------------------ steps

    def set_rates(self, lr: Mapping[str, float], *, betas: tuple[float, float], eps: float) -> None:
        """Set learning rates by name and Adam's constants for the steps begun from now on."""
        for group in self.adam.param_groups:
            group.update(lr=lr[group["name"]], betas=betas, eps=eps)

    def begin(self) -> int:
        """Begin a step with the rates as they are; its number goes with updates and to `end`."""
        return self.adam.begin_step()

    def end(self, step: int) -> None:
        """End a step: all its updates have been submitted.

        Raises:
            ValueError: it is not open (`rest` ends open steps too), or an earlier one is.
            Exception: what a task of the worker raised; the step has ended.
        """
        self.adam.end_step(step)

    def end_before(self, step: int) -> None:
        """End the earlier steps that are open; see `end`."""
        for earlier in self.adam.open_steps:
            if earlier < step:
                self.end(earlier)

    def rest(self) -> None:
        """Wait for the worker and for transfers of the rows, end the steps that are open, and bring
        home what is away.

        Raises:
            Exception: what a task of the worker raised.
        """
        self._settle()
        if self.away is not None:
            self.away.come_home()
            self._tables.wait()

    def _settle(self) -> None:
        """The same, but rows that are away stay there."""
        self.worker.wait()
        for step in self.adam.open_steps:
            self.end(step)
        self._tables.wait()

    @property
    def _open_away(self) -> Away | None:
        return self.away if self.away is not None and self.away.is_open else None

    def _begin_edit(self, ids: Tensor | None) -> None:
        """Rows ``ids`` are about to change, or all."""
        if ids is None:
            self._rest_to_change()
        else:
            self._settle()

    def _rest_to_change(self) -> None:
        self.rest()
        if self.away is not None:
            self.away.forget()

    # ------------------------------------------------------------------ reading

    def read(self, name: str, ids: Tensor | None = None) -> Tensor:
        """Values of one attribute, caught up.

        Args:
            name: ``sh0`` or ``shN``.
            ids: (R,) rows in any order, repeats allowed; None means all.

        Returns:
            (R, ...) on `device`, see `read_rows`. With None on the CPU the stored values
            themselves, not to be written to.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids of another type or
                shape, or out of range.

        Cost: with None all rows over the link, without staging; brings rows that sleep up to
            date. Synchronises.
        """
        if name not in APPEARANCE:
            raise KeyError(f"name must be one of {', '.join(APPEARANCE)}, got {name}")
        if ids is not None:
            return self.read_rows(ids)[name]
        self._rest_to_change()
        self._catch_up(None)
        stored = self._tables.views(self.table)[name]
        if self._device.type == "cpu":
            return stored
        out = torch.empty(self.n_rows, *stored.shape[1:], device=self._device)
        if self._tables.stored(name):
            gs_pinned.gather(self.table, slice(None), {name: out})
            self.table.wait()
        return out

    def read_rows(self, ids: Tensor) -> dict[str, Tensor]:
        """Caught-up copies of rows; nothing is changed, so training goes on to the same bits.

        Args:
            ids: (R,) rows in any order, repeats allowed.

        Returns:
            ``sh0`` (R, 1, 3) and ``shN`` (R, K, 3) on `device`.

        Raises:
            TypeError, ValueError, IndexError: ids of another type or shape, or out of range.

        Cost: R rows over the link, those that are away excepted; rows that are stay there.
            Synchronises.
        """
        check_ids(ids, self._device)
        rows, at = ids.unique(return_inverse=True)
        if len(rows):
            check_range(int(rows[0]), int(rows[-1]), self.n_rows)
        self._settle()
        if (away := self._open_away) is not None:
            return columns(away.read_rows(rows).index_select(0, at))
        taken = self.adam.lookahead(rows.cpu())
        return {
            name: values.to(self._device).index_select(0, at)
            for name, values in zip(APPEARANCE, taken, strict=True)
        }

    def snapshot(self, ids: slice | Tensor | None = None) -> dict[str, Tensor]:
        """Caught-up copies of rows; nothing is changed, so training goes on to the same bits.

        Args:
            ids: a slice of step 1, or (R,) sorted and unique ids on any device; None means all.

        Returns:
            ``sh0`` (R, 1, 3) and ``shN`` (R, K, 3), fresh CPU tensors.

        Raises:
            TypeError, ValueError, IndexError: other ids.
        """
        if isinstance(ids, slice):
            first, end, stride = ids.indices(self.n_rows)
            if stride != 1:
                raise ValueError(f"ids must be a slice of step 1, got step {stride}")
            ids = torch.arange(first, max(first, end), dtype=torch.int32)
        elif ids is not None:
            ids = ids.cpu()
            check_sorted(ids, self.n_rows, ids.device, wait=True)
        self.rest()
        return dict(zip(APPEARANCE, self.adam.lookahead(ids), strict=True))

    # ------------------------------------------------------------------ row operations

    def replace(self, removed: Tensor, rows: Rows | None = None) -> None:
        """Remove some rows and add others, with zero moments and awake; see
        `RowOperations.replace`.

        Args:
            removed: (R,) sorted and unique rows.
            rows: ``sh0`` and ``shN`` of A rows, float32, on any device, K as here; None for none.

        Raises:
            TypeError, ValueError, IndexError: as the constructor; ids not sorted and unique or out
                of range; nothing is changed.
            MemoryError: the memory is not there, or beyond the capacity. Nothing is changed
                in either case.

        Cost: the rows that change, in the tables; rows that are away stay there. Synchronises.
        """
        check_sorted(removed, self.n_rows, self._device, wait=True)
        if rows is None:
            rows = columns(torch.empty((0, self.width), device=self._device))
        check_appended(rows, APPEARANCE, self._k)
        change = Replacement.of(self.n_rows, removed, len(rows["sh0"]))
        check_capacity(change.n_after, self._capacity)
        new = torch.empty((len(rows["sh0"]), self.width), device=self._device)
        for name, values in columns(new).items():
            values.copy_(rows[name].detach())
        self._settle()
        self._tables.replace(change, new, step=self.adam.step_count)
        if (away := self._open_away) is not None:
            away.replace(change, new)
        if change.n_after != change.n_before:
            self._rebind()

    def permute(self, order: Tensor) -> None:
        """Make row ``order[i]`` row i, with its moments and its sleep.

        Args:
            order: (N,) int32 or int64, a permutation.

        Raises:
            TypeError, ValueError: it is not one; nothing is changed.

        Cost: one pass over the rows in place, 64 bytes a row beside them. Synchronises.
        """
        check_permutation(order, self.n_rows, self._device)
        self._rest_to_change()
        self._tables.permute(order.cpu())

    def overwrite(self, ids: Tensor | None, rows: Rows) -> None:
        """Write values of some attributes; moments stay.

        Args:
            ids: (R,) sorted and unique rows; None means all N.
            rows: ``sh0``, ``shN`` or both, R rows each.

        Raises:
            TypeError, ValueError, IndexError: other names, types or shapes, ids not sorted and
                unique or out of range; nothing is changed.

        Cost: brings these rows up to date, all of their attributes. Synchronises.
        """
        if ids is not None:
            check_sorted(ids, self.n_rows, self._device, wait=True)
        n_expected = self.n_rows if ids is None else len(ids)
        check_overwriting(rows, APPEARANCE, n_rows=n_expected, k=self._k)
        if ids is not None:
            rows = {name: values.to(self._device) for name, values in rows.items()}
        self._begin_edit(ids)
        if ids is not None and (away := self._open_away) is not None:

            def write(part: slice, tables: list[Tensor]) -> None:
                stored = columns(tables[0])
                for name, values in rows.items():
                    stored[name].copy_(values[part])

            away.edit(ids, write)
            return
        self._catch_up(None if ids is None else ids.cpu())
        self._tables.write(self.table, rows, ids)

    def zero_moments(
        self, ids: Tensor | None = None, *, names: Iterable[str] | None = None
    ) -> None:
        """Forget what the optimizer gathered about some rows; the step count stays.

        Args:
            ids: (R,) sorted and unique rows; None means all.
            names: attributes; None means both.

        Raises:
            KeyError, TypeError, ValueError, IndexError: no such attribute; ids as for
                `overwrite`. Nothing is changed.

        Cost: brings these rows up to date. Synchronises.
        """
        chosen = APPEARANCE if names is None else tuple(names)
        for name in chosen:
            if name not in APPEARANCE:
                raise KeyError(f"name must be one of {', '.join(APPEARANCE)}, got {name}")
        if ids is not None:
            check_sorted(ids, self.n_rows, self._device, wait=True)
        self._begin_edit(ids)
        if ids is not None and (away := self._open_away) is not None:

            def forget(part: slice, tables: list[Tensor]) -> None:
                for table in tables[1:]:
                    for name in chosen:
                        columns(table)[name].zero_()

            away.edit(ids, forget)
            return
        on_host = None if ids is None else ids.cpu()
        self._catch_up(on_host)
        for table in (self._tables.exp_avg, self._tables.exp_avg_sq):
            moments = self._tables.views(table)
            for name in chosen:
                if on_host is None:
                    moments[name].zero_()
                else:
                    moments[name].index_fill_(0, on_host.long(), 0.0)

    # ------------------------------------------------------------------ checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """Rows and optimizer state under flat names, not copied, sleeping rows as they are.

        Names are those of `gs_train.rows.gaussians.Gaussians.tensors`. Deferred semantics adds
        ``appearance.last_step`` (N,) int32 and ``appearance.schedule.*``, without which the other
        values of a row that sleeps mean little. Before the first step there are only attributes.
        """
        self.rest()
        return {**self._tables.views(self.table), **flat_state(self.adam)}

    def targets(self, shapes: Iterable[str]) -> dict[str, Tensor]:
        """What values and moments of these names are read into, as far as they are stored here."""
        stored: dict[str, Tensor] = {}
        for group in self.adam.param_groups:
            (values,) = group["params"]
            stored[group["name"]] = values.detach()
            state = self.adam.state[values]
            stored |= {f"{group['name']}.{key}": state[key] for key in MOMENTS}
        return {name: value for name, value in stored.items() if name in set(shapes)}

    def take(self, states: Mapping[str, Tensor]) -> None:
        """Go on from states that have been read, those of `targets` into their places.

        Raises:
            ValueError: something is missing, or rows sleep and may not.
        """
        load_state(self.adam, states)

    @classmethod
    def from_tensors(
        cls,
        tensors: Mapping[str, Tensor],
        *,
        semantics: Semantics,
        device: torch.device | str,
        travels: bool = False,
        capacity: int | None = None,
    ) -> HostRows:
        """The rows whose `tensors` these were, bit for bit.

        Args:
            tensors: also those of another semantics, or of a model in the device's memory. Rows
                may sleep in them only where semantics is deferred.
            semantics, device, travels, capacity: as the constructor's.

        Raises:
            TypeError: a tensor is not float32.
            ValueError: a name is unknown or missing, shapes disagree, or rows sleep.
        """
        rows, states = split_state(tensors, APPEARANCE)
        check_rows(rows, APPEARANCE)
        made = cls(rows, semantics=semantics, device=device, travels=travels, capacity=capacity)
        load_state(made.adam, states)
        return made

    def close(self) -> None:
        """End the worker after the running task and give the memory back.

        Raises:
            Exception: what a task raised and nobody was told; the memory is given back.
        """
        try:
            self.worker.close(drain=False)
        except Exception:  # not Ctrl-C, after which a task may still write
            self._tables.close()
            raise
        self._tables.close()

    def _catch_up(self, ids: Tensor | None) -> None:
        if self.adam.semantics == "deferred":
            self.adam.flush(ids)

    def _rebind(self) -> None:
        self.adam.rebind(self._tables.adam_params(), state=self._tables.adam_state())
