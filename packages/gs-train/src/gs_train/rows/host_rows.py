# SPDX-License-Identifier: Apache-2.0
"""Appearance of the Gaussians in host memory, with its optimizer and the worker that runs it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_train.renderers.protocol import Rows
from gs_train.rows.appearance import AppearanceRows, kind_of_adam
from gs_train.rows.attributes import APPEARANCE, Semantics, appearance_shapes, columns
from gs_train.rows.away import Away
from gs_train.rows.checks import check_range, check_slice, check_sorted
from gs_train.rows.host_state import MOMENTS, flat_state, load_state
from gs_train.rows.host_tables import HostTables
from gs_train.rows.replacement import Replacement


class HostRows(AppearanceRows):
    """`AppearanceRows` in host memory.

    Ids and values that go in and come out are on `device`; the rows, page-locked where that is a
    GPU, are on the host.

    Row operations and reads wait for the worker and end open steps; they synchronise. What reads
    or edits all rows also brings home what is `away`; some rows are read, edited and replaced where
    they are. One thread at a time; `worker` may be used from others meanwhile.

    Args:
        rows: as of `AppearanceRows`; copied.
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

    adam: gs_adam.HostAdam

    def __init__(
        self,
        rows: Rows,
        *,
        semantics: Semantics,
        device: torch.device | str,
        travels: bool = False,
        capacity: int | None = None,
    ) -> None:
        super().__init__(rows, device=device, capacity=capacity)
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
            state=self._tables.adam_state(),
            **kind_of_adam(semantics),
        )
        self.worker = gs_adam.Worker(self.adam)
        self.away: Away | None = None

    def __repr__(self) -> str:
        return f"HostRows({self.n_rows} rows, K={self._k}, {self.adam.semantics}, {self.table!r})"

    @property
    def n_rows(self) -> int:
        """N."""
        return self._tables.n_rows

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

    # ------------------------------------------------------------------ steps

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

    def whole(self, name: str) -> Tensor:
        """See `CheckedRows.read`; on the CPU the stored values.

        Cost: all rows over the link, without staging; brings rows that sleep up to date.
        """
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

    def picked(self, ids: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See `CheckedRows.read_rows`; ids of any device are looked at.

        Cost: R rows over the link, those that are away excepted; rows that are stay there.
        """
        rows, at = ids.unique(return_inverse=True)
        if len(rows):
            check_range(int(rows[0]), int(rows[-1]), self.n_rows)
        self._settle()
        if (away := self._open_away) is not None:
            there = columns(away.read_rows(rows).index_select(0, at))
            return {name: there[name] for name in names}
        taken = dict(zip(APPEARANCE, self.adam.lookahead(rows.cpu()), strict=True))
        return {name: taken[name].to(self._device).index_select(0, at) for name in names}

    def snapshot(self, ids: slice | Tensor | None = None) -> dict[str, Tensor]:
        """See `AppearanceRows.snapshot`; fresh CPU tensors."""
        if isinstance(ids, slice):
            first, end = check_slice(ids, self.n_rows)
            ids = torch.arange(first, end, dtype=torch.int32)
        elif ids is not None:
            ids = ids.cpu()
            check_sorted(ids, self.n_rows, ids.device, wait=True)
        self.rest()
        return dict(zip(APPEARANCE, self.adam.lookahead(ids), strict=True))

    # ------------------------------------------------------------------ row operations

    def put(self, change: Replacement, rows: Rows) -> None:
        """See `replace`. Cost: the rows that change, in the tables; rows that are away stay there.

        Raises:
            MemoryError: the memory is not there; nothing is changed.
        """
        new = torch.empty((len(rows["sh0"]), self.width), device=self._device)
        for name, values in columns(new).items():
            values.copy_(rows[name].detach())
        self._settle()
        self._tables.replace(change, new, step=self.adam.step_count)
        if (away := self._open_away) is not None:
            away.replace(change, new)
        if change.n_after != change.n_before:
            self.adam.rebind(self._tables.adam_params(), state=self._tables.adam_state())

    def reorder(self, order: Tensor) -> None:
        """See `CheckedRows.permute`; in place, 64 bytes a row beside the rows."""
        self._rest_to_change()
        self._tables.permute(order.cpu())

    def write(self, ids: Tensor | None, rows: Rows) -> None:
        """See `CheckedRows.overwrite`."""
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

    def forget(self, ids: Tensor | None, names: tuple[str, ...]) -> None:
        """See `CheckedRows.zero_moments`."""
        self._begin_edit(ids)
        if ids is not None and (away := self._open_away) is not None:

            def forget(part: slice, tables: list[Tensor]) -> None:
                for table in tables[1:]:
                    for name in names:
                        columns(table)[name].zero_()

            away.edit(ids, forget)
            return
        on_host = None if ids is None else ids.cpu()
        self._catch_up(on_host)
        for table in self.moments:
            moments = self._tables.views(table)
            for name in names:
                if on_host is None:
                    moments[name].zero_()
                else:
                    moments[name].index_fill_(0, on_host.long(), 0.0)

    # ------------------------------------------------------------------ checkpoints

    def tensors(self) -> dict[str, Tensor]:
        """See `AppearanceRows.tensors`."""
        self.rest()
        return {**self._tables.views(self.table), **flat_state(self.adam)}

    def targets(self, shapes: Iterable[str]) -> dict[str, Tensor]:
        """See `AppearanceRows.targets`."""
        stored: dict[str, Tensor] = {}
        for group in self.adam.param_groups:
            (values,) = group["params"]
            stored[group["name"]] = values.detach()
            state = self.adam.state[values]
            stored |= {f"{group['name']}.{key}": state[key] for key in MOMENTS}
        return {name: value for name, value in stored.items() if name in set(shapes)}

    def take(self, states: Mapping[str, Tensor]) -> None:
        """See `AppearanceRows.take`."""
        load_state(self.adam, states)

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
