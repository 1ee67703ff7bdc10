# SPDX-License-Identifier: Apache-2.0
"""Rows of a host optimizer, and slots of a device that they visit."""

import pytest
import torch

from gs_adam import DeviceRows, HostAdam

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
SHAPES = ((1, 3), (15, 3))
RATES = (0.02, 0.005, 0.01, 0.03)


def width_of(shapes):
    return sum(torch.Size(shape).numel() for shape in shapes)


def columns(table, shapes):
    """Views of a table as the parameters of those shapes."""
    parts = table.split([torch.Size(shape).numel() for shape in shapes], dim=1)
    return [part.unflatten(1, shape) for part, shape in zip(parts, shapes, strict=True)]


class Host:
    """An optimizer whose rows lie in tables of its own."""

    def __init__(self, n_rows, shapes=SHAPES, seed=1, semantics="deferred", **options):
        generator = torch.Generator().manual_seed(seed)
        self.shapes = shapes
        self.tables = [torch.zeros(n_rows, width_of(shapes)) for _ in range(3)]
        self.tables[0].copy_(torch.randn(self.tables[0].shape, generator=generator))
        self.last_step = torch.zeros(n_rows, dtype=torch.int32)
        param, exp_avg, exp_avg_sq = (columns(table, shapes) for table in self.tables)
        state = {"exp_avg": exp_avg, "exp_avg_sq": exp_avg_sq}
        if semantics == "deferred":
            state["last_step"] = self.last_step
        groups = [{"params": [p], "lr": RATES[k]} for k, p in enumerate(param)]
        self.adam = HostAdam(groups, semantics=semantics, state=state, **options)

    def begin(self, factor=1.0):
        for k, group in enumerate(self.adam.param_groups):
            group["lr"] = RATES[k] * factor
        return self.adam.begin_step()

    def update(self, ids, grads, step):
        order = ids.argsort()
        self.adam.update(ids[order], columns(grads[order], self.shapes), step=step)


class Slots:
    """Slots of a device, and rows of a host in them."""

    def __init__(self, host, n_slots, device, id_type=torch.int64):
        self.host, self.device, self.id_type = host, device, id_type
        self.rows = DeviceRows(host.adam, device)
        width = width_of(host.shapes)
        self.tables = [torch.full((n_slots, width), torch.nan, device=device) for _ in range(3)]
        sleeps = host.adam.semantics == "deferred"
        self.last_step = torch.full((len(host.last_step),), -1, dtype=torch.int32, device=device)
        self.last_step = self.last_step if sleeps else None
        self.slot_of = {}

    def lists(self, ids):
        slots = torch.tensor([self.slot_of[int(i)] for i in ids], dtype=torch.int64)
        return slots.to(self.device, self.id_type), ids.to(self.device, self.id_type)

    def enter(self, ids):
        free = set(range(len(self.tables[0]))) - set(self.slot_of.values())
        # Not in order.
        free = sorted(free, key=lambda slot: slot * 7 % 11)[: len(ids)]
        self.slot_of.update(zip(ids.tolist(), free, strict=True))
        slots, _ = self.lists(ids)
        for table, mine in zip(self.host.tables, self.tables, strict=True):
            mine[slots.long()] = table[ids].to(self.device)
        if self.last_step is not None:
            self.last_step[ids.to(self.device)] = self.host.last_step[ids].to(self.device)

    def leave(self, ids):
        slots, _ = self.lists(ids)
        for table, mine in zip(self.host.tables, self.tables, strict=True):
            table[ids] = mine[slots.long()].cpu()
        if self.last_step is not None:
            self.host.last_step[ids] = self.last_step[ids.to(self.device)].cpu()
        for i in ids.tolist():
            del self.slot_of[i]

    def wake(self, ids, step):
        slots, ids = self.lists(ids)
        self.rows.wake(*self.tables, slots, self.last_step, ids, step=step)

    def update(self, ids, grads, step):
        slots, ids = self.lists(ids)
        self.rows.update(*self.tables, slots, self.last_step, ids, grads.to(self.device), step=step)


def assert_same(ours, theirs, device):
    """Bit for bit on the CPU, a few ulp a step elsewhere."""
    for a, b in zip(ours, theirs, strict=True):
        if device == "cpu":
            assert torch.equal(a, b)
        else:
            torch.testing.assert_close(a, b, rtol=2e-6, atol=2e-7 * float(b.abs().max()))


def chosen(n_rows, share, generator):
    """Some rows in any order."""
    ids = (torch.rand(n_rows, generator=generator) < share).nonzero().flatten()
    return ids[torch.randperm(len(ids), generator=generator)]


def rate(number):
    """Warm-up, changes, and a step of rate zero."""
    return 0.0 if number == 17 else min(1.0, number / 30) * (1.5 if number % 3 else 0.4)
