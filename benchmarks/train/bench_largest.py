# SPDX-License-Identifier: Apache-2.0
"""How many Gaussians does a GPU of a given memory really train, and was it foretold?

Decides which card a scene needs, and how far ``gs-train plan`` can be believed. Each line is a
process of its own that may take so much device memory and no more (torch refuses what is beyond it,
as a smaller card would): the synthetic city at 1080p, 20 steps, and the loss of the same views at
the beginning and at the end.

    PYTHONPATH=benchmarks python benchmarks/train/bench_largest.py best:120M:24 none:20M:24
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

from harness import Record, add_json_option

SCALE = {"k": 10**3, "M": 10**6}
HOST_MEMORY = "112GiB"


@dataclasses.dataclass
class Row:
    """One line of the table."""

    preset: str
    n_rows: int
    cap_gib: float
    batch: int
    loss: tuple[float, float]  # of the same views, at the beginning and at the end
    images_per_second: float
    predicted_images_per_second: float
    predicted_seconds: dict[str, float]  # of a batch's parts
    device_gb: float  # most that torch held
    process_gb: float  # of the device at the end, CUDA's own share included
    pinned_gb: float  # locked by tables and rings
    host_gb: float  # page-locked and not: what the process has resident more than before its rows
    updated_on: str
    predicted_device_gb: float
    predicted_pinned_gb: float
    predicted_host_gb: float
    seconds: float  # of everything, the scene included


def run(preset: str, n_rows: int, cap_gib: float, batch: int, steps: int, views: int) -> Row:
    import bench_engine
    import torch
    from alone import process_bytes

    import workloads
    from gs_train.backends import make_backend
    from gs_train.machine.memory import resident_bytes
    from gs_train.options.config import FitConfig
    from gs_train.renderers import RenderOptions, make_renderer
    from gs_train.rows.attributes import GEOMETRY
    from gs_train.rows.morton import morton_order
    from gs_train.runs.figures import locked_bytes
    from gs_train.sizing.census import measure_workload
    from gs_train.sizing.choice import choose
    from gs_train.sizing.forecasts import need, predict, room_under
    from gs_train.sizing.memory import caps_of
    from gs_train.sizing.rates import measure_rates_for

    started = time.perf_counter()
    renderer = make_renderer("gsplat", RenderOptions())
    city = workloads.city(n_rows, device=renderer.device)
    city = city.reordered(morton_order(city.means))
    rows = workloads.host_attributes(city)
    scene = bench_engine.make_scene(city, 0.72, views, (1920, 1080), rows)
    work = measure_workload(
        rows, scene.views, renderer, n_rows=n_rows, sh_degree=3, batch_size=batch,
        batches=[[(k * batch + i) % views for i in range(batch)] for k in range(4)],
    )  # fmt: skip
    del city
    torch.cuda.empty_cache()
    geometry = {name: rows[name].to(renderer.device) for name in GEOMETRY}
    rates = measure_rates_for(
        work, geometry, scene.views, renderer,
        lambda ids: {name: v[ids.cpu()].to(renderer.device) for name, v in rows.items()},
    )  # fmt: skip
    assert rates is not None
    del geometry
    config = FitConfig(
        data=Path(), out=Path(), offload=preset, batch_size=batch, cap=n_rows,  # type: ignore[arg-type]
        device_memory=f"{round(1024 * cap_gib)}MiB", host_memory=HOST_MEMORY,
    )  # fmt: skip
    choice = choose(config, work, caps_of(config, renderer.device))
    room = room_under(choice.preset, work, choice.limits)
    needed = need(choice.preset, work, room)
    print(choice.reason, file=sys.stderr)
    speed = predict(choice.preset, work, rates, room)
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(cap_gib * 2**30 / total, 0)
    before = (resident_bytes() or 0) - sum(values.nbytes for values in rows.values())
    backend = make_backend(
        choice.preset, rows, None, renderer=renderer, semantics="dense", mem_limit=0.3,
        limits=choice.limits,
    )  # fmt: skip
    rows.clear()
    options = bench_engine.settings(scene, batch)
    source = bench_engine.batches(scene, batch)
    following = deque(next(source) for _ in range(2))
    losses: list[torch.Tensor] = []
    torch.cuda.reset_peak_memory_stats()
    for step in range(steps):
        if step == steps // 4:
            torch.cuda.synchronize()
            timed = time.perf_counter()
        now = following.popleft()
        following.append(next(source))
        photos = [scene.photos[i].to(renderer.device, non_blocking=True) for i in now]
        loss = backend.step(
            [(scene.views[i], photo) for i, photo in zip(now, photos)], options,
            lambda ids, splats: None,
            upcoming=[[scene.views[i] for i in after] for after in following],
        )  # fmt: skip
        losses.append(loss)
    torch.cuda.synchronize()
    elapsed = time.perf_counter() - timed
    backend.finish()
    every = views // batch  # steps until the same views come again
    first, last = (float(torch.stack(part).mean()) for part in (losses[:every], losses[-every:]))
    return Row(
        choice.preset.name, n_rows, cap_gib, batch, (first, last),
        (steps - steps // 4) * batch / elapsed,
        speed.images_per_second,
        {"device": speed.device_s, "link": speed.link_s, "host": speed.host_s},
        torch.cuda.max_memory_reserved() / 1e9,
        process_bytes() / 1e9,
        locked_bytes() / 1e9,
        ((resident_bytes() or 0) - before) / 1e9,
        "device" if backend.is_resident else "host",
        needed.device_bytes / 1e9,
        needed.pinned_bytes / 1e9,
        (needed.host_bytes - needed.pageable.get("re-ordering", 0)) / 1e9,
        time.perf_counter() - started,
    )  # fmt: skip


def _count(text: str) -> int:
    return round(float(text[:-1]) * SCALE[text[-1]]) if text[-1] in SCALE else int(text)


def _alone(case: str, options: list[str]) -> dict[str, Any]:
    """The line of one case, from a process of its own; its last words where there is none."""
    command = [sys.executable, __file__, "--here", case, *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{case:18s} failed: {done.stderr.strip().splitlines()[-1][:300]}", flush=True)
        return {"case": case, "failed": done.stderr.strip().splitlines()[-1]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    print(
        f"{case:18s} {row['images_per_second']:9.1f} {row['predicted_images_per_second']:9.1f} "
        f"{row['loss'][0]:7.4f} {row['loss'][1]:7.4f} {row['process_gb']:8.2f} "
        f"{row['device_gb']:9.2f} {row['predicted_device_gb']:9.2f} {row['pinned_gb']:9.2f} "
        f"{row['predicted_pinned_gb']:9.2f} {row['host_gb']:8.2f} {row['predicted_host_gb']:9.2f} "
        f"{row['updated_on']:>7s} {row['seconds']:8.0f} {row['preset']}",
        flush=True,
    )
    return row


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", help="preset, or auto:Gaussians:GiB[:batch]")
    parser.add_argument("--here", help="one case, in this process")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--views", type=int, default=32)
    add_json_option(parser)
    arguments = parser.parse_args()
    if arguments.here:
        preset, n, cap, *batch = arguments.here.split(":")
        size = int(batch[0]) if batch else 8
        row = run(preset, _count(n), float(cap), size, arguments.steps, arguments.views)
        print(json.dumps(dataclasses.asdict(row)))
        return
    record = Record(arguments.json)
    print(
        f"{'preset:N:GiB':18s} {'images/s':>9s} {'predicted':>9s} {'loss':>7s} {'later':>7s} "
        f"{'process':>8s} {'device GB':>9s} {'predicted':>9s} {'pinned GB':>9s} {'predicted':>9s} "
        f"{'host GB':>8s} {'predicted':>9s} {'updates':>7s} {'seconds':>8s} preset"
    )
    options = ["--steps", str(arguments.steps), "--views", str(arguments.views)]
    failed: dict[str, str] = {}
    for case in arguments.cases:
        found = _alone(case, options)
        if "failed" in found:
            failed[case] = found["failed"]
            continue
        axes = {name: found.pop(name) for name in ("n_rows", "cap_gib", "batch")}
        name, rate = found.pop("preset"), found.pop("images_per_second")
        record.add(name, [rate], "images/s", axes=axes, case=case, **found)
        record.facts["failed"] = failed
        record.write()


if __name__ == "__main__":
    main()
