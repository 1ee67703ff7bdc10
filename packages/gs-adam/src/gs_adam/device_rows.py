# SPDX-License-Identifier: Apache-2.0
"""Rows that are updated on a device, by the schedule of an optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from gs_adam import _core
from gs_adam._arguments import listed, shown, whole
from gs_adam._open_steps import OpenSteps
from gs_adam._rows_on_cpu import RowsOnCpu
from gs_adam._rows_on_cuda import RowsOnCuda
from gs_adam._visit import Visit
from gs_adam.host import HostAdam
from gs_adam.row_schedule import RowSchedule


class DeviceRows:
    """Updates rows in slots of device memory by the rule and the schedule of a `HostAdam`, or of a
    `RowSchedule` where no row is the host's.

    Rows of all parameters lie side by side in tables of C slots, W = sum of the parameters' widths
    floats each, in the optimizer's order. Which row is in which slot, and whose values are the
    truth, is the caller's affair: the host optimizer is not asked and need not be given the rows
    in the steps that they take here. Where betas change while all its rows are awake, those that
    visit must be awake as well.

    Results are those of `HostAdam.update` and `HostAdam.flush` on the same rows: bit for bit on
    the CPU. On CUDA every value goes through the operations of the AVX kernels in their order;
    what leaves float32 on the way (replayed values, weight decay over sleeps longer than the
    window) may round differently, so that a call differs by 2 ulp of the movement at most.
    Non-finite gradients are not counted on CUDA.

    Args:
        adam: an optimizer with deferred or sparse semantics, or a `RowSchedule`.
        device: where the tables are, ``"cpu"`` or a CUDA device.
        widths: floats of a row in each group's tensor, for a `RowSchedule` alone.

    Raises:
        TypeError: an argument is of another kind.
        ValueError: dense semantics, whose steps end on the host for all rows; ``skip_nonfinite``,
            which would need a row's gradients before any of its values; widths missing or not one
            a group.

    Threads: on the CPU one call at a time updates rows. `end_step` waits for calls of other
        threads.
    Cost: 28 bytes of memory traffic a value to update, 24 to wake, none for a row that is awake;
        one kernel. On the CPU slots out of order are sorted first.
    Asynchrony: on the device's current stream; never synchronises unless ``GS_CHECK_INDEX=1``.
    """

    def __init__(self, adam: HostAdam | RowSchedule, device: Any, *, widths: Any = None) -> None:
        self._widths, groups = _columns_of(adam, widths)
        self._width = sum(self._widths)
        self._steps: OpenSteps = adam
        self._sleeps = adam.semantics == "deferred"
        self._device = _indexed(device)
        self._is_native = self._sleeps and self._device.type == "cuda"
        self._rows: RowsOnCpu | RowsOnCuda
        if self._device.type == "cpu":
            self._rows = RowsOnCpu(adam._schedule, adam._threads, self._widths, groups)
        else:
            self._rows = RowsOnCuda(self._device, self._widths, groups)

    def __repr__(self) -> str:
        return f"DeviceRows(width={self.width}, device={self._device}, {self._steps.semantics})"

    @property
    def width(self) -> int:
        """W."""
        return self._width

    @property
    def device(self) -> torch.device:
        """Where the tables are."""
        return self._device

    def wake(
        self,
        param: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        slots: torch.Tensor,
        last_step: torch.Tensor | None,
        ids: torch.Tensor | None,
        *,
        step: int,
        marks: torch.Tensor | None = None,
        counts: torch.Tensor | None = None,
    ) -> None:
        """Bring rows to the step before an open one. Sparse: rows are counted, no more.

        Args:
            param, exp_avg, exp_avg_sq: (C, W) float32 on the device, contiguous.
            slots: (R,) int32 or int64 rows of these, distinct, in any order. Out of range or
                repeated they are refused on the CPU; on CUDA they are trusted unless
                ``GS_CHECK_INDEX=1``, and so are ``ids``.
            last_step: (N,) int32 on the device: the step that each row was last updated in. That
                of rows which sleep becomes ``step - 1``. Not read where semantics is sparse.
            ids: (R,) int32 or int64 rows of ``last_step``, distinct, in the order of ``slots``.
            step: what ``begin_step`` returned.
            marks: (R,) bool on the device, in the order of ``slots``. A row whose mark is False
                keeps its values, moments and ``last_step``, as if it had not been given; its slot
                and id are checked like the others. None marks all rows. The host learns of no
                mark, so that marks may be made on the stream.
            counts: (2,) int64 on the device. The number of marked rows is added to the first entry,
                the number of those that slept to the second.

        Raises:
            TypeError, ValueError, IndexError: arguments of another dtype, shape, device or range;
                ids, slots or marks that share memory with what is written; a step not open.
                Nothing is changed.
            CudaError: the launch failed, or this build has no CUDA.
        """
        with self._steps._call_in(step) as plan:
            visit = self._visit(param, exp_avg, exp_avg_sq, slots, last_step, ids, marks, counts)
            if self._sleeps:
                self._rows.wake(plan, visit)
            else:
                visit.count_rows()

    def update(
        self,
        param: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        slots: torch.Tensor,
        last_step: torch.Tensor | None,
        ids: torch.Tensor | None,
        grads: torch.Tensor,
        *,
        step: int,
        marks: torch.Tensor | None = None,
    ) -> None:
        """Bring rows to the step before an open one and take it.

        Args:
            param, exp_avg, exp_avg_sq, slots, last_step, ids, step, marks: as for `wake`;
                ``last_step`` of the marked rows becomes ``step``.
            grads: (R, W) float32 on the device in the order of ``slots``, rows contiguous. Those of
                rows that are not marked are not read.

        Raises:
            TypeError, ValueError, IndexError, CudaError: as `wake`; a marked row updated twice in
                the step (checked as ids are).
        """
        with self._steps._call_in(step) as plan:
            visit = self._visit(param, exp_avg, exp_avg_sq, slots, last_step, ids, marks)
            if self._looks_first or grads is None:
                visit.check_step(grads, plan.step)
            self._rows.update(plan, visit, grads)

    def flush(
        self,
        param: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        slots: torch.Tensor,
        last_step: torch.Tensor | None,
        ids: torch.Tensor | None,
        marks: torch.Tensor | None = None,
    ) -> None:
        """Bring rows up to date with the last step begun, which has ended. Sparse: nothing.

        Args:
            param, exp_avg, exp_avg_sq, slots, last_step, ids, marks: as for `wake`; ``last_step``
                of the marked rows becomes the number of steps.

        Raises:
            RuntimeError: a step is open.
            TypeError, ValueError, IndexError, CudaError: as `wake`.
        """
        with self._steps._call_between("flush()") as plan:
            visit = self._visit(param, exp_avg, exp_avg_sq, slots, last_step, ids, marks)
            if self._sleeps:
                self._rows.wake(plan, visit)

    def lookahead(
        self,
        param: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        slots: torch.Tensor,
        last_step: torch.Tensor | None,
        ids: torch.Tensor | None,
        *,
        out: Sequence[torch.Tensor] | None = None,
    ) -> list[torch.Tensor]:
        """Write the values that `flush` would leave elsewhere. Tables and ``last_step`` stay.

        Args:
            param, exp_avg, exp_avg_sq, slots, last_step, ids: as for `wake`. Where rows of the
                tables are those of ``last_step``, the list of slots is also that of ids.
            out: one float32 tensor (R, ...) a parameter on the device, contiguous, of the
                parameter's width a row, with memory of its own; allocated as (R, width) when None.

        Returns:
            ``out``, in the order of ``slots``: the bits that `flush` would write. Sparse: copies.

        Raises:
            RuntimeError: a step is open.
            TypeError, ValueError, IndexError, CudaError: as `wake`; ``out`` of another dtype,
                device, shape or layout, or in memory of another argument. Nothing is written.

        Cost: 12 bytes read a value of a row that sleeps, else 4, and 4 written; one kernel.
        """
        with self._steps._lock:  # no step begins between the two
            call, now = self._steps._call_between("lookahead()"), self._steps._schedule.now()
        with call as following:
            visit = self._visit(param, exp_avg, exp_avg_sq, slots, last_step, ids, None)
            if out is None:
                shapes = [(visit.n_rows, width) for width in self._widths]
                parts = [torch.empty(n, dtype=torch.float32, device=self._device) for n in shapes]
                out = parts
            else:
                visit.check_outputs(out, self._widths)
                parts = [
                    part.detach().reshape(visit.n_rows, width)
                    for part, width in zip(out, self._widths, strict=True)
                ]
            if isinstance(self._rows, RowsOnCpu):
                self._rows.lookahead(now, visit, parts)
            else:
                self._rows.lookahead(following, visit, parts)
        return list(out)

    def _visit(
        self,
        param: torch.Tensor,
        exp_avg: torch.Tensor,
        exp_avg_sq: torch.Tensor,
        slots: torch.Tensor,
        last_step: torch.Tensor | None,
        ids: torch.Tensor | None,
        marks: torch.Tensor | None,
        counts: torch.Tensor | None = None,
    ) -> Visit:
        if not self._sleeps:
            last_step = ids = None
        elif last_step is None or ids is None:
            name = "last_step" if last_step is None else "ids"
            raise ValueError(f"{name} must be given where rows sleep, got None")
        visit = Visit(param, exp_avg, exp_avg_sq, slots, last_step, ids, marks, counts)
        if self._looks_first:
            visit.check(self._width, self._device)
        return visit

    @property
    def _looks_first(self) -> bool:
        """Whether arguments are looked at here. Else the native part does, which takes less time,
        and sees all but wrong ids and slots."""
        return not self._is_native or _core.checks_index()


def _columns_of(adam: Any, widths: Any) -> tuple[list[int], list[int]]:
    """Width and group of each tensor of a row."""
    if isinstance(adam, RowSchedule):
        if widths is None:
            raise ValueError("widths must be given with a RowSchedule, got None")
        n_groups = adam._n_groups
        given = enumerate(listed(widths, "widths"))
        own = [whole(width, f"widths[{k}]", least=0) for k, width in given]
        if len(own) != n_groups:
            raise ValueError(f"widths must be {n_groups}, one a group, got {len(own)}")
        if sum(own) >= 2**31:
            raise ValueError(f"widths must sum to less than 2**31, got {sum(own)}")
        return own, list(range(n_groups))
    if not isinstance(adam, HostAdam):
        raise TypeError(f"adam must be a HostAdam or a RowSchedule, got {shown(adam)}")
    if adam.semantics == "dense":
        raise ValueError(
            "adam must have deferred or sparse semantics, got dense, which updates rows that "
            "a step is not given on the host"
        )
    if adam._storage.skips_nonfinite:
        raise ValueError("adam must have skip_nonfinite=False, got True")
    if widths is not None:
        raise ValueError(
            f"widths must be None with a HostAdam, whose params have them, got {shown(widths)}"
        )
    params, groups = adam._params_and_groups()
    return [param.shape[1:].numel() for param in params], groups


def _indexed(device: Any) -> torch.device:
    """The device as tensors name it."""
    try:
        device = torch.device(device)
    except (TypeError, ValueError, RuntimeError):
        text = f"device must be the CPU or a CUDA device, got {shown(device)}"
        raise ValueError(text) from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device must be the CPU or a CUDA device, got {device}")
    if device.type == "cpu":
        return torch.device("cpu")
    return device if device.index is not None else torch.device("cuda", torch.cuda.current_device())
