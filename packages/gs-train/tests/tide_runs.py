# SPDX-License-Identifier: Apache-2.0
"""Small runs whose rows are on a drive, and what their stores hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gs_pinned import BlockStore
from gs_train.checkpoint import latest_checkpoint, open_checkpoint
from gs_train.cli import main

STEPS, N_ROWS = 8, 600
SMALL = (
    *("--renderer", "cpu", "--strategy", "fixed", "--cap", str(N_ROWS), "--sh-degree", "1"),
    *("--sh-every", "4", "--batch-size", "2"),
)
"""Options of all these runs; few rows, and harmonics from the fourth image on."""

FEW = ("--block-rows", "32", "--tide.slots", "6", "--tide.arena", "64kB")
"""Far fewer blocks in memory than the 19 that there are."""


def command(capture: Path, out: Path, *more: str, offload: str = "tide") -> list[str]:
    """The arguments of a run."""
    start = ["fit", str(capture), "--out", str(out), "--steps", str(STEPS), "--offload", offload]
    return [*start, *SMALL, *more]


def fitted(capture: Path, out: Path, *more: str, offload: str = "tide") -> Path:
    """Train, and expect no error; returns ``out``."""
    assert main(command(capture, out, *more, offload=offload)) == 0
    return out


def saved(out: Path) -> dict[str, np.ndarray]:
    """What the newest checkpoint of a run on a drive holds, by plane, in the order of keys."""
    newest = latest_checkpoint(out / "checkpoints")
    assert newest is not None
    store = open_checkpoint(newest).state["store"]
    folder = Path(store["path"] or out / "store")
    with BlockStore.open(folder, snapshot=store["snapshot"], read_only=True) as opened:
        planes = opened.read(opened.blocks)
    order = planes["key"][:, 0].argsort()
    return {name: values[order] for name, values in planes.items()}


def assert_same(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    """The same bits, plane by plane."""
    assert set(ours) == set(theirs)
    for name in ours:
        assert ours[name].tobytes() == theirs[name].tobytes(), name
