# SPDX-License-Identifier: Apache-2.0
"""What torch's tensors take, followed operation by operation."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary


class LiveMemory(TorchDispatchMode):
    """The memory of tensors that are made while this is entered.

    Attributes:
        now, most: bytes of it now, and the most since this was set.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.most = 0
        self._known = WeakIdKeyDictionary()

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        for memory in new_memory(result, (args, kwargs)):
            if memory not in self._known:
                self._known[memory] = True
                self.now += memory.nbytes()
                weakref.finalize(memory, self._give_back, memory.nbytes())
        self.most = max(self.most, self.now)
        return result

    def _give_back(self, n_bytes: int) -> None:
        self.now -= n_bytes


class MemoryRunsOut(TorchDispatchMode):
    """While this is entered, an operation that takes much memory fails.

    Args:
        after: so many that succeed.
        n_bytes: what is much.
    """

    def __init__(self, *, after: int, n_bytes: int) -> None:
        super().__init__()
        self._left, self._much = after, n_bytes

    def __torch_dispatch__(
        self, operation: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = operation(*args, **(kwargs or {}))
        if sum(memory.nbytes() for memory in new_memory(result, (args, kwargs))) >= self._much:
            self._left -= 1
            if self._left < 0:
                raise torch.OutOfMemoryError(f"no memory for the result of {operation}")
        return result


def new_memory(result: object, arguments: object) -> list[UntypedStorage]:
    """The memory of an operation's results that is not its arguments'."""
    given = {memory._cdata for memory in _memory_of(arguments)}
    return [memory for memory in _memory_of(result) if memory._cdata not in given]


def _memory_of(tree: object) -> list[UntypedStorage]:
    return [leaf.untyped_storage() for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
