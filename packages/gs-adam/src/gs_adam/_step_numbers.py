# SPDX-License-Identifier: Apache-2.0
"""The number of steps in states as torch keeps it, a tensor of one number for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from gs_adam._tensors import write_step


class StepNumbers:
    """Reads and writes them where they are.

    numpy does it in the memory of the tensors, which takes a tenth of torch's time. A state with
    another tensor than before, or a tensor with other memory than before, is looked at anew.
    """

    def __init__(self) -> None:
        # Of the states that were read or written last; all change together, also where Ctrl-C is
        # raised. An array does not keep the memory of a tensor that was given other memory.
        self._seen: tuple[list[Any], list[int], list[np.ndarray | None]] = [], [], []

    def read(self, states: Sequence[dict[str, Any]]) -> int:
        """The number of all states.

        Raises:
            ValueError: they differ.
        """
        steps = {
            int(state["step"] if number is None else number.item())
            for state, number in zip(states, self._numbers(states), strict=True)
        }
        if len(steps) != 1:
            raise ValueError(f"step must be the same in every state, got {sorted(steps)}")
        return steps.pop()

    def write(self, states: Sequence[dict[str, Any]], step: int) -> None:
        """Set the number of all states."""
        for state, number in zip(states, self._numbers(states), strict=True):
            if number is None:
                write_step(state, step)
            else:
                number.fill(step)

    def _numbers(self, states: Sequence[dict[str, Any]]) -> list[np.ndarray | None]:
        """The memory of each state's number; None where torch has to read and write it."""
        tensors = [state["step"] for state in states]
        places = [t.data_ptr() if isinstance(t, torch.Tensor) else 0 for t in tensors]
        if places != self._seen[1] or list(map(id, tensors)) != list(map(id, self._seen[0])):
            self._seen = tensors, places, [_in_memory(tensor) for tensor in tensors]
        return self._seen[2]


def _in_memory(tensor: Any) -> np.ndarray | None:
    """The same memory; None where numpy cannot write there, or torch says that it may not."""
    if (
        isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cpu"
        and tensor.dtype is torch.float32
        and not tensor.requires_grad
    ):
        return tensor.numpy()
    return None
