# SPDX-License-Identifier: Apache-2.0
"""What arguments must be, before anything looks inside them."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

import numpy as np

_Kind = TypeVar("_Kind")


def shown(value: Any) -> str:
    """A value as messages show it: itself where that is short, else its kind."""
    entries = value if isinstance(value, list | tuple) else [value]
    are_short = (isinstance(entry, bool | int | float | str | None) for entry in entries)
    return repr(value) if len(entries) < 5 and all(are_short) else type(value).__name__


def whole(value: Any, name: str, *, least: int = -(2**31), most: int = 2**31 - 1) -> int:
    """A whole number in ``[least, most]``.

    Raises:
        TypeError: it is none.
        ValueError: it is out of range.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {shown(value)}") from None
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    if number > most:
        raise ValueError(f"{name} must be at most {most}, got {number}")
    return number


def number(value: Any, name: str) -> float:
    """A number, also one of numpy or torch.

    Raises:
        TypeError: it is none.
    """
    try:
        if not isinstance(value, str | bytes):
            return float(value)
    except (TypeError, ValueError, OverflowError, RuntimeError):
        pass
    raise TypeError(f"{name} must be a number, got {shown(value)}")


def flag(value: Any, name: str) -> bool:
    """True or False.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, bool | np.bool_):
        return bool(value)
    raise TypeError(f"{name} must be True or False, got {shown(value)}")


def of_kind(value: Any, name: str, kind: type[_Kind]) -> _Kind:
    """The value.

    Raises:
        TypeError: it is not of that class.
    """
    if isinstance(value, kind):
        return value
    raise TypeError(f"{name} must be a {kind.__name__}, got {shown(value)}")


def listed(value: Any, name: str) -> list[Any]:
    """A list or tuple as a list.

    Raises:
        TypeError: it is something else.
    """
    if isinstance(value, list | tuple):
        return list(value)
    raise TypeError(f"{name} must be a list, got {shown(value)}")


def keyed(value: Any, name: str, *keys: str) -> dict[Any, Any]:
    """A dict that holds some keys.

    Raises:
        TypeError: it is no dict.
        ValueError: a key is missing.
    """
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be a dict, got {shown(value)}")
    for key in keys:
        if key not in value:
            raise ValueError(f"{name} must hold {key}, got {sorted(map(str, value))}")
    return value


def array(value: Any, name: str) -> Any:
    """Something that hands out its memory as numpy's and torch's arrays do.

    Raises:
        TypeError: it does not.
    """
    if hasattr(value, "__dlpack__") and not isinstance(value, type):
        return value
    raise TypeError(f"{name} must be a numpy or torch array, got {type(value).__name__}")


def series(groups: Any, name: str) -> list[dict[str, Any]]:
    """The steps so far as a schedule of the native part takes them back, one dict a group.

    Raises:
        TypeError, ValueError: they hold something else.
    """
    checked = []
    for k, group in enumerate(listed(groups, name)):
        name_k = f"{name}[{k}]"
        own = dict(keyed(group, name_k, "beta1", "beta2", "missed", "settled"))
        for key in ("beta1", "beta2", "known_since"):
            if key in own:
                own[key] = number(own[key], f"{key} of {name_k}")
        for key, dtype in (("missed", np.float64), ("settled", np.float32)):
            if not isinstance(own[key], np.ndarray) or own[key].dtype.kind != "f":
                kind = getattr(own[key], "dtype", type(own[key]).__name__)
                raise TypeError(f"{key} of {name_k} must be an array of floats, got {kind}")
            own[key] = own[key].astype(dtype, copy=False)
        checked.append(own)
    return checked
