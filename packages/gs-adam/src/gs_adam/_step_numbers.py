# SPDX-License-Identifier: Apache-2.0
"""The number of steps in states as torch keeps it, a tensor of one number for each parameter."""

from __future__ import annotations

from collections.abc import Sequence
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch

from gs_adam._tensors import write_step

Places: TypeAlias = list[np.ndarray | None]
"""The memory of each state's number; None where torch has to read and write the number."""


class StepNumbers:
    """Reads and writes them where they are.

    numpy does it in the memory of the tensors, which takes a tenth of torch's time. A state with
    another tensor than before, or a tensor with other memory than before, is looked at anew.
    """

    def __init__(self) -> None:
        # Of the states that were read or written last; all change together, also where Ctrl-C is
        # raised. An array does not keep the memory of a tensor that was given other memory.
        self._seen: tuple[list[Any], list[int], Places] = [], [], []

    def find(self, states: Sequence[dict[str, Any]]) -> Places:
        """Where the numbers of some states are now."""
        tensors = [state["step"] for state in states]
        places = [t.data_ptr() if isinstance(t, torch.Tensor) else 0 for t in tensors]
        seen, seen_places, numbers = self._seen
        if places != seen_places or not all(map(is_, tensors, seen)):
            numbers = [_in_memory(tensor) for tensor in tensors]
            self._seen = tensors, places, numbers
        return numbers

    def read(self, states: Sequence[dict[str, Any]], places: Places) -> int:
        """The number of all states.

        Args:
            places: of the states, just found.

        Raises:
            ValueError: they differ.
        """
        steps = {
            int(state["step"] if number is None else number.item())
            for state, number in zip(states, places, strict=True)
        }
        if len(steps) != 1:
            raise ValueError(f"step must be the same in every state, got {sorted(steps)}")
        return steps.pop()

    def write(self, states: Sequence[dict[str, Any]], places: Places, step: int) -> None:
        """Set the number of all states.

        Args:
            places: of the states, found since others could give a tensor other memory.
        """
        for state, number in zip(states, places, strict=True):
            if number is None:
                write_step(state, step)
            else:
                number.fill(step)


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
