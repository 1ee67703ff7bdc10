# SPDX-License-Identifier: Apache-2.0
"""The world of a single rank, which has nobody to talk to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy.typing as npt
import torch
from torch import Tensor

from gs_train.world.protocol import Ints, Pending, check_rows, integers

Result = TypeVar("Result")


@dataclass(frozen=True)
class Done(Generic[Result]):
    """A collective that was over when it was called."""

    result: Result

    def wait(self) -> Result:
        return self.result


class Alone:
    """A :class:`~gs_train.world.protocol.World` of one rank: no process and no group.

    Args:
        device: of the rank.
    """

    rank = 0
    size = 1

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def agree(self, name: str, value: Any) -> None:
        pass

    def gather(self, values: npt.ArrayLike) -> Ints:
        return integers(values)[None]

    def sum(self, tensor: Tensor) -> Tensor:
        return tensor

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Pending[Tensor]:
        check_rows(1, recv, send, recv_rows, send_rows)
        return Done(recv.copy_(send))

    def barrier(self) -> None:
        pass

    def broadcast(self, value: Any, root: int = 0) -> Any:
        return json.loads(json.dumps(value))

    def broadcast_tensor(self, tensor: Tensor, root: int = 0) -> Tensor:
        return tensor
