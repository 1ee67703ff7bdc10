# SPDX-License-Identifier: Apache-2.0
"""Appearance of the Gaussians in host memory, with its optimizer and the worker that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_train.renderers.protocol import Rows
from gs_train.rows.appearance import AppearanceRows, by_name, columns_of, kind_of_adam
from gs_train.rows.attributes import APPEARANCE, Semantics, columns
from gs_train.rows.away import Away
from gs_train.rows.checked import write_rows, zero_rows
from gs_train.rows.checks import check_range, check_slice
from gs_train.rows.host_tables import HostTables
from gs_train.rows.replacement import Replacement
from gs_train.rows.saved_state import LAST_STEP, MOMENTS

_OWN = "gs_adam"  # where HostAdam.state_dict() keeps what torch.optim.Adam has not


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
        device, capacity: as of `CheckedRows`.
        travels: rows go to the device with their moments, which are then page-locked as well.

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
            self._k,
            sleeps=semantics == "deferred",
            is_locked=self._device.type == "cuda",
            is_state_locked=travels and self._device.type == "cuda",
            capacity=capacity,
        )
        self._tables.write(rows)
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
    def moments(self) -> tuple[gs_pinned.Table, ...]:
        """First and second moments, like `table`."""
        return self._tables.moments

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

    def _begin_edit(self, ids: Tensor | None) -> Away | None:
        """Catch up rows ``ids``, or all, which are about to change; or return who edits them where
        some are away."""
        if ids is None:
            self._rest_to_change()
        else:
            self._settle()
        away = self._open_away
        if away is None and self.adam.semantics == "deferred":
            self.adam.flush(None if ids is None else ids.cpu())
        return away

    def _rest_to_change(self) -> None:
        self.rest()
        if self.away is not None:
            self.away.forget()

    # ------------------------------------------------------------------ reading

    def whole(self, name: str) -> Tensor:
        """See `RowOperations.read`; on the CPU the stored values.

        Cost: all rows over the link, without staging; brings rows that sleep up to date.
        """
        self._begin_edit(None)
        stored = columns(self.table.torch())[name]
        if self._device.type == "cpu":
            return stored
        out = torch.empty(self.n_rows, *stored.shape[1:], device=self._device)
        if out.numel():
            gs_pinned.gather(self.table, slice(None), {name: out})
            self.table.wait()
        return out

    def picked(self, ids: Tensor, names: tuple[str, ...]) -> dict[str, Tensor]:
        """See `RowOperations.read_rows`; ids of any device are looked at.

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

    def snapshot(self, ids: slice = slice(None)) -> dict[str, Tensor]:
        """See `AppearanceRows.snapshot`; fresh CPU tensors."""
        chosen = torch.arange(*check_slice(ids, self.n_rows), dtype=torch.int32)
        self.rest()
        return dict(zip(APPEARANCE, self.adam.lookahead(chosen), strict=True))

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
        """See `RowOperations.permute`; in place, 64 bytes a row beside the rows."""
        self._rest_to_change()
        self._tables.permute(order.cpu())

    def write(self, ids: Tensor | None, rows: Rows) -> None:
        """See `RowOperations.overwrite`."""
        if ids is not None:
            rows = {name: values.to(self._device) for name, values in rows.items()}
        away = self._begin_edit(ids)
        if ids is None or away is None:
            self._tables.write(rows, ids)
            return

        def write(part: slice, tables: list[Tensor]) -> None:
            write_rows(columns(tables[0]), None, {name: rows[name][part] for name in rows})

        away.edit(ids, write)

    def forget(self, ids: Tensor | None, names: tuple[str, ...]) -> None:
        """See `RowOperations.zero_moments`."""
        away = self._begin_edit(ids)
        if ids is None or away is None:
            moments = [table.torch() for table in self.moments]
            zero_rows(columns_of(moments, names), None if ids is None else ids.cpu())
        else:
            away.edit(ids, lambda part, tables: zero_rows(columns_of(tables[1:], names), None))

    def write_states(self, ids: Tensor, states: Mapping[str, Tensor]) -> None:
        """See `AppearanceRows.write_states`."""
        self._rest_to_change()
        super().write_states(ids, states)
        # The optimizer looks at last steps again.
        self.adam.rebind(self._tables.adam_params(), state=self._tables.adam_state())

    # ------------------------------------------------------------------ checkpoints

    def _stored(self) -> tuple[list[Tensor], Tensor | None]:
        tables = [table.torch() for table in (self.table, *self.moments)]
        return tables, None if self.steps is None else self.steps.torch()[:, 0]

    def _schedule(self) -> list[dict[str, Any]]:
        return self.adam.state_dict().get(_OWN, {}).get("schedule", [])

    def targets(self) -> dict[str, Tensor]:
        """See `AppearanceRows.targets`."""
        return by_name(self._stored()[0])

    def _restore(self, states: Mapping[str, Tensor], packed: list[dict[str, Any]]) -> None:
        state_dict = self.adam.state_dict()
        state_dict["state"] = {
            index: {key: states[f"{name}.{key}"] for key in ("step", *MOMENTS)}
            for index, name in enumerate(APPEARANCE)
            if f"{name}.step" in states
        }
        state_dict.pop(_OWN, None)
        if packed:
            state_dict[_OWN] = {"last_step": states[LAST_STEP], "schedule": packed}
        self.adam.load_state_dict(state_dict)

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
