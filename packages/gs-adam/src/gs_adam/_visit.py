# SPDX-License-Identifier: Apache-2.0
"""The rows of one call of `DeviceRows`, and what they must be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gs_adam import _core

_VALUES = (torch.float32,)
_IDS = (torch.int32, torch.int64)
_STEPS = (torch.int32,)
_MARKS = (torch.bool,)
_COUNTS = (torch.int64,)


class Visit(NamedTuple):
    """Rows of three tables of slots; where rows sleep, also when each was last updated. Rows that
    are not marked are left alone; without marks none is. Counts, if any, are added to."""

    param: torch.Tensor
    exp_avg: torch.Tensor
    exp_avg_sq: torch.Tensor
    slots: torch.Tensor
    last_step: torch.Tensor | None
    ids: torch.Tensor | None
    marks: torch.Tensor | None
    counts: torch.Tensor | None = None

    @property
    def n_rows(self) -> int:
        """Rows given, marked or not."""
        return self.slots.shape[0]

    def check(self, width: int, device: torch.device) -> None:
        """Raise unless shapes, dtypes and devices fit, and on the CPU unless ids do."""
        param, exp_avg, exp_avg_sq, slots, last_step, ids, marks, counts = self
        shape = None
        for name, table in (("param", param), ("exp_avg", exp_avg), ("exp_avg_sq", exp_avg_sq)):
            if not _is_kind(table, device, _VALUES):
                raise _wrong_kind(table, name, device, _VALUES)
            if table.shape != shape:
                if shape is not None or table.shape[1:] != (width,):
                    rows = "C" if shape is None else shape[0]
                    raise ValueError(
                        f"{name} must have shape ({rows}, {width}), got {tuple(table.shape)}"
                    )
                shape = table.shape
            if not table.is_contiguous():
                raise ValueError(f"{name} must be contiguous, got strides {table.stride()}")
        _check_list(slots, "slots", device, _IDS)
        n_rows = slots.shape[0]
        if last_step is not None:
            assert ids is not None
            _check_list(last_step, "last_step", device, _STEPS)
            if ids is not slots:
                _check_list(ids, "ids", device, _IDS)
                if ids.shape[0] != n_rows:
                    raise ValueError(f"ids must be {n_rows} as slots, got {ids.shape[0]}")
        if marks is not None:
            _check_list(marks, "marks", device, _MARKS)
            if marks.shape[0] != n_rows:
                raise ValueError(f"marks must be {n_rows} as slots, got {marks.shape[0]}")
        if counts is not None:
            _check_list(counts, "counts", device, _COUNTS)
            if counts.shape[0] != 2:
                raise ValueError(f"counts must have two entries, got {counts.shape[0]}")
        self._check_apart()
        if device.type == "cpu" or _core.checks_index():
            _check_index(slots, "slots", param.shape[0])
            if last_step is not None and ids is not None:
                _check_index(ids, "ids", last_step.shape[0])

    def _check_apart(self) -> None:
        """Raise where what says which rows shares memory with what is written."""
        written = []
        for j in _WRITTEN:
            part = self[j]
            if part is not None and (n_bytes := part.nbytes):
                first = part.data_ptr()
                written.append((first, first + n_bytes, j))
        for k in _LISTS:
            part = self[k]
            if part is None or (part is self.slots and k != _SLOTS) or not (n_bytes := part.nbytes):
                continue
            begin = part.data_ptr()
            end = begin + n_bytes
            for first, last, j in written:
                if begin < last and first < end:
                    names = self._fields
                    raise ValueError(
                        f"{names[k]} must have memory of its own, got some of {names[j]}"
                    )

    def count_rows(self, n_slept: int = 0) -> None:
        """Add the marked rows, and those of them that slept, to the counts, if there are some.

        Args:
            n_slept: 0 on a device, whose kernel counts wherever rows may sleep.
        """
        if self.counts is None:
            return
        n_rows = self.n_rows if self.marks is None else self.marks.sum()
        if self.counts.device.type == "cpu":
            # By numpy, as torch refuses to write to tensors of inference mode outside of it.
            self.counts.numpy()[:] += (int(n_rows), n_slept)
        else:
            self.counts[0].add_(n_rows)

    def marked(self) -> Visit:
        """The marked rows alone, which on a device would need their number here."""
        if self.marks is None:
            return self
        ids = None if self.ids is None else self.ids[self.marks]
        return self._replace(slots=self.slots[self.marks], ids=ids, marks=None)

    def check_outputs(self, out: Any, widths: Sequence[int]) -> None:
        """Raise unless values can be written there, one tensor a parameter."""
        if not isinstance(out, list | tuple):
            raise TypeError(f"out must be a list of tensors, got {type(out).__name__}")
        if len(out) != len(widths):
            raise ValueError(f"out must be {len(widths)} tensors, one a parameter, got {len(out)}")
        used = [(part, name) for part, name in zip(self, self._fields) if part is not None]
        for k, (part, width) in enumerate(zip(out, widths, strict=True)):
            name = f"out[{k}]"
            if not _is_kind(part, self.param.device, _VALUES):
                raise _wrong_kind(part, name, self.param.device, _VALUES)
            if part.shape[:1] != (self.n_rows,) or part.shape[1:].numel() != width:
                raise ValueError(
                    f"{name} must have {self.n_rows} rows of {width} values, got shape "
                    f"{tuple(part.shape)}"
                )
            if not part.is_contiguous():
                raise ValueError(f"{name} must be contiguous, got strides {part.stride()}")
            for other, its_name in used:
                if _share(part, other):
                    raise ValueError(f"{name} must have memory of its own, got some of {its_name}")
            used.append((part, name))

    def check_step(self, grads: Any, step: int) -> None:
        """Raise unless gradients fit, and on the CPU unless each marked row's turn is `step`."""
        if not _is_kind(grads, self.param.device, _VALUES):
            raise _wrong_kind(grads, "grads", self.param.device, _VALUES)
        expected = (self.slots.shape[0], self.param.shape[1])
        if grads.shape != expected:
            raise ValueError(f"grads must have shape {expected}, got {tuple(grads.shape)}")
        if grads.stride(1) != 1 and expected[1] > 1 and expected[0]:
            raise ValueError(f"grads must have contiguous rows, got strides {grads.stride()}")
        if self.last_step is None or self.ids is None:
            return
        if self.param.device.type != "cpu" and not _core.checks_index():
            return
        ids = self.ids if self.marks is None else self.ids[self.marks]
        late = ids[self.last_step[ids.long()] >= step]
        if late.shape[0]:
            raise ValueError(
                f"ids must be updated once a step, got row {int(late[0])} in step {step} after "
                f"its update in step {int(self.last_step[int(late[0])])}"
            )


def _is_kind(tensor: Any, device: torch.device, dtypes: tuple[torch.dtype, ...]) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.dtype in dtypes and tensor.device == device


def _wrong_kind(
    tensor: Any, name: str, device: torch.device, dtypes: tuple[torch.dtype, ...]
) -> TypeError | ValueError:
    if not isinstance(tensor, torch.Tensor):
        return TypeError(f"{name} must be a torch tensor, got {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
        return TypeError(f"{name} must be {kinds}, got {tensor.dtype}")
    return ValueError(f"{name} must be on {device}, got {tensor.device}")


def _check_list(
    tensor: Any, name: str, device: torch.device, dtypes: tuple[torch.dtype, ...]
) -> None:
    if not _is_kind(tensor, device, dtypes):
        raise _wrong_kind(tensor, name, device, dtypes)
    if tensor.ndim != 1 or not tensor.is_contiguous():
        raise ValueError(
            f"{name} must have one dimension and be contiguous, got shape {tuple(tensor.shape)} "
            f"and strides {tensor.stride()}"
        )


def _share(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two contiguous tensors have bytes in common."""
    if not a.nbytes or not b.nbytes:
        return False
    first, second = a.data_ptr(), b.data_ptr()
    return first < second + b.nbytes and second < first + a.nbytes


def _check_index(index: torch.Tensor, name: str, n_rows: int) -> None:
    if index.shape[0] == 0:
        return
    if not bool((index[1:] > index[:-1]).all()):
        index = index.sort().values
    low, high = int(index[0]), int(index[-1])
    if low < 0 or high >= n_rows:
        raise IndexError(f"{name} must be in [0, {n_rows}), got {low if low < 0 else high}")
    repeated = index[1:][index[1:] == index[:-1]]
    if repeated.shape[0]:
        raise ValueError(f"{name} must be distinct, got {int(repeated[0])} twice")


_SLOTS = Visit._fields.index("slots")
_LISTS = (_SLOTS, *map(Visit._fields.index, ("ids", "marks")))
_WRITTEN = tuple(
    map(Visit._fields.index, ("param", "exp_avg", "exp_avg_sq", "last_step", "counts"))
)
