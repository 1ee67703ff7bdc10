# SPDX-License-Identifier: Apache-2.0
"""What the tensors of a host optimizer must be, and where they are."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from gs_adam import _core, _memory
from gs_adam._arguments import array, shown

MOMENTS = ("exp_avg", "exp_avg_sq")
STATE_KEYS = {"step", *MOMENTS}

Closure = Callable[[], Any] | None
"""What torch's optimizers call to make gradients."""

_HANDS_OVER = hasattr(torch.Tensor, "__dlpack_c_exchange_api__")
"""torch gives its tensors to native code without a call of Python."""


def evaluated(ids: Any, grads: Any, closure: Closure, name: str) -> tuple[Any, Any]:
    """Ids without the closure that may stand there, and what it returned.

    Raises:
        TypeError: gradients are given as well, or the closure cannot be called.
    """
    if closure is None:
        if not callable(ids):
            return ids, None
        ids, closure = None, ids
    if grads is not None:
        raise TypeError(f"{name} must be ids or a mask beside grads, got a closure")
    if not callable(closure):
        raise TypeError(f"closure must be a callable, got {shown(closure)}")
    with torch.enable_grad():
        return ids, closure()


def groups_of(params: Any) -> Any:
    """An optimizer's parameters or groups, as torch.optim.Optimizer takes them.

    Raises:
        TypeError: they are neither.
        ValueError: a group has no parameters.
    """
    if isinstance(params, torch.Tensor):
        raise TypeError("params must be a list of tensors or groups, got a tensor")
    try:
        listed = list(params)
    except TypeError:
        text = f"params must be a list of tensors or groups, got {shown(params)}"
        raise TypeError(text) from None
    for k, group in enumerate(listed):
        if isinstance(group, dict) and "params" not in group:
            raise ValueError(f"params[{k}] must hold params as a group, got {sorted(group)}")
        if not isinstance(group, dict | tuple | torch.Tensor):
            raise TypeError(f"params[{k}] must be a tensor or a group, got {shown(group)}")
    # torch writes an optimizer's options into the groups that it is given.
    return [dict(group) if isinstance(group, dict) else group for group in listed]


def check_param(param: torch.Tensor, name: str) -> None:
    """Raise unless ``param`` is float32 on the CPU with contiguous rows."""
    if not isinstance(param, torch.Tensor):
        raise TypeError(f"{name} must be a torch tensor, got {shown(param)}")
    if param.dtype != torch.float32:
        raise TypeError(f"{name} must be float32, got {param.dtype}")
    if param.device.type != "cpu":
        raise ValueError(
            f"{name} must be on the CPU, got {param.device}; DeviceAdam updates CUDA tensors"
        )
    if param.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {param.layout}")
    if param.is_neg():  # its memory holds the values' negatives
        raise ValueError(f"{name} must hold its values, got a view of their negatives")
    if param.ndim == 0:
        raise ValueError(f"{name} must have rows, got a scalar")
    if len(param) and not param[0].is_contiguous():
        raise ValueError(f"{name} must have contiguous rows, got strides {param.stride()}")
    if len(param) > 1 and abs(param.stride(0)) < param[0].numel():
        raise ValueError(f"{name} must have rows that do not overlap, got {param.stride()}")


def check_same_rows(tensors: Sequence[torch.Tensor], name: str) -> None:
    """Raise unless all have the first one's number of rows."""
    n_rows = tensors[0].shape[0] if tensors else 0
    for k, tensor in enumerate(tensors):
        if tensor.shape[0] != n_rows:
            raise ValueError(
                f"{name}[{k}] must have {n_rows} rows as {name}[0], "
                f"got shape {tuple(tensor.shape)}; other lengths need their own optimizer"
            )


def check_state(param: torch.Tensor, state: dict[str, Any], name: str) -> None:
    """Raise unless the moments in ``state`` are float32 CPU tensors of ``param``'s shape."""
    for key in MOMENTS:
        value = state[key]
        if not isinstance(value, torch.Tensor):
            raise TypeError(f"{key} of {name} must be a tensor, got {type(value).__name__}")
        if value.shape != param.shape:
            remedy = (
                "; after densification call append_rows, keep_rows or permute_rows, or rebind"
                if len(value) != len(param)
                else ""
            )
            raise ValueError(
                f"{key} of {name} must have shape {tuple(param.shape)} as its parameter, "
                f"got {tuple(value.shape)}{remedy}"
            )
        check_param(value, f"{key} of {name}")


def check_keys(state: dict[str, Any], name: str) -> None:
    """Raise unless ``state`` is all that Adam keeps of a parameter."""
    if not state.keys() >= STATE_KEYS:
        missing = [key for key in ("step", *MOMENTS) if key not in state]
        raise ValueError(
            f"state of {name} must hold step, {' and '.join(MOMENTS)}, or nothing before its first "
            f"step, got none of {', '.join(missing)}"
        )


def check_apart(
    params: Sequence[torch.Tensor], states: Sequence[dict[str, Any]], whose: str = ""
) -> None:
    """Raise where two of the parameters and their moments, as far as there are some, share an
    element. They may be columns of the same rows.

    Args:
        params, states: the tensors.
        whose: what errors say before a moment's name.
    """
    named = [(f"params[{k}]", param) for k, param in enumerate(params)]
    named += [
        (f"{whose}{key} of params[{k}]", state[key])
        for k, state in enumerate(states)
        for key in MOMENTS
        if key in state
    ]
    written = [(name, tensor) for name, tensor in named if tensor.numel()]
    for (name_a, a), (name_b, b) in itertools.combinations(written, 2):
        if _is_shared(a, b):
            raise ValueError(f"{name_b} must have memory of its own, got some of {name_a}")


def _is_shared(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.data_ptr() > b.data_ptr():
        a, b = b, a
    apart, size = b.data_ptr() - a.data_ptr(), a.element_size()
    stride, widths = a.stride(0), [len(tensor[0].reshape(-1)) for tensor in (a, b)]
    if apart >= size * ((len(a) - 1) * stride + widths[0]):
        return False  # a ends where b begins, or before
    if len(a) == 1 or stride != b.stride(0) or apart % size:
        return True
    column = apart // size % stride
    return column < widths[0] or column + widths[1] > stride


def as_step(step: float) -> torch.Tensor:
    """A step number as torch.optim.Adam keeps it, whatever torch's defaults and modes are."""
    with torch.inference_mode(False):
        return torch.tensor(float(step), dtype=torch.float32, device="cpu")


def write_step(state: dict[str, Any], step: int) -> None:
    """Keep the number of the last step in a parameter's state."""
    kept = state.get("step")
    if isinstance(kept, torch.Tensor) and not kept.is_inference():
        kept.fill_(step)
    else:
        state["step"] = as_step(step)


def note_written(tensors: Sequence[torch.Tensor]) -> None:
    """Tell autograd that tensors have changed, which those of inference mode do not note."""
    for tensor in tensors:
        if not tensor.is_inference():
            torch.autograd.graph.increment_version(tensor)


def place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where a tensor's rows lie; equal places need no new binding."""
    return tensor.data_ptr(), tensor.shape, tensor.stride()


def on_cpu(rows: Any, name: str) -> torch.Tensor:
    """Ids or a mask, a list of them too, as a tensor.

    Raises:
        TypeError: neither.
    """
    try:
        return torch.as_tensor(rows, device="cpu")
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} must be ids or a mask, got {shown(rows)}") from None


def as_ids(rows: Any, n_rows: int, name: str = "rows") -> Any:
    """Row ids as the native part takes them: None, or (R,) int32 or int64; int32 of a CPU mask.

    Args:
        rows: None, (R,) ids, or an (n_rows,) bool mask; numpy or torch.
        n_rows: N.
        name: of the argument, for the message.

    Raises:
        TypeError: no array.
        ValueError: a mask of another length.
    """
    if rows is None:
        return None
    if isinstance(array(rows, name), torch.Tensor):
        _check_dense(rows, name)
    is_mask = getattr(rows, "dtype", None) in (torch.bool, bool)
    if not is_mask:
        return as_native(rows)
    if tuple(rows.shape) != (n_rows,):
        raise ValueError(f"{name} must be a mask of ({n_rows},), got shape {tuple(rows.shape)}")
    if isinstance(rows, torch.Tensor):
        if rows.device.type != "cpu":
            return rows.nonzero().flatten()
        rows = rows.detach().numpy()
    mask = np.ascontiguousarray(rows).view(np.uint8)
    # A table of ids, made anew each time, costs more in small pages than its contents do.
    ids = _memory.empty((_core.count_rows(mask),), torch.int32)
    _core.write_rows(mask, ids)
    return ids.numpy()


def first_unsorted(ids: torch.Tensor) -> str:
    """Where ids do not rise, for messages."""
    at = int((ids[1:] <= ids[:-1]).nonzero()[0, 0])
    return f"{int(ids[at])} and {int(ids[at + 1])} at {at} and {at + 1}"


def as_native(array: Any) -> Any:
    """The same memory as the native part finds it soonest: where torch does not hand it over, numpy
    exports ten times faster."""
    if _HANDS_OVER or not isinstance(array, torch.Tensor):
        return array
    if array.device.type != "cpu" or array.dtype not in (torch.float32, torch.int32, torch.int64):
        return array.detach()
    return array.detach().numpy() if array.layout == torch.strided else array.detach()


def all_native(arrays: Any, name: str = "grads") -> Any:
    """`as_native` of a list's entries; anything else is left to be refused.

    Raises:
        TypeError: a sparse tensor, or one without memory.
        ValueError: ``out`` is a negative view, which is written elsewhere.
    """
    if not isinstance(arrays, list | tuple):
        return arrays
    return [_checked_native(array, f"{name}[{k}]") for k, array in enumerate(arrays)]


def pending_parts(pending: Any, step: int | None) -> tuple[Any, Any]:
    """Ids and gradients of what `HostAdam.lookahead` takes as ``pending``.

    Raises:
        TypeError: it is no pair.
        ValueError: it needs a step.
    """
    if pending is None:
        return None, None
    if step is None:
        raise ValueError("step must be given with pending gradients, got None")
    if not isinstance(pending, tuple | list) or len(pending) != 2:
        raise TypeError(f"pending must be (ids, grads), got {type(pending).__name__}")
    ids, grads = pending
    if grads is None:
        raise TypeError("pending must be (ids, grads), got None as grads")
    return ids, grads


def _checked_native(array: Any, name: str) -> Any:
    if isinstance(array, torch.Tensor):
        _check_dense(array, name)
        if array.is_neg():  # its memory holds the values' negatives
            if name.startswith("out"):
                raise ValueError(f"{name} must hold its values, got a view of their negatives")
            array = array.resolve_neg()
    return as_native(array)


def _check_dense(array: torch.Tensor, name: str) -> None:
    if array.layout != torch.strided:
        raise TypeError(f"{name} must be a dense tensor, got layout {array.layout}")
    if array.is_meta:
        raise TypeError(f"{name} must have memory, got a meta tensor")
