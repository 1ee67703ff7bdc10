# SPDX-License-Identifier: Apache-2.0
"""How fast will a scene on a drive train that is larger than any that has been trained?

Decides nothing: says what `gs-train plan` foretells of `--offload tide` for a survey whose views
see as many Gaussians however large it is. Nothing is trained. What views see is counted in a small
city. Rates are those of a file, as `gs-train plan --offload-rates` writes it; without one, those
of an H100 as far as `docs/benchmarks.md` has them (see ``RATES``).

    PYTHONPATH=benchmarks python benchmarks/tide/bench_foretold.py

Some minutes on a CPU, which the census of the city takes.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import gs_order
from gs_train.options.config import FitConfig
from gs_train.renderers import View
from gs_train.renderers.cpu import CpuRenderer
from gs_train.sizes import format_bytes, parse_bytes
from gs_train.sizing.block_plans import plan_blocks
from gs_train.sizing.census import measure_workload
from gs_train.sizing.drive_rates import DriveRates
from gs_train.sizing.memory import PROCESS_BYTES, Caps
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload
from harness import Record, add_json_option
from workloads import city, flight

RATES = Rates(
    device="NVIDIA H100 80GB HBM3, as published",
    # pinned.json: copies of 5 % of the rows, and the exchange of rows both ways.
    to_device=44.3e9,
    to_host=46.5e9,
    both=35.1e9,
    gather=44.3e9,
    # adam-device.json: 20M rows of 11 floats, 2 % of which have gradients.
    device_adam=2.95e12,
    # No part of rows in blocks; never looked at.
    host_adam=1.0,
    host_rows=1.0,
    # cull.json: 20M rows less 1,000, one view; each of 64 views.
    cull_rows=45e9,
    cull_more_rows=147e9,
    view_s=2.31e-3,
    row_s=4.8e-9,
    # engine-5m.json, engine-20m.json: none, tiles, batches of 4 of 124,418 and of 481,375 rows.
    batch_view_s=1.25e-3,
    batch_row_s=3.0e-9,
    batch_s=0.0,
    streamed_view_s=2.31e-3,
    streamed_row_s=4.8e-9,
)


def survey(n_rows: int, n_views: int, order: str, batch_size: int) -> Workload:
    """What batches see of a city of which a view sees 0.36 %."""
    scene = city(n_rows, share=0.0036)
    photos = flight(scene, n_views, overlap=0.6, sidelap=0.5)
    views = [
        View(f"{k}", pose, K, photos.width, photos.height)
        for k, (pose, K) in enumerate(zip(photos.viewmats, photos.Ks))
    ]
    sampler = gs_order.ViewSampler(n_views, batch_size, seed=0)
    if order == "tiles":
        sampler = gs_order.ViewSampler(
            n_views, batch_size, seed=0, order="tiles", cameras=photos.viewmats.numpy()
        )
    geometry = ("means", "scales", "quats", "opacities")
    rows = {name: getattr(scene, name) for name in geometry}
    return measure_workload(
        rows,
        views,
        CpuRenderer(),
        n_rows=n_rows,
        sh_degree=3,
        batch_size=batch_size,
        sampler=sampler,
        image_cache=4 << 30,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=float, nargs="+", default=[100e6, 300e6, 1000e6])
    parser.add_argument("--view-rows", type=float, default=480e3, help="that a view sees")
    parser.add_argument("--drive", default="4GB:2.1GB", help="READ:WRITE, bytes a second")
    parser.add_argument("--device-memory", default="24GiB")
    parser.add_argument("--host-memory", default="64GiB")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--rates", type=Path, help="of gs-train plan --offload-rates")
    parser.add_argument("--city", type=int, default=1_000_000, help="rows that are looked at")
    parser.add_argument("--views", type=int, default=2000)
    add_json_option(parser)
    options = parser.parse_args()
    rates = RATES if options.rates is None else Rates.load(options.rates)
    drive = DriveRates.parsed(options.drive, option="--drive")
    sizes = [parse_bytes(getattr(options, f"{k}_memory"), option=k) for k in ("device", "host")]
    caps = Caps(*sizes, is_given=True, host_limit=sizes[1], process=PROCESS_BYTES, gaps=1.06)
    run = FitConfig(
        data=Path("CAPTURE"), out=Path("RUN"), offload="tide", strategy="fixed",
        batch_size=options.batch_size,
    )  # fmt: skip
    record = Record(options.json, rates=rates.device, drive=options.drive)
    for name in ("batch_size", "device_memory", "host_memory"):
        record.facts[name] = getattr(options, name)
    titles = ("order", "Gaussians", "images/s", "bound by", "read/image", "written/image")
    print("".join(f"{title:>15s}" for title in (*titles, "drive", "snapshots", "fits")))
    for order in ("tiles", "shuffle"):
        seen = survey(options.city, options.views, order, options.batch_size)
        visits = seen.mean.visible * seen.epoch_batches / seen.epoch_rows
        print(f"{order}: a Gaussian that is seen at all is seen by {visits:.1f} views")
        for n in map(int, options.n):
            work = replace(seen.of_cloud(n, options.view_rows), renderer="raster")
            plan = plan_blocks(run, work, caps, block_rows=run.block_rows)
            speed = plan.speed(rates, drive)
            assert speed is not None
            moved = [b / work.batch_size for b in (plan.bytes_read, plan.bytes_written)]
            cells = [
                order, f"{n / 1e6:,.0f}M", f"{speed.images_per_second:.1f}", speed.bound,
                *(format_bytes(int(b)) for b in (*moved, plan.drive_bytes, plan.snapshot_bytes)),
                "yes" if caps.hold(plan.need) else "no",
            ]  # fmt: skip
            print("".join(f"{cell:>15s}" for cell in cells), flush=True)
            axes = {"order": order, "gaussians": n, "view_rows": options.view_rows}
            facts = {
                "bound": speed.bound, "read": moved[0], "written": moved[1], "visits": visits,
                "records": plan.drive_bytes, "snapshots": plan.snapshot_bytes,
            }  # fmt: skip
            record.add("tide", [speed.images_per_second], "images/s", axes=axes, **facts)
    record.write()


if __name__ == "__main__":
    main()
