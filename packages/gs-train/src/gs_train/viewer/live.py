# SPDX-License-Identifier: Apache-2.0
"""A run that may still be training: how far it is, and its newest checkpoint."""

from __future__ import annotations

import contextlib
import math
import os
from dataclasses import dataclass
from pathlib import Path

from gs_train.checkpoint import latest_checkpoint
from gs_train.errors import InputError
from gs_train.files.small_files import open_regular
from gs_train.runs.folder import RunFolder

_TAIL_BYTES = 1 << 14
_HEAD_BYTES = 1 << 12


@dataclass(frozen=True)
class Progress:
    """How far a run is, as the files of the run say.

    Attributes:
        step: of the last line of the log; 0: there is none.
        steps: that the run shall have.
        values: numbers of the last line, by name.
        newest: the newest whole checkpoint.
    """

    step: int
    steps: int
    values: dict[str, float]
    newest: Path | None

    @property
    def line(self) -> str:
        """The step, the loss and the number of Gaussians for people."""
        parts = [f"step {self.step:,} of {self.steps:,}"]
        if "loss" in self.values:
            parts.append(f"loss {self.values['loss']:.4f}")
        if "n_gaussians" in self.values:
            parts.append(f"{int(self.values['n_gaussians']):,} Gaussians")
        return ", ".join(parts)


def progress_of(folder: RunFolder, steps: int) -> Progress:
    """Look at the files of a run.

    Reads a few KiB, however long the log is.
    """
    values = _last_line(folder.root / "log.csv")
    step = int(values.pop("step", 0))
    newest: Path | None = None
    with contextlib.suppress(InputError):  # the folder cannot be read for now
        newest = latest_checkpoint(folder.checkpoints)
    return Progress(step, steps, values, newest)


def _last_line(path: Path) -> dict[str, float]:
    """Numbers of the last whole line of a log; of no such file nothing."""
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD_BYTES) or b""
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, size - _TAIL_BYTES))
            tail = file.read(_TAIL_BYTES) or b""
    except OSError:
        return {}
    lines = tail[: tail.rfind(b"\n") + 1].decode(errors="replace").splitlines()
    names = head.decode(errors="replace").partition("\n")[0].split(",")
    if not lines or names[0] != "step":
        return {}
    found: dict[str, float] = {}
    for name, text in zip(names, lines[-1].split(",")):
        with contextlib.suppress(ValueError):  # empty, or the names themselves
            if math.isfinite(number := float(text)):
                found[name] = number
    return found if found.get("step", -1.0) >= 0 else {}
