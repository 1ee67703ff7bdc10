# SPDX-License-Identifier: Apache-2.0
"""A process of gs-train, watched from outside: lines, steps, checkpoints, memory, and its end.

The watcher reads what the process leaves behind (its output, ``log.csv``, the folder of
checkpoints), so that the process runs as a user starts it. Times are those at which the watcher saw
something, at most :data:`LOOK_S` late. Nothing here imports torch: the watcher takes no memory that
a measurement would count.
"""

from __future__ import annotations

import contextlib
import csv
import math
import os
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.02
_SAVED = re.compile(r"step_(\d+)(?:\.\d+)?")
_TEMPORARY = ".tmp"  # behind the name of a checkpoint that is being written or removed


@dataclass
class Watched:
    """What was seen of a process; times as ``time.perf_counter`` counts.

    Attributes:
        lines: time and text of each line of output.
        log: time, step and Gaussians of the last row of ``log.csv``, each time that the file grew.
        saved: when the checkpoint of a step was there.
        busy: from when to when checkpoints were written or removed.
        point_cloud: when a ``point_cloud.ply`` was there; not a number before.
        peak_host_bytes: the most memory that the process had resident.
        status: of the process, minus the signal that ended it.
    """

    started: float
    ended: float = math.nan
    lines: list[tuple[float, str]] = field(default_factory=list)
    log: list[tuple[float, int, int]] = field(default_factory=list)
    saved: dict[int, float] = field(default_factory=dict)
    busy: list[list[float]] = field(default_factory=list)
    point_cloud: float = math.nan
    peak_host_bytes: int = 0
    status: int = 0

    @property
    def seconds(self) -> float:
        return self.ended - self.started

    @property
    def ready(self) -> tuple[float, int, int]:
        """When training was about to begin, with how many Gaussians, after how many steps."""
        when, found = self._find(r"([\d,]+) Gaussians after ([\d,]+) steps; rendering")
        n_rows, step = (int(text.replace(",", "")) for text in found.groups())
        return when, n_rows, step

    @property
    def first_step(self) -> float:
        """When the first step of the process had ended."""
        return self._find(r"^step [\d,]+/")[0]

    def _find(self, pattern: str) -> tuple[float, re.Match[str]]:
        for when, text in self.lines:
            if found := re.search(pattern, text):
                return when, found
        raise LookupError(f"a line must hold {pattern!r}, got {[text for _, text in self.lines]}")

    def busy_between(self, start: float, stop: float) -> float:
        """Seconds of that time in which checkpoints were written or removed."""
        return sum(max(0.0, min(b, stop) - max(a, start)) for a, b in self.busy)


def watch(
    command: Sequence[str],
    output: Path,
    *,
    run: Path | None = None,
    until: Callable[[Watched], bool] | None = None,
) -> Watched:
    """Run a command to its end, or kill it as ``kill -9`` does.

    Args:
        command: program and arguments.
        output: file for stdout and stderr together; made anew.
        run: folder of the run that ``gs-train fit`` writes; what lies there before does not count.
        until: asked after each look; the process is killed once the answer is yes.

    Raises:
        RuntimeError: the process failed; the message ends with its last words.
    """
    # Compiled Python files are kept, as for a user: else each process compiles some seconds first.
    kept = {name: word for name, word in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with open(output, "wb") as file:
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, env=kept)
    seen = Watched(time.perf_counter())
    look = _Looking(seen, process.pid, output, run)
    is_killed = False
    try:
        while process.poll() is None and not is_killed:
            look()
            is_killed = until is not None and until(seen)
            if not is_killed:
                time.sleep(LOOK_S)
    finally:
        process.kill()
        seen.status = process.wait()
        seen.ended = time.perf_counter()
    look()
    if seen.status and not is_killed:
        words = "\n".join(text for _, text in seen.lines[-5:])
        raise RuntimeError(f"{' '.join(command)} ended with status {seen.status}:\n{words}")
    return seen


class _Looking:
    """Adds to a :class:`Watched` what is new."""

    def __init__(self, seen: Watched, pid: int, output: Path, run: Path | None) -> None:
        self._seen, self._output, self._run = seen, output, run
        self._status = Path(f"/proc/{pid}/status")
        self._n_read = 0
        self._old = set() if run is None else self._files(run)
        self._is_busy = False
        self._log = (0, 0)

    def __call__(self) -> None:
        now = time.perf_counter()
        with open(self._output, "rb") as file:
            file.seek(self._n_read)
            text = file.read()
        text = text[: text.rfind(b"\n") + 1]
        self._n_read += len(text)
        self._seen.lines += [(now, line) for line in text.decode(errors="replace").splitlines()]
        with contextlib.suppress(OSError):
            if found := re.search(r"VmHWM:\s*(\d+) kB", self._status.read_text()):
                self._seen.peak_host_bytes = 1024 * int(found[1])
        if self._run is not None:
            self._look_at_files(self._run, now)

    def _look_at_files(self, run: Path, now: float) -> None:
        seen, new = self._seen, self._files(run) - self._old
        is_busy = any(path.name.endswith(_TEMPORARY) for path in new)
        if is_busy and not self._is_busy:
            seen.busy.append([now, now])
        if is_busy or self._is_busy:
            seen.busy[-1][1] = now
        self._is_busy = is_busy
        for path in new:
            if path.name == "point_cloud.ply" and math.isnan(seen.point_cloud):
                seen.point_cloud = now
            if found := _SAVED.fullmatch(path.name):
                seen.saved.setdefault(int(found[1]), now)
        with contextlib.suppress(FileNotFoundError):
            stat = os.stat(run / "log.csv")
            if (is_now := (stat.st_ino, stat.st_size)) != self._log:
                self._log = is_now
                seen.log += [(now, *row) for row in _last_row(run / "log.csv")]

    def _files(self, run: Path) -> set[Path]:
        return {*run.glob("checkpoints/step_*"), *run.glob("point_cloud/*/point_cloud.ply")}


def _last_row(path: Path) -> list[tuple[int, int]]:
    """Step and Gaussians of the last whole row of a run's log, if there is one."""
    text = path.read_text()
    rows = csv.DictReader(text[: text.rfind("\n") + 1].splitlines())
    return [(int(row["step"]), int(float(row["n_gaussians"]))) for row in rows][-1:]
