# SPDX-License-Identifier: Apache-2.0
"""The rows of one call of `DeviceRows`, and what they must be."""

from __future__ import annotations

import os
from typing import Any, NamedTuple

import torch


class Visit(NamedTuple):
    """Rows of three tables of slots; where rows sleep, also when each was last updated. Rows that
    are not marked are left alone; without marks none is."""

    param: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    slots: torch.Tensor
    last_step: torch.Tensor | None
    ids: torch.Tensor | None
    marks: torch.Tensor | None

    def check(self, width: int, device: torch.device) -> None:
        """Raise unless shapes, dtypes and devices fit, and on the CPU unless ids do."""
        for name, table in zip(("param", "exp_avg", "exp_avg_sq"), self[:3], strict=True):
            _check_kind(table, name, device, (torch.float32,))
            if table.shape != self.param.shape or table.shape[1:] != (width,):
                rows = "C" if table is self.param else len(self.param)
                raise ValueError(
                    f"{name} must have shape ({rows}, {width}), got {tuple(table.shape)}"
                )
            if not table.is_contiguous():
                raise ValueError(f"{name} must be contiguous, got strides {table.stride()}")
        _check_list(self.slots, "slots", device, (torch.int32, torch.int64))
        if self.last_step is not None:
            assert self.ids is not None
            _check_list(self.last_step, "last_step", device, (torch.int32,))
            _check_list(self.ids, "ids", device, (torch.int32, torch.int64))
            if len(self.ids) != len(self.slots):
                raise ValueError(f"ids must be {len(self.slots)} as slots, got {len(self.ids)}")
        if self.marks is not None:
            _check_list(self.marks, "marks", device, (torch.bool,))
            if len(self.marks) != len(self.slots):
                raise ValueError(f"marks must be {len(self.slots)} as slots, got {len(self.marks)}")
        self._check_apart()
        if device.type == "cpu" or os.environ.get("GS_CHECK_INDEX") == "1":
            _check_index(self.slots, "slots", len(self.param))
            if self.last_step is not None and self.ids is not None:
                _check_index(self.ids, "ids", len(self.last_step))

    def _check_apart(self) -> None:
        """Raise where what says which rows shares memory with what is written."""
        named = self._asdict()
        lists = {name: _span(named[name]) for name in ("slots", "ids", "marks")}
        written = {name: _span(named[name]) for name in ("param", "exp_avg", "exp_avg_sq")}
        written["last_step"] = _span(self.last_step)
        for name, (begin, end) in lists.items():
            for other, (first, last) in written.items():
                if begin < last and first < end:
                    raise ValueError(f"{name} must have memory of its own, got some of {other}")

    def marked(self) -> Visit:
        """The marked rows alone, which on a device would need their number here."""
        if self.marks is None:
            return self
        ids = None if self.ids is None else self.ids[self.marks]
        return self._replace(slots=self.slots[self.marks], ids=ids, marks=None)

    def check_step(self, grads: Any, step: int) -> None:
        """Raise unless gradients fit, and on the CPU unless each marked row's turn is `step`."""
        _check_kind(grads, "grads", self.param.device, (torch.float32,))
        expected = (len(self.slots), self.param.shape[1])
        if tuple(grads.shape) != expected:
            raise ValueError(f"grads must have shape {expected}, got {tuple(grads.shape)}")
        if grads.stride(1) != 1 and expected[1] > 1 and expected[0]:
            raise ValueError(f"grads must have contiguous rows, got strides {grads.stride()}")
        is_checked = self.param.device.type == "cpu" or os.environ.get("GS_CHECK_INDEX") == "1"
        if self.last_step is None or self.ids is None or not is_checked:
            return
        ids = self.ids if self.marks is None else self.ids[self.marks]
        late = ids[self.last_step[ids.long()] >= step]
        if len(late):
            raise ValueError(
                f"ids must be updated once a step, got row {int(late[0])} in step {step} after "
                f"its update in step {int(self.last_step[int(late[0])])}"
            )


def _check_kind(
    tensor: Any, name: str, device: torch.device, dtypes: tuple[torch.dtype, ...]
) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        raise TypeError(f"{name} must be {kinds}, got {tensor.dtype}")
    if tensor.device != device:
        raise ValueError(f"{name} must be on {device}, got {tensor.device}")


def _check_list(
    tensor: Any, name: str, device: torch.device, dtypes: tuple[torch.dtype, ...]
) -> None:
    _check_kind(tensor, name, device, dtypes)
    if tensor.ndim != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must have one dimension and be contiguous, got shape {tuple(tensor.shape)} "
            f"and strides {tensor.stride()}"
        )


def _span(tensor: torch.Tensor | None) -> tuple[int, int]:
    """Where a contiguous tensor's memory begins and ends."""
    if tensor is None or tensor.numel() == 0:
        return 0, 0
    begin = tensor.data_ptr()
    return begin, begin + tensor.numel() * tensor.element_size()


def _check_index(index: torch.Tensor, name: str, n_rows: int) -> None:
    if len(index) == 0:
        return
    if not bool((index[1:] > index[:-1]).all()):
        index = index.sort().values
    low, high = int(index[0]), int(index[-1])
    if low < 0 or high >= n_rows:
        raise IndexError(f"{name} must be in [0, {n_rows}), got {low if low < 0 else high}")
    repeated = index[1:][index[1:] == index[:-1]]
    if len(repeated):
        raise ValueError(f"{name} must be distinct, got {int(repeated[0])} twice")
