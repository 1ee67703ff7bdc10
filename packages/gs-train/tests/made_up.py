# SPDX-License-Identifier: Apache-2.0
"""A large scene and a machine, for predictions that nothing is measured for."""

from dataclasses import replace

from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import BatchRows, Workload

GIB = 2**30
SEEN = BatchRows(
    visible=8e5, union=4e5, two=7e5, largest=2.5e5, loaded=6e5, held=4e5, intersections=2e6
)
WORK = Workload(
    n_rows=10_000_000, sh_degree=3, batch_size=4, width=1920, height=1080, most=SEEN, mean=SEEN
)
RATES = Rates(
    device="made up",
    to_device=50e9,
    to_host=50e9,
    both=40e9,
    gather=45e9,
    device_adam=2e12,
    host_adam=150e9,
    host_rows=100e9,
    cull_rows=20e9,
    cull_more_rows=100e9,
    view_s=1e-3,
    row_s=5e-9,
    batch_view_s=0.5e-3,
    batch_row_s=4e-9,
    batch_s=0.2e-3,
    streamed_view_s=0.7e-3,
    streamed_row_s=6e-9,
)


def alike(work: Workload, batch: BatchRows) -> Workload:
    """The same scene, whose batches are all alike."""
    return replace(work, most=batch, mean=batch)
