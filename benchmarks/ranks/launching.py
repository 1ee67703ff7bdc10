# SPDX-License-Identifier: Apache-2.0
"""Processes of a benchmark on several ranks, and the lines that rank 0 measures.

A script that a user starts hands a plan to a module of its own, which runs once on each rank.
Rank 0 appends each line of the table to a file as soon as the line is measured, so that a call that
is ended early keeps what it has.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from gs_train.machine.interrupt import Interrupted
from gs_train.world.entry import joined
from gs_train.world.failure import ToldError
from gs_train.world.launcher import launch
from gs_train.world.protocol import World

FOLDER = Path(__file__).resolve().parent
_FOLDERS = (FOLDER, FOLDER.parent, FOLDER.parent / "train")
"""In which ranks find their modules."""

Line = dict[str, Any]


class Lines:
    """What rank 0 has measured.

    Args:
        path: of the file; None: this is another rank, and nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def add(
        self, name: str, samples: list[float], unit: str, axes: Mapping[str, Any], **facts: Any
    ) -> None:
        """One line, with the arguments of ``harness.Record.add``."""
        if self._path is None:
            return
        line = {"name": name, "samples": samples, "unit": unit, "axes": axes, "facts": facts}
        with self._path.open("a") as file:
            file.write(json.dumps(line) + "\n")


def measured(module: str, ranks: int, plan: Mapping[str, Any]) -> tuple[list[Line], int]:
    """Run a module on so many ranks.

    Args:
        module: of `FOLDER`; it calls `as_rank`.
        ranks: processes, and GPUs unless the plan's renderer is ``cpu``.
        plan: what JSON can hold.

    Returns:
        The lines of rank 0, and the exit status: not 0 where not all lines are there.
    """
    with tempfile.TemporaryDirectory() as folder:
        given, lines = Path(folder, "plan.json"), Path(folder, "lines")
        given.write_text(json.dumps(plan))
        lines.touch()
        before = os.environ.get("PYTHONPATH")
        os.environ["PYTHONPATH"] = os.pathsep.join([*map(str, _FOLDERS), *filter(None, [before])])
        try:
            status = launch([str(given), str(lines)], ranks, module=module)
        finally:
            if before is None:
                del os.environ["PYTHONPATH"]
            else:
                os.environ["PYTHONPATH"] = before
        return [json.loads(line) for line in lines.read_text().splitlines()], status


def as_rank(work: Callable[[World, Any, Lines], object]) -> None:
    """Do one rank's part of `measured`, in the process of that rank."""
    os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")  # as gs-train does
    plan, lines = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    try:
        with joined("cpu" if plan["renderer"] == "cpu" else "cuda") as world:
            work(world, plan, Lines(None if world.rank else lines))
    except (Interrupted, ToldError) as ended:
        sys.exit(ended.exit_status)


def worlds(given: list[int] | None, renderer: str) -> list[int]:
    """Numbers of ranks to measure, ascending: 1 and all GPUs where none are given."""
    if given:
        return sorted(set(given))
    return sorted({1, 2 if renderer == "cpu" else torch.cuda.device_count()})


def links() -> str:
    """How the GPUs are connected, as the driver says it; nothing without a driver."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "topo", "-m"], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
