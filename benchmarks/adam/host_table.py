# SPDX-License-Identifier: Apache-2.0
"""The table that the host optimizers are timed on, and which of its rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gs_adam import HostAdam, _memory

WIDTH = 48
RATES = (2.5e-3, 1.25e-4)
SLEEP = 50
DECAY = 0.999


def filled(n_rows: int, huge: bool, seed: int) -> torch.Tensor:
    """(n_rows, 48) normal values, repeated every 2^16 rows."""
    values = _memory.empty((n_rows, WIDTH)) if huge else torch.empty(n_rows, WIDTH)
    block = torch.randn(1 << 16, WIDTH, generator=torch.Generator().manual_seed(seed))
    for first in range(0, n_rows, len(block)):
        part = values[first : first + len(block)]
        part.copy_(block[: len(part)])
    return values


def random_rows(n_rows: int, count: int, generator: np.random.Generator) -> torch.Tensor:
    """Sorted random ids."""
    ids = np.unique(generator.integers(0, n_rows, int(count * 1.2), dtype=np.int32))
    while len(ids) < count:
        more = generator.integers(0, n_rows, count, dtype=np.int32)
        ids = np.unique(np.concatenate([ids, more]))
    # Which to leave out must not depend on their order.
    kept = np.ones(len(ids), bool)
    kept[generator.choice(len(ids), len(ids) - count, replace=False, shuffle=False)] = False
    return torch.from_numpy(ids[kept])


def rows_in_runs(n_rows: int, count: int, generator: np.random.Generator) -> torch.Tensor:
    """Sorted ids in random runs of 32."""
    starts = random_rows(n_rows // 32, count // 32, generator).numpy() * 32
    return torch.from_numpy((starts[:, None] + np.arange(32, dtype=np.int32)).ravel())


Rows = Callable[[int, int, np.random.Generator], torch.Tensor]


class Table:
    """Rows of 48 floats in two groups, their moments, and optimizers on the same memory.

    Args:
        huge: in large pages, as gs_pinned's tables and HostAdam's own moments are.
    """

    def __init__(self, n_rows: int, threads: int, huge: bool) -> None:
        self.n_rows = n_rows
        self.values, self.exp_avg, self.exp_avg_sq, self.grads = (
            filled(n_rows, huge, seed) for seed in range(4)
        )
        self.exp_avg_sq.square_()
        self.last_step = _memory.zeros((n_rows,), torch.int32)
        self.threads = threads

    def split(self, tensor: torch.Tensor) -> list[torch.Tensor]:
        """The two groups' columns."""
        return [tensor[:, :3], tensor[:, 3:]]

    def host(self, semantics: str) -> HostAdam:
        """Our optimizer; deferred has taken enough empty steps for rows to have slept."""
        state: dict[str, Any] = {
            "exp_avg": self.split(self.exp_avg),
            "exp_avg_sq": self.split(self.exp_avg_sq),
        }
        if semantics == "deferred":
            state["last_step"] = self.last_step.zero_()  # steps of an earlier one's count
        groups = [
            {"params": [p], "lr": lr} for p, lr in zip(self.split(self.values), RATES, strict=True)
        ]
        host = HostAdam(groups, semantics=semantics, threads=self.threads, state=state)
        if semantics == "deferred":
            for _ in range(2 * SLEEP):
                host.end_step(host.begin_step())
                decay(host)
        return host

    def torch_adam(self, **options: Any) -> torch.optim.Adam:
        """torch's, one group, on the same values and moments."""
        param = torch.nn.Parameter(self.values, requires_grad=False)
        param.grad = self.grads
        adam = torch.optim.Adam([param], lr=RATES[1], eps=1e-15, **options)
        adam.state[param] = {
            "step": torch.tensor(100.0),
            "exp_avg": self.exp_avg,
            "exp_avg_sq": self.exp_avg_sq,
        }
        return adam


def decay(host: HostAdam) -> None:
    """Move the learning rates on."""
    for group in host.param_groups:
        group["lr"] *= DECAY


def check(threads: int) -> None:
    """What is timed is right: deferred against torch's Adam in float64."""
    generator = np.random.default_rng(0)
    table = Table(2000, threads, huge=False)
    exact = [t.double() for t in table.split(table.values)]
    for tensor in (table.exp_avg, table.exp_avg_sq):
        tensor.zero_()
    host = HostAdam(
        [{"params": [p], "lr": lr} for p, lr in zip(table.split(table.values), RATES, strict=True)],
        threads=threads,
    )
    params = [torch.nn.Parameter(t) for t in exact]
    dense = torch.optim.Adam(
        [{"params": [p], "lr": lr} for p, lr in zip(params, RATES, strict=True)], eps=1e-15
    )
    for _ in range(60):
        rows = random_rows(2000, 200, generator)
        grads = table.split(table.grads[rows.long()])
        host.step(rows, grads)
        for p, g in zip(params, grads, strict=True):
            p.grad = torch.zeros_like(p).index_copy_(0, rows.long(), g.double())
        dense.step()
    host.flush()
    for ours, theirs, lr in zip(table.split(table.values), params, RATES, strict=True):
        error = (ours.double() - theirs.detach()).abs() / (theirs.detach().abs() + lr)
        assert float(error.max()) < 1e-5, f"deferred is off by {float(error.max())}"
