# SPDX-License-Identifier: Apache-2.0
"""Good calls of public functions: what a table of `Entry` says of each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

_GUARD = 0 if "libasan" in os.environ.get("LD_PRELOAD", "") else 256
"""Bytes on both sides of an array; none where ASan looks at both sides itself."""
_PATTERN = 0xA5


class Room:
    """Makes a case's arguments: arrays with guard bytes around them, in numpy or in torch.

    Attributes:
        rng: decides about everything.
        is_torch: whether arrays are tensors.
    """

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.is_torch = bool(self.rng.random() < 0.3)
        self._guarded: list[np.ndarray] = []

    def own(self, values: Any, dtype: Any = None) -> Any:
        """A copy of the values, as an array."""
        array = self.numpy(values, dtype)
        if not self.is_torch or array.dtype.name == "uint32":
            return array if not self.is_torch else torch.from_numpy(array.view(np.int32))
        return torch.from_numpy(array)

    def numpy(self, values: Any, dtype: Any = None) -> np.ndarray:
        """A copy of the values, as a numpy array."""
        values = np.ascontiguousarray(values, dtype)
        memory = np.full(values.nbytes + 2 * _GUARD, _PATTERN, np.uint8)
        self._guarded.append(memory)
        inner = memory[_GUARD : _GUARD + values.nbytes]
        array = inner.view(values.dtype).reshape(values.shape)
        array[...] = values
        return array

    def tensor(self, values: Any, dtype: Any = None) -> torch.Tensor:
        """A copy of the values, as a tensor."""
        return torch.from_numpy(self.numpy(values, dtype))

    def is_intact(self) -> bool:
        """Whether nothing was written beside an array."""
        return all(
            (memory[:_GUARD] == _PATTERN).all()
            and (memory[len(memory) - _GUARD :] == _PATTERN).all()
            for memory in self._guarded
        )

    # ------------------------------------------------------------------ numbers

    def below(self, n: int) -> int:
        return int(self.rng.integers(n))

    def between(self, low: int, high: int) -> int:
        """From ``low`` to ``high``, both included."""
        return int(self.rng.integers(low, high + 1))

    def chance(self, probability: float = 0.5) -> bool:
        return bool(self.rng.random() < probability)

    def pick(self, *values: Any) -> Any:
        return values[self.below(len(values))]

    def normal(self, *shape: int) -> Any:
        return self.own(self.rng.standard_normal(shape), np.float32)

    def ids(self, count: int, n_rows: int) -> Any:
        """Sorted and unique."""
        chosen = np.sort(self.rng.permutation(n_rows)[:count])
        return self.own(chosen, self.pick(np.int32, np.int64))


@dataclass
class Call:
    """A good call.

    Attributes:
        call: what is called.
        args: its arguments by name, each of which may be spoiled.
        writes: names of arguments that it may write to.
        fixed: names of arguments that are not spoiled.
        limits: the largest number worth trying of some arguments: beyond it they ask for hours.
        show: what of the result is compared; all of it when None.
        expect: the plain definition: what `show` gives of the arguments, also spoiled ones that
            were accepted. It may raise: then there is nothing to compare.
        state: what a refused call must leave as it is.
        raises: exceptions that are documented beside the usual ones.
    """

    call: Callable[..., Any]
    args: dict[str, Any]
    writes: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    limits: Mapping[str, float] = field(default_factory=dict)
    show: Callable[[Any], Any] | None = None
    expect: Callable[..., Any] | None = None
    state: Callable[[], Any] | None = None
    raises: tuple[type[Exception], ...] = ()

    def run(self, args: Mapping[str, Any] | None = None) -> Any:
        """What it returned, and what it wrote."""
        args = self.args if args is None else args
        result = self.call(**args)
        shown = result if self.show is None else self.show(result)
        return shown, {name: args[name] for name in self.writes}


@dataclass(frozen=True)
class Entry:
    """How a public function is called.

    Attributes:
        name: ``package.function`` or ``package.Class.method``; of a constructor
            ``package.Class``.
        make: a good call; the same for rooms of the same seed.
    """

    name: str
    make: Callable[[Room], Call]
