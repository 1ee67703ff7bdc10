# SPDX-License-Identifier: Apache-2.0
"""What the parts of a batch take when each runs alone: the bound of any way to overlap them."""

from __future__ import annotations

import time

import torch

import gs_adam
from gs_train.engine.engine import Engine

_BYTES = 512 << 20
_UPDATE, _UNTOUCHED, _CATCH_UP, _CROSSING = 28, 24, 16, 8  # host bytes a value


def process_bytes() -> int:
    """Memory of the device in use, everything of the process included; 0 without a device."""
    if not torch.cuda.is_available():
        return 0
    free, total = torch.cuda.mem_get_info()
    return total - free


class Alone:
    """Rates measured once, and the seconds that follow for a batch.

    Attributes:
        render_s: seconds of an image without an optimizer; set by who has measured it.
    """

    def __init__(self, device: torch.device) -> None:
        self.render_s = 0.0
        self._device = device
        self._link = _link_rate(device)
        self._host = _host_rate()

    def parts(self, engine: Engine, batch: int) -> dict[str, float]:
        """Seconds an image of rendering with the device's optimizers, of the link (the busier
        direction, while both are in use), and of the host's memory."""
        stats, host = engine.stats, engine.model.appearance
        union, width = stats.union / stats.batches, host.width
        moved = max(stats.bytes_loaded, stats.bytes_stored) / stats.batches
        on_host = 0.0
        if not engine.is_resident:
            crossing = (stats.loaded + stats.stored) / 2 / stats.batches
            on_host = _UPDATE * union + _CROSSING * crossing
            if host.adam.semantics == "dense":
                on_host += _UNTOUCHED * (host.n_rows - union)
            else:
                on_host += _CATCH_UP * union
        adam = _seconds(lambda: _geometry_step(engine, int(union)), self._device)
        return {
            "render": self.render_s + adam / batch,
            "link": moved / self._link / batch,
            "host": on_host * width / self._host / batch,
        }


def _geometry_step(engine: Engine, union: int) -> None:
    params = engine.model.params
    n = engine.model.n_rows
    ids = torch.arange(0, n, max(1, n // max(1, union)), device=engine.model.device)
    engine.model.geometry.optimizer.step(ids, [p.detach()[ids] for p in params.values()])  # type: ignore[call-arg]


def _seconds(work: object, device: torch.device) -> float:
    best = float("inf")
    for _ in range(4):
        _wait(device)
        started = time.perf_counter()
        work()  # type: ignore[operator]
        _wait(device)
        best = min(best, time.perf_counter() - started)
    return best


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _link_rate(device: torch.device) -> float:
    """Bytes a second each way while copies go both ways."""
    if device.type != "cuda":
        return float("inf")
    host = [torch.empty(_BYTES, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
    there = [torch.empty(_BYTES, dtype=torch.uint8, device=device) for _ in range(2)]
    streams = [torch.cuda.Stream(device) for _ in range(2)]

    def copy() -> None:
        with torch.cuda.stream(streams[0]):
            there[0].copy_(host[0], non_blocking=True)
        with torch.cuda.stream(streams[1]):
            host[1].copy_(there[1], non_blocking=True)

    return _BYTES / _seconds(copy, device)


def _host_rate() -> float:
    """Bytes a second of a dense host step over all rows of a table."""
    n_rows, width = 4_000_000, 48
    values = torch.zeros(n_rows, width)
    adam = gs_adam.HostAdam([values], semantics="dense")
    grads = [torch.zeros(n_rows, width)]
    adam.step(None, grads)
    return _UPDATE * n_rows * width / _seconds(lambda: adam.step(None, grads), torch.device("cpu"))
