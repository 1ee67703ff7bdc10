# SPDX-License-Identifier: Apache-2.0
"""Are rows in slots of device memory updated at the rate of memory, wherever their slots are?

Decides whether rows can stay on the device from batch to batch with their moments and be updated
there. The ceiling is a device-to-device copy. A value counts 28 bytes where it is updated, 24 where
it is woken; of a row that is awake, waking reads its ids and its last step alone: 16 bytes. Slots
are in random order, then the same ones sorted. The device is held until a call is queued: its own
time is measured, and apart from it how long the host takes to queue.

    PYTHONPATH=benchmarks python benchmarks/adam/bench_device_rows.py --json PATH
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import numpy as np
import torch
from device_timing import copy_bandwidth, host_time, nothing, timed

from gs_adam import DeviceRows, HostAdam
from harness import Record, add_json_option

WIDTHS = (3, 45)
WIDTH = sum(WIDTHS)
SLEEP = 5
LONG = 1000
UPDATE_BYTES, WAKE_BYTES = 28, 24
# Two int32 ids, and last_step read and written.
ROW_BYTES = 16


def make_adam() -> HostAdam:
    """An optimizer many steps from its beginning, whose own row is nobody's."""
    params = [torch.nn.Parameter(torch.zeros(1, width)) for width in WIDTHS]
    adam = HostAdam([{"params": [p], "lr": 1e-3 * (k + 1)} for k, p in enumerate(params)])
    for _ in range(2 * LONG):
        adam.end_step(adam.begin_step())
    return adam


class Case:
    """Rows of 48 floats in slots of one device."""

    def __init__(self, n_rows: int, n_slots: int, device: str = "cuda") -> None:
        generator = torch.Generator(device).manual_seed(0)

        def values(n: int) -> torch.Tensor:
            return torch.randn(n, WIDTH, generator=generator, device=device)

        self.tables = [values(n_slots), 0.1 * values(n_slots), values(n_slots).square_()]
        self.slots = torch.randperm(n_slots, generator=generator, device=device)[:n_rows].int()
        self.ids = torch.randperm(n_slots, generator=generator, device=device)[:n_rows].int()
        self.grads = values(n_rows)
        self.last_step = torch.zeros(n_slots, dtype=torch.int32, device=device)
        self.adam = make_adam()
        self.rows = DeviceRows(self.adam, device)
        self.step = self.adam.begin_step()

    def sort(self) -> None:
        """Slots and ids in order, as after a gather of sorted rows."""
        self.slots = self.slots.sort().values
        self.ids = self.ids.sort().values

    def sleep(self, steps: int) -> None:
        """All rows were last updated so many steps before the last one."""
        self.last_step.fill_(self.step - 1 - steps)

    def wake(self) -> None:
        """The call that is measured."""
        self.rows.wake(*self.tables, self.slots, self.last_step, self.ids, step=self.step)

    def update(self) -> None:
        """The other one."""
        self.rows.update(
            *self.tables, self.slots, self.last_step, self.ids, self.grads, step=self.step
        )


def check() -> None:
    """What is timed below is right: against the host."""
    there = Case(1001, 3000)
    here = Case(1001, 3000, "cpu")
    for a, b in zip(here.tables, there.tables, strict=True):
        a.copy_(b.cpu())
    for name in ("slots", "ids", "grads"):
        setattr(here, name, getattr(there, name).cpu())
    for slept in (0, SLEEP, LONG):
        for case in (here, there):
            case.sleep(slept)
            case.wake()
            case.update()
        for a, b in zip(here.tables, there.tables, strict=True):
            torch.testing.assert_close(b.cpu(), a, rtol=1e-6, atol=1e-7)


def main() -> None:
    """Run all cases."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 480_000])
    parser.add_argument("--slots", type=int, default=2_000_000)
    parser.add_argument("--samples", type=int, default=20)
    add_json_option(parser)
    options = parser.parse_args()
    record = Record(options.json)
    check()
    for n_rows in options.rows:
        run(n_rows, options.slots, options.samples, record)
    record.write()


def run(n_rows: int, n_slots: int, samples: int, record: Record) -> None:
    """All cases of one number of rows."""
    limit = copy_bandwidth(n_rows * WIDTH, samples)
    name = torch.cuda.get_device_name()
    print(f"{name}: {n_rows} rows x {WIDTH} in {n_slots} slots, copy {limit:.0f} GB/s")
    print(f"{'case':44} {'best ms':>9} {'median':>9} {'GB/s':>8} {'limit':>6} {'host ms':>8}")
    case = Case(n_rows, n_slots)

    def report(
        what: str, call: Callable[[], None], value_bytes: int, prepare: Callable[[], None]
    ) -> None:
        seconds = timed(call, samples, prepare)
        queued = host_time(call, samples)
        n_bytes = n_rows * (value_bytes * WIDTH + ROW_BYTES)
        best, rate = min(seconds), n_bytes / min(seconds) / 1e9
        print(
            f"{what:44} {best * 1e3:9.3f} {float(np.median(seconds)) * 1e3:9.3f} {rate:8.0f} "
            f"{rate / limit:6.0%} {queued * 1e3:8.3f}"
        )
        record.add(
            what, seconds, "s", axes={"rows": n_rows, "slots": n_slots},
            bytes=n_bytes, copy_gb_per_second=limit, host_seconds=queued,
        )  # fmt: skip

    for order in ("random", "sorted"):
        if order == "sorted":
            case.sort()
        case.sleep(0)
        report(f"wake, none asleep, {order}", case.wake, 0, nothing)
        for slept in (SLEEP, LONG):
            asleep = f"all asleep for {slept} steps, {order}"
            report(f"wake, {asleep}", case.wake, WAKE_BYTES, lambda s=slept: case.sleep(s))
            report(f"update, {asleep}", case.update, UPDATE_BYTES, lambda s=slept: case.sleep(s))
        case.sleep(0)
        report(f"update, none asleep, {order}", case.update, UPDATE_BYTES, nothing)


if __name__ == "__main__":
    main()
