# SPDX-License-Identifier: Apache-2.0
"""Facts about build, driver, device and memory, and quick measurements of the link."""

from __future__ import annotations

import importlib.util
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gs_pinned import _core, device
from gs_pinned.ring import Ring, store_compact
from gs_pinned.table import Table
from gs_pinned.transfer import gather

if TYPE_CHECKING:
    import torch

__all__ = ["report"]

WIDTH = 48  # floats of a row: the appearance of one Gaussian, three cache lines
REPEATS = 5


def report(table_bytes: int) -> Iterator[str]:
    """Lines of the report, as they are measured. Needs torch for rates over the link.

    Args:
        table_bytes: size of the table to measure on; device memory takes a tenth of it.
    """
    info = _core.build_info()
    cuda = info["cuda_toolkit"]
    built = f"CUDA {cuda} for {info['cuda_architectures']}" if cuda else "without CUDA"
    yield f"gs-pinned {info['version']}: {info['compiler']}, {built}"
    yield f"python {platform.python_version()}, numpy {np.__version__}, torch {_torch_version()}"
    yield f"host: {_host()}"
    yield f"pages: {_pages()}"
    problem = device.device_problem()
    version = _core.driver_version()
    driver = f"{version // 1000}.{version % 1000 // 10}" if version else "none"
    yield f"driver: CUDA {driver}; " + (problem or f"{_core.device_count()} device(s)")

    rows = max(1000, table_bytes // (WIDTH * 4))
    start = time.perf_counter()
    with Table(rows, WIDTH) as table:
        used = table.stats.used_bytes
        rate = used / (time.perf_counter() - start) / 1e9
        kind = "page-locked" if table.is_pinned else "pageable"
        yield f"table: {used / 2**30:.2f} GiB {kind} at {rate:.1f} GB/s"
        chosen = np.flatnonzero(np.random.default_rng(0).random(rows) < 0.05).astype(np.int32)
        yield from _host_rates(table, chosen)
        if problem:
            return
        if importlib.util.find_spec("torch") is None:
            yield "link: not measured, torch is not installed"
        elif not _has_cuda_torch():
            yield "link: not measured, this torch has no CUDA"
        else:
            yield from _device_rates(table, chosen)


def _has_cuda_torch() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _torch_version() -> str:
    if importlib.util.find_spec("torch") is None:
        return "not installed"
    import torch

    return str(torch.__version__)


def _host() -> str:
    cpus = len(os.sched_getaffinity(0))
    total, free = _core.physical_bytes(), _core.available_bytes()
    return (
        f"{platform.system()} {platform.release()}, {cpus} CPUs, "
        f"{free / 2**30:.1f} of {total / 2**30:.1f} GiB free"
    )


def _pages() -> str:
    huge = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    mode = huge.read_text().partition("[")[2].partition("]")[0] if huge.exists() else "none"
    limit = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    locked = "unlimited" if limit == resource.RLIM_INFINITY else f"{limit} bytes"
    own = os.environ.get("GS_PINNED_LIMIT_BYTES", "none")
    return (
        f"{resource.getpagesize()} bytes, transparent huge pages {mode or 'none'}, "
        f"RLIMIT_MEMLOCK {locked}, GS_PINNED_LIMIT_BYTES {own}"
    )


def _host_rates(table: Table, chosen: np.ndarray[Any, Any]) -> Iterator[str]:
    out = np.zeros((len(chosen), WIDTH), np.float32)
    source = np.ones_like(out)
    shuffled = np.random.default_rng(1).permutation(chosen)
    rates = {
        "gather of 5 % sorted": _best(lambda: gather(table, chosen, out)),
        "in random order": _best(lambda: gather(table, shuffled, out)),
        "memcpy": _best(lambda: np.copyto(out, source)),
    }
    yield f"host, {out.nbytes >> 20} MiB: " + _rates(rates, out.nbytes)


def _device_rates(table: Table, chosen: np.ndarray[Any, Any]) -> Iterator[str]:
    import torch

    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    yield (
        f"device: {properties.name}, compute capability {properties.major}.{properties.minor}, "
        f"{properties.multi_processor_count} multiprocessors, "
        f"{properties.total_memory / 2**30:.0f} GiB"
    )
    out = torch.empty(len(chosen), WIDTH, device="cuda")
    back = torch.empty_like(out)
    size = out.numel() * 4
    dense = slice(0, len(chosen))
    ring = Ring(2 * size + 128)
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

    def store() -> None:
        store_compact(back, None, ring, stream=down).wait().release()

    def both() -> None:
        gather(table, dense, out, stream=up)
        store()
        up.synchronize()

    rates = {
        "to device": _best(lambda: _finish(gather(table, dense, out))),
        "to host": _best(store),
        "both at once, each": _best(both),
    }
    yield f"link, {size >> 20} MiB: " + _rates(rates, size)
    ids = torch.from_numpy(chosen).cuda()
    shuffled = ids[torch.randperm(len(chosen), device="cuda")]
    rates = {
        "5 % sorted": _best(lambda: _finish(gather(table, ids, out))),
        "5 % in random order": _best(lambda: _finish(gather(table, shuffled, out))),
    }
    yield "gather: " + _rates(rates, size)


def _finish(_: torch.Tensor) -> None:
    sys.modules["torch"].cuda.synchronize()


def _rates(seconds: dict[str, float], size: int) -> str:
    return ", ".join(f"{name} {size / best / 1e9:.1f} GB/s" for name, best in seconds.items())


def _best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of several runs, the first one left out."""
    work()
    times = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)
