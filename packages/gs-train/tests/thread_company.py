# SPDX-License-Identifier: Apache-2.0
"""Threads of one process as ranks that also gather numbers, see `threads_as_ranks`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from threads_as_ranks import ThreadCarrier, on_ranks
from torch import Tensor

Result = TypeVar("Result")


class ThreadCompany:
    """A `gs_train.ranks.company.Company`."""

    def __init__(self, carrier: ThreadCarrier, size: int) -> None:
        self.rank, self.size, self.device = carrier.rank, size, carrier.device
        self._carrier = carrier

    def all_to_all(
        self, recv: Tensor, send: Tensor, recv_rows: Sequence[int], send_rows: Sequence[int]
    ) -> Any:
        return self._carrier.all_to_all(recv, send, recv_rows, send_rows)

    def gather(self, values: Any) -> Any:
        own = torch.from_numpy(np.asarray(values, dtype=np.int64))
        send = own.reshape(1, -1).repeat(self.size, 1)
        recv, one_each = torch.empty_like(send), [1] * self.size
        return (
            self.all_to_all(recv, send, one_each, one_each)
            .wait()
            .numpy()
            .reshape(self.size, *own.shape)
        )


def in_company(size: int, run: Callable[[ThreadCompany], Result]) -> list[Result]:
    """What each rank returns."""
    return on_ranks(size, torch.device("cpu"), lambda carrier: run(ThreadCompany(carrier, size)))
