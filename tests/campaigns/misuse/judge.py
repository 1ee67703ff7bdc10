# SPDX-License-Identifier: Apache-2.0
"""What of a call is right: its exceptions, its results, and what it left alone."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

_KINDS = (ValueError, TypeError, IndexError, MemoryError, OSError, RuntimeError)
_UNCLEAR = re.compile(
    r"incompatible (function|constructor) arguments|has no attribute|object is not subscriptable|"
    r"object is not callable|Internal error|INTERNAL ASSERT|please report a bug"
)


def fault_of(error: BaseException, extra: tuple[type[Exception], ...] = ()) -> str:
    """What is wrong with an exception; empty where it is one that callers are promised."""
    kind, text = type(error).__name__, str(error)
    if isinstance(error, extra):
        text = str(error.args[0]) if error.args else ""
    elif not isinstance(error, _KINDS) or isinstance(error, RecursionError):
        return f"raised {kind}: {_first_line(text)}"
    if not text:
        return "" if isinstance(error, MemoryError) else f"raised {kind} without a word"
    # What was given may itself be of several lines.
    if "\n" in text.split(", got ")[0].strip():
        return f"raised {kind} of several lines: {_first_line(text)}"
    if _UNCLEAR.search(text):
        return f"raised {kind} that does not say what is wrong: {text}"
    return ""


def _first_line(text: str) -> str:
    return text.strip().split("\n")[0][:200]


def frozen(value: Any) -> Any:
    """A copy that can be compared later: bytes of arrays, contents of containers."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            return repr(value.layout)
        value = value.detach().resolve_neg().resolve_conj().numpy()
    if isinstance(value, np.ndarray):
        if value.dtype.hasobject:
            return [id(item) for item in value.flat]
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, Mapping):
        return [(repr(key), frozen(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in dataclasses.fields(value)]
        return [frozen(getattr(value, name, None)) for name in names]
    if isinstance(value, float):
        return repr(value)  # NaN is itself
    return value if isinstance(value, int | str | bytes) else id(value)


def shown(value: Any) -> Any:
    """Values alone, whatever kind of array or container holds them."""
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided or value.device.type == "meta":
            return repr(value.layout)
        value = value.detach().resolve_neg().numpy()
    if isinstance(value, np.ndarray):
        value = value.view(np.int32) if value.dtype == np.uint32 else value
        return np.array(value)
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {str(key): shown(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [shown(item) for item in value]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [shown(getattr(value, f.name)) for f in dataclasses.fields(value)]
    return value


def is_same(a: Any, b: Any) -> bool:
    """Whether two values of `shown` are equal; NaN equals NaN."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            return False
        floating = a.dtype.kind == b.dtype.kind == "f"
        return bool(np.array_equal(a, b, equal_nan=floating))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(is_same(a[k], b[k]) for k in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (a != a and b != b)
    if isinstance(a, int | float | str | bool | type(None)):
        return bool(a == b)
    return type(a) is type(b)
