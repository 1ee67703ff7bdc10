# SPDX-License-Identifier: Apache-2.0
"""What each rank of ``bench_largest_ranks.py`` does in one try."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from bench_engine import Scene, batches
from foretold import caps_of_rank, largest_of, limits_of, workloads_of
from launching import Lines, as_rank
from torch import Tensor
from training_ranks import Made, PresetRank, Runs, clear, made

from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.options.limits import Limits
from gs_train.renderers import RenderOptions, make_renderer
from gs_train.sizing.memory import Caps
from gs_train.sizing.workload import Workload
from gs_train.world.protocol import World


class Trying:
    """One scene on all ranks.

    Args:
        world: all ranks.
        plan: see ``bench_largest_ranks.py``.
        lines: takes the result.
    """

    def __init__(self, world: World, plan: dict[str, Any], lines: Lines) -> None:
        self._world, self._plan, self._lines = world, plan, lines
        self._cap_bytes = int(plan["cap"] * 2**30)
        self._caps = caps_of_rank(self._cap_bytes, world.device, world.size)
        self._renderer = make_renderer(plan["renderer"], RenderOptions())
        self._work: Workload

    def run(self) -> None:
        """Foretell, or train."""
        found = made(
            self._world, self._plan, self._plan["overlap"], keeps_all=False, look=self._look
        )
        if self._plan["tries"]:
            self._train(found)
        elif self._world.rank == 0:
            most = largest_of(self._plan["preset"], self._work, self._caps, self._world.size)
            self._lines.add("foretold", [float(most)], "Gaussians", {})

    def _look(self, rows: dict[str, Tensor], scene: Scene) -> None:
        batch = self._plan["batch"]
        self._work = workloads_of(rows, scene.views, self._renderer, [batch])[batch]

    def _train(self, found: Made) -> None:
        world, plan = self._world, self._plan
        limits = self._limits()
        _cap(self._cap_bytes, world.device)
        trainee = PresetRank(
            plan["preset"], found.own.rows, found.own.keys.to(world.device), found.scene,
            plan["batch"], self._renderer, world, limits=limits,
        )  # fmt: skip
        run = Runs(trainee, batches(found.scene, plan["batch"], "shuffle"), world)
        run.of(plan["steps"])
        is_cuda = world.device.type == "cuda"
        peak = torch.cuda.max_memory_allocated() if is_cuda else 0
        reserved = torch.cuda.max_memory_reserved() if is_cuda else 0
        of_ranks = world.gather([peak, reserved, *trainee.held_bytes()])
        names = ("peak", "peak_reserved", "rows", "sums", "exchange")
        facts = {f"ranks_{name}_bytes": of_ranks[:, k].tolist() for k, name in enumerate(names)}
        axes = {
            "ranks": world.size, "batch": plan["batch"], "cap_gib": plan["cap"],
            "size": plan["size"], "views": plan["views"], "share": plan["share"],
        }  # fmt: skip
        facts |= {"drawn_in_parts": bool(trainee.news()), "steps": plan["steps"]}
        self._lines.add("trains", [float(plan["rows"])], "Gaussians", axes, **facts)
        trainee.close()

    def _limits(self) -> Limits:
        """Those that ``fit`` would take.

        Raises:
            MemoryError: rows are foretold not to fit, and nothing else here would refuse them.
        """
        world, caps = self._world, self._caps
        mib = int(world.gather([caps.host >> 20]).min())  # the same on all ranks
        caps = Caps(caps.device, mib << 20, is_given=True, gaps=caps.gaps)
        limits, fits = limits_of(
            self._plan["preset"], self._work, caps, self._plan["rows"], world.size
        )
        if not fits and world.device.type == "cpu":
            raise MemoryError("foretold not to fit")
        return limits


def _cap(n_bytes: int, device: torch.device) -> None:
    """Have torch refuse more of the device."""
    clear(device)
    if device.type == "cuda":
        total = torch.cuda.get_device_properties(device).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, n_bytes / total), device)


def work(world: World, plan: dict[str, Any], lines: Lines) -> None:
    """One rank's part; a file says where memory has run out."""
    try:
        Trying(world, plan, lines).run()
    except Exception as error:
        if memory_that_ran_out(error) is not None:
            Path(plan["ran_out"]).touch()
        raise


if __name__ == "__main__":
    as_rank(work)
