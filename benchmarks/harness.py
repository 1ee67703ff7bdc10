# SPDX-License-Identifier: Apache-2.0
"""What every benchmark writes with ``--json``: machine, commit, command line and raw samples.

``results.py`` says what is in a file. A benchmark makes a :class:`Record` before it measures, adds
each line of its table, and writes it.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from results import COMMIT, FORMAT

FOLDER = Path(__file__).resolve().parent
PACKAGES = ("gs-cull", "gs-order", "gs-pinned", "gs-adam", "gs-raster", "gs-train", "gsplat",
            "FasterGSCudaBackend", "numba", "numpy", "triton")  # fmt: skip
# Settings that change how fast something runs.
ENVIRONMENT = ("CUDA_VISIBLE_DEVICES", "GS_SIMD", "OMP_NUM_THREADS", "PYTORCH_CUDA_ALLOC_CONF")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    """``--json PATH``, which every benchmark has."""
    parser.add_argument(
        "--json", type=Path, help="where to write machine, commit, command and raw samples"
    )


class Record:
    """Lines of one run, written as ``results.py`` describes.

    Args:
        path: of the file; None: nothing is written.
        facts: of the whole run. More may be added to the attribute of that name.

    Raises:
        RuntimeError: the commit is unknown, so that nothing is measured in vain.
    """

    def __init__(self, path: Path | None, **facts: Any) -> None:
        self.facts: dict[str, Any] = dict(facts)
        self._path = path
        self._lines: list[dict[str, Any]] = []
        self._started = time.perf_counter()
        self._date = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        self._commit = current_commit() if path is not None else ""

    def add(
        self,
        name: str,
        samples: Iterable[float],
        unit: str,
        *,
        axes: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> None:
        """One line of the table, with all its samples."""
        values = [float(sample) for sample in samples]
        if not values or not all(map(math.isfinite, values)):
            raise ValueError(f"samples of {name} must be finite numbers, got {values}")
        line = {"name": name, "axes": dict(axes or {}), "unit": unit, "samples": values}
        self._lines.append(line | {"facts": facts})

    def clear(self) -> None:
        """Drop all lines, for who adds them anew with more samples."""
        self._lines.clear()

    def write(self) -> None:
        """Write what there is so far; a later call replaces the file."""
        if self._path is None:
            return
        found = {
            "format": FORMAT,
            "benchmark": str(_script().relative_to(FOLDER)),
            "command": command_line(sys.argv),
            "commit": self._commit,
            "date": self._date,
            "seconds": round(time.perf_counter() - self._started, 1),
            "machine": machine_facts(),
            "facts": self.facts,
            "lines": self._lines,
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(_plain(found), indent=1, allow_nan=False) + "\n")


def command_line(argv: list[str]) -> str:
    """How to run this again from the repository's root, without where to write."""
    kept: list[str] = []
    options = iter(argv[1:])
    for option in options:
        if option == "--json":
            next(options, None)
        elif not option.startswith("--json="):
            kept.append(option)
    script = _script().relative_to(FOLDER.parent)
    path = "PYTHONPATH=" + ":".join(map(str, _folders()))
    return shlex.join([path, "python", str(script), *kept])


def _folders() -> list[Path]:
    """That the script imports from beside its own, relative to the repository's root."""
    found = [Path(path).resolve() for path in sys.path if path]
    others = [path for path in found if path.parent == FOLDER and path != _script().parent]
    return [path.relative_to(FOLDER.parent) for path in dict.fromkeys([FOLDER, *others])]


def current_commit() -> str:
    """The commit of this checkout; "+changes" behind it where its files are not those of it.

    Raises:
        RuntimeError: this is no checkout and GS_COMMIT, which comes first, names none.
    """
    given = os.environ.get("GS_COMMIT")
    if given is not None:
        if not COMMIT.fullmatch(given):
            raise RuntimeError(f"GS_COMMIT must be 40 hexadecimal digits, got {given!r}")
        return given
    try:
        head = _output("git", "-C", str(FOLDER), "rev-parse", "HEAD")
        changes = _output("git", "-C", str(FOLDER), "status", "--porcelain", "-uno")
    except (OSError, subprocess.CalledProcessError):
        raise RuntimeError(
            f"a result must name its commit, and {FOLDER} is no git checkout: set GS_COMMIT"
        ) from None
    return head + ("+changes" if changes else "")


def machine_facts() -> dict[str, Any]:
    """What the numbers were measured on and with."""
    import torch

    has_gpu = torch.cuda.is_available()
    return {
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
        "driver": _driver() if has_gpu else None,
        "gpu_memory_bytes": torch.cuda.get_device_properties(0).total_memory if has_gpu else None,
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "platform": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in PACKAGES},
        "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
    }


def _script() -> Path:
    return Path(sys.argv[0]).resolve()


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _driver() -> str:
    try:
        query = ("--query-gpu=driver_version", "--format=csv,noheader")
        return _output("nvidia-smi", *query).splitlines()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        pass
    try:
        words = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return "unknown"
    found = re.search(r"\d+\.\d+(\.\d+)?", words)
    return found[0] if found else "unknown"


def _processor() -> str:
    try:
        words = Path("/proc/cpuinfo").read_text()
    except OSError:
        words = ""
    found = re.search(r"^model name\s*:\s*(.+)$", words, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _plain(value: Any) -> Any:
    """What JSON can hold: numpy's and torch's scalars as numbers, what is not finite as null."""
    if isinstance(value, dict):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)
