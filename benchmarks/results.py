# SPDX-License-Identifier: Apache-2.0
"""The file that a benchmark writes with ``--json``: how it is read, and what it must hold.

A file is one JSON object:

    format     1
    benchmark  the script, relative to benchmarks/
    command    the command line, from the repository's root, without ``--json``
    commit     40 hexadecimal digits, and "+changes" where files differed from that commit
    date       of the start, UTC, ISO 8601
    seconds    the whole run took
    machine    gpu, driver, gpu_memory_bytes, cpu, cores, memory_bytes, platform, python, torch,
               cuda, packages, environment; the first three are null without a GPU
    facts      of the whole run, by name
    lines      each with name, axes (name to value), unit, samples (every one) and facts
"""

from __future__ import annotations

import json
import re
import statistics
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FORMAT = 1
COMMIT = re.compile(r"[0-9a-f]{40}(\+changes)?")
MACHINE = ("gpu", "driver", "gpu_memory_bytes", "cpu", "cores", "memory_bytes", "platform",
           "python", "torch", "cuda", "packages", "environment")  # fmt: skip


@dataclass(frozen=True)
class Line:
    """One line of a benchmark's table, with every sample of it.

    Attributes:
        name: what was measured.
        axes: what varies from line to line, by name.
        unit: of the samples.
        samples: all of them, in the order in which they were taken; at least one.
        facts: what else is known of the line.
    """

    name: str
    unit: str
    samples: tuple[float, ...]
    axes: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str]:
        """What makes two lines of two files the same line."""
        return self.name, json.dumps(self.axes, sort_keys=True), self.unit

    @property
    def median(self) -> float:
        return statistics.median(self.samples)

    @property
    def spread(self) -> float:
        """From the lower to the upper quartile; 0 of a single sample."""
        if len(self.samples) < 2:
            return 0.0
        low, _, high = statistics.quantiles(self.samples, n=4, method="inclusive")
        return high - low


@dataclass(frozen=True)
class Result:
    """What one run of a benchmark wrote; fields as in the file."""

    benchmark: str
    command: str
    commit: str
    date: str
    seconds: float
    machine: dict[str, Any]
    facts: dict[str, Any]
    lines: tuple[Line, ...]

    def line(self, name: str, unit: str | None = None, **axes: Any) -> Line | None:
        """The first line of that name (and unit) that has these axes among its own."""
        for line in self.lines:
            is_named = line.name == name and unit in (None, line.unit)
            if is_named and axes.items() <= line.axes.items():
                return line
        return None

    def axis(self, name: str) -> list[Any]:
        """Values of an axis in the order in which lines have them first."""
        return list(dict.fromkeys(line.axes[name] for line in self.lines if name in line.axes))

    @property
    def place(self) -> str:
        """Machine, versions, commit and day, in words."""
        machine = self.machine
        cpu = f"{machine['cores']} cores of {machine['cpu']}"
        parts = [cpu]
        if machine["gpu"]:
            parts.insert(0, f"{machine['gpu']} (driver {machine['driver']})")
        cuda = f" (CUDA {machine['cuda']})" if machine["cuda"] else ""
        parts += [f"torch {machine['torch']}{cuda}"]
        if machine["gpu"] and machine["packages"].get("gsplat"):
            parts += [f"gsplat {machine['packages']['gsplat']}"]
        plus = "+changes" if self.commit.endswith("+changes") else ""
        return ", ".join([*parts, f"commit {self.commit[:9]}{plus}", self.date[:10]])


def read_result(path: Path) -> Result:
    """The result in a file.

    Raises:
        ValueError: the file is not as described above; the message names file and field.
    """
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise ValueError(f"{path} must be JSON: {error}") from None
    problem = _problem(found)
    if problem:
        raise ValueError(f"{path}: {problem}")
    lines = tuple(
        Line(one["name"], one["unit"], tuple(one["samples"]), one["axes"], one["facts"])
        for one in found["lines"]
    )
    fields = ("benchmark", "command", "commit", "date", "seconds", "machine", "facts")
    return Result(**{name: found[name] for name in fields}, lines=lines)


def _problem(found: Any) -> str:
    """What a file lacks, or nothing."""
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        got = found.get("format") if isinstance(found, dict) else type(found).__name__
        return f"format must be {FORMAT}, got {got!r}"
    kinds: dict[str, Any] = dict.fromkeys(("benchmark", "command", "commit", "date"), str)
    kinds |= {"seconds": (int, float), "machine": dict, "facts": dict, "lines": list}
    for name, kind in kinds.items():
        if not isinstance(found.get(name), kind):
            return f"{name} must be there, got {found.get(name)!r}"
    if not COMMIT.fullmatch(found["commit"]):
        return f"commit must be 40 hexadecimal digits, got {found['commit']!r}"
    for name in MACHINE:
        if name not in found["machine"]:
            return f"machine must name {name}, got {sorted(found['machine'])}"
    for name in ("cpu", "cores", "torch", *(("driver",) if found["machine"]["gpu"] else ())):
        if not found["machine"][name]:
            return f"machine's {name} must be known, got {found['machine'][name]!r}"
    if not found["lines"]:
        return "lines must hold one at least, got none"
    seen = set()
    for k, line in enumerate(found["lines"]):
        if not isinstance(line, dict) or set(line) != {"name", "axes", "unit", "samples", "facts"}:
            return f"line {k} must have name, axes, unit, samples and facts, got {line!r:.80}"
        samples = line["samples"]
        if not samples or not all(isinstance(value, int | float) for value in samples):
            return f"line {k} ({line['name']}) must have samples, got {samples!r:.80}"
        key = Line(line["name"], line["unit"], (), line["axes"]).key
        if key in seen:
            return f"line {k} must differ from all before, got {key} again"
        seen.add(key)
    return ""
