# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

_Value = TypeVar("_Value")

# Arrays are numpy's, torch's, or anyone's that DLPack passes on.
_IdsArray: TypeAlias = NDArray[np.int32] | NDArray[np.int64] | Tensor  # (R,)
_RowsArray: TypeAlias = NDArray[np.float32] | Tensor  # (rows, ...), gaps between rows allowed
_RowsArrays: TypeAlias = list[NDArray[np.float32]] | list[Tensor]  # no tuple
_MarksArray: TypeAlias = NDArray[np.int32] | Tensor  # (N,) the step of each row's last update
_MaskArray: TypeAlias = NDArray[np.uint8] | Tensor  # (N,)
_BytesArray: TypeAlias = NDArray[np.uint8] | Tensor  # (bytes,)
_CountsArray: TypeAlias = NDArray[np.int64] | Tensor  # (2,) rows, and those that slept
_WordsArray: TypeAlias = NDArray[np.int64] | Tensor  # (ceil(N / 32),) to work in

# A task begins at once, when the uint32 at an address is at least a value, or when a call says so.
_Ready: TypeAlias = tuple[int, int] | Callable[[], object] | None

__version__: str

class CudaError(RuntimeError): ...

def build_info() -> dict[str, Any]: ...

class Call(Generic[_Value]):
    def __enter__(self) -> _Value: ...
    def __exit__(self, kind: object, error: object, traceback: object) -> None: ...

class Calls:
    def __init__(self) -> None: ...
    def call(self, value: _Value) -> Call[_Value]: ...
    def wait(self) -> bool: ...
    @property
    def count(self) -> int: ...
    @property
    def n_waiting(self) -> int: ...

class StepPlan:
    @property
    def step(self) -> int: ...
    @property
    def recent_bytes(self) -> int: ...
    def past_bytes(self, first: int) -> int: ...
    def shares_past(self, other: StepPlan) -> bool: ...
    def shares_sleeps(self, other: StepPlan) -> bool: ...

class Schedule:
    def __init__(self, n_groups: int, semantics: str, bias_correction: bool) -> None: ...
    @property
    def known_since(self) -> int: ...
    @property
    def step(self) -> int: ...
    @property
    def nonfinite_rows(self) -> int: ...
    def propose(
        self, options: Sequence[tuple[float, float, float, float, float]], all_awake: bool = False
    ) -> StepPlan: ...
    def accept(self, plan: StepPlan) -> None: ...
    def now(self) -> StepPlan: ...
    def following(self) -> StepPlan: ...
    def restart(self, step: int) -> None: ...
    def restore(self, step: int, groups: Sequence[dict[str, Any]]) -> None: ...
    def state(self, group: int) -> dict[str, Any] | None: ...

def count_rows(mask: _MaskArray) -> int: ...
def write_rows(mask: _MaskArray, out: _IdsArray) -> None: ...

class Rows:
    def __init__(
        self,
        params: _RowsArrays,
        exp_avg: _RowsArrays,
        exp_avg_sq: _RowsArrays,
        groups: list[int],
        last_step: _MarksArray | None,
        schedule: Schedule,
        skip_non_finite: bool,
        threads: int,
    ) -> None: ...
    @property
    def n_rows(self) -> int: ...
    @property
    def n_threads(self) -> int: ...
    def update(
        self, plan: StepPlan, rows: _IdsArray | None, grads: Sequence[_RowsArray] | None, floor: int
    ) -> None: ...
    def update_rest(self, plan: StepPlan) -> None: ...
    def step(
        self,
        schedule: Schedule,
        plan: StepPlan,
        rows: _IdsArray | None,
        grads: Sequence[_RowsArray] | None,
        *,
        rest: bool,
    ) -> None: ...
    def flush(self, plan: StepPlan, rows: _IdsArray | None) -> None: ...
    def wake(self, plan: StepPlan, rows: _IdsArray | None) -> None: ...
    def lookahead(
        self,
        plan: StepPlan,
        steps: bool,
        rows: _IdsArray | None,
        pending: _IdsArray | None,
        grads: Sequence[_RowsArray] | None,
        out: Sequence[_RowsArray],
        floor: int,
    ) -> None: ...

class Worker:
    def __init__(self) -> None: ...
    def submit_update(
        self,
        rows: Rows,
        plan: StepPlan,
        ids: _IdsArray | None,
        grads: Sequence[_RowsArray] | None,
        floor: int,
        ready: _Ready,
        priority: int,
        checked: bool,
        held: object,
    ) -> int: ...
    def submit_flush(
        self,
        rows: Rows,
        plan: StepPlan,
        ids: _IdsArray | None,
        ready: _Ready,
        priority: int,
        held: object,
    ) -> int: ...
    def submit_lookahead(
        self,
        rows: Rows,
        plan: StepPlan,
        steps: bool,
        ids: _IdsArray | None,
        pending: _IdsArray | None,
        grads: Sequence[_RowsArray] | None,
        out: Sequence[_RowsArray],
        floor: int,
        ready: _Ready,
        priority: int,
        checked: bool,
        apart: bool,
        held: object,
    ) -> int: ...
    def wait(self, ticket: int) -> None: ...
    def wait_all(self) -> None: ...
    def wait_step(self, step: int) -> None: ...
    def wait_rows(self, rows: _IdsArray | None, n_rows: int) -> None: ...
    def close(self, drain: bool) -> None: ...
    def abandon(self) -> None: ...
    def check(self) -> None: ...
    def check_untold(self) -> None: ...
    def record(self, enabled: bool) -> None: ...
    def take_spans(self) -> list[tuple[int, bool, int, float, float]]: ...
    @property
    def is_idle(self) -> bool: ...
    @property
    def is_closed(self) -> bool: ...

def device_step(
    schedule: Schedule,
    plan: StepPlan,
    params: _RowsArrays,
    exp_avg: _RowsArrays,
    exp_avg_sq: _RowsArrays,
    groups: list[int],
    ids: _IdsArray | None,
    grads: Sequence[_RowsArray] | None,
    penalties: list[tuple[str, float]],
    words: _WordsArray | None,
    device: int,
    stream: int,
) -> None: ...
def checks_index() -> bool: ...
def upload_sleeps(
    plan: StepPlan,
    first: int,
    staged: _BytesArray,
    recent: _BytesArray,
    past: _BytesArray,
    device: int,
    stream: int,
) -> None: ...
def device_slots(
    plan: StepPlan,
    widths: list[int],
    groups: list[int],
    param: _RowsArray,
    exp_avg: _RowsArray,
    exp_avg_sq: _RowsArray,
    slots: _IdsArray,
    last_step: _MarksArray | None,
    ids: _IdsArray | None,
    marks: NDArray[np.bool_] | Tensor | None,
    grads: _RowsArray | None,
    counts: _CountsArray | None,
    recent: _BytesArray | None,
    past: _BytesArray | None,
    device: int,
    stream: int,
) -> None: ...
def device_lookahead(
    plan: StepPlan,
    widths: list[int],
    groups: list[int],
    param: _RowsArray,
    exp_avg: _RowsArray,
    exp_avg_sq: _RowsArray,
    slots: _IdsArray,
    last_step: _MarksArray | None,
    ids: _IdsArray | None,
    recent: _BytesArray | None,
    past: _BytesArray | None,
    out: _RowsArrays,
    device: int,
    stream: int,
) -> None: ...
def prefer_huge_pages(address: int, bytes: int) -> None: ...
