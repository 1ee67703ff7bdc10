# SPDX-License-Identifier: Apache-2.0
"""How fast this machine copies, updates and renders: a few timed micro-measurements."""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import gs_adam
import gs_cull
import gs_pinned
from gs_train.atomic import replacing
from gs_train.errors import InputError
from gs_train.loss import Crop, photometric_loss
from gs_train.renderers import Renderer, Rows, View

_REPEATS = 3
_WIDTH = 48  # floats of a row: the appearance of one Gaussian
_SHARE = 0.05  # of the rows that sparse measurements touch
_TABLE_BYTES = {"cuda": 768 << 20, "cpu": 96 << 20}
_RENDERED_ROWS = {"cuda": 2_000_000, "cpu": 20_000}


@dataclass(frozen=True)
class Rates:
    """What was measured. Bytes a second unless said otherwise.

    Attributes:
        device: name of what renders.
        to_device, to_host: page-locked copies, alone.
        both: the same at once, each way.
        gather: sorted rows, one in twenty, from a page-locked table to the device.
        device_adam: dense Adam on the device, 24 bytes a value.
        host_adam: Adam on all host rows without gradients, 24 bytes a value.
        host_rows: Adam on sorted host rows, one in twenty, 28 bytes a value.
        cull_rows: rows a second that one view is culled at.
        view_s: seconds that a view costs whatever it sees: rendering, loss and both backward.
        row_s: seconds more for each row that it sees.
    """

    device: str
    to_device: float
    to_host: float
    both: float
    gather: float
    device_adam: float
    host_adam: float
    host_rows: float
    cull_rows: float
    view_s: float
    row_s: float

    def save(self, path: Path) -> None:
        """Write as JSON, to be read by :meth:`load`."""
        with replacing(path) as file:
            file.write((json.dumps(dataclasses.asdict(self), indent=2) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Rates:
        """Read what :meth:`save` wrote.

        Raises:
            InputError: the file is no such JSON, or a rate is not positive.
        """
        try:
            values = json.loads(path.read_text())
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise InputError(f"--offload-rates {path} cannot be read: {error}") from None
        names = [field.name for field in dataclasses.fields(cls)]
        if not isinstance(values, dict) or set(values) != set(names):
            raise InputError(
                f"--offload-rates {path} must hold {', '.join(names)} and nothing else"
            )
        for name in names[1:]:
            value = values[name]
            may_be_zero = name in ("view_s", "row_s")
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                value = math.nan
            if not value > 0 and not (may_be_zero and value == 0):
                raise InputError(
                    f"--offload-rates {path}: {name} must be positive, got {values[name]}"
                )
        return cls(**values)


def measure_rates(renderer: Renderer, rows: Rows, view: View, *, n_visible: int) -> Rates:
    """Measure, in a few seconds (ten more where the CPU renderer compiles).

    Args:
        renderer: whose device and speed count.
        rows: the six attributes of some rows that ``view`` sees, on the renderer's device.
        view: to render.
        n_visible: rows that a view of the scene to predict sees; ``rows`` are repeated, smaller,
            to be as many, up to two million (20 thousand on the CPU).
    """
    device = renderer.device
    to_device, to_host, both, gather = _link(device)
    host_adam, host_rows = _host_adam(device)
    view_s, row_s = _rendering(renderer, rows, view, n_visible)
    return Rates(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        to_device=to_device,
        to_host=to_host,
        both=both,
        gather=gather,
        device_adam=_device_adam(device),
        host_adam=host_adam,
        host_rows=host_rows,
        cull_rows=_culling(renderer, rows, view),
        view_s=view_s,
        row_s=row_s,
    )


def _link(device: torch.device) -> tuple[float, float, float, float]:
    """Bytes a second to the device, to the host, both at once, and of gathered rows."""
    n = _TABLE_BYTES[device.type] // (4 * _WIDTH)
    n_moved = int(n * _SHARE) * 2
    ids = _some_rows(n).to(device)
    up, down = _stream(device), _stream(device)
    with gs_pinned.Table(n, _WIDTH) as table, gs_pinned.Table(n_moved, _WIDTH) as back:
        there = torch.zeros(n_moved, _WIDTH, device=device)
        leaving = torch.zeros_like(there)
        gathered = torch.empty(len(ids), _WIDTH, device=device)
        source, target = table.torch()[:n_moved], back.torch()

        def send() -> None:
            with _on(up):
                there.copy_(source, non_blocking=True)

        def fetch() -> None:
            with _on(down):
                target.copy_(leaving, non_blocking=True)

        def exchange() -> None:
            send()
            fetch()

        size = 4.0 * source.numel()
        rates = [size / _seconds(work, device) for work in (send, fetch, exchange)]
        gather = (
            4.0
            * gathered.numel()
            / _seconds(lambda: gs_pinned.gather(table, ids, gathered), device)
        )
    return rates[0], rates[1], rates[2], gather


def _host_adam(device: torch.device) -> tuple[float, float]:
    """Bytes a second of rows without gradients, all of them, and of sorted rows with."""
    n = _TABLE_BYTES[device.type] // (4 * _WIDTH) // 3
    ids = _some_rows(n)
    gradients = [torch.full((len(ids), _WIDTH), 1e-3)]
    rates = []
    for semantics in ("dense", "sparse"):
        values = torch.nn.Parameter(torch.zeros(n, _WIDTH))
        optimizer = gs_adam.HostAdam([values], lr=1e-3, semantics=semantics)

        def step(optimizer: gs_adam.HostAdam = optimizer, semantics: str = semantics) -> None:
            number = optimizer.begin_step()
            if semantics == "sparse":
                optimizer.update(ids, gradients, step=number)
            optimizer.end_step(number)

        size = 24.0 * values.numel() if semantics == "dense" else 28.0 * gradients[0].numel()
        rates.append(size / _seconds(step, torch.device("cpu")))
    return rates[0], rates[1]


def _device_adam(device: torch.device) -> float:
    n = _TABLE_BYTES[device.type] // (4 * _WIDTH)
    params = [torch.nn.Parameter(torch.zeros(n, width, device=device)) for width in (3, 3, 4, 1)]
    ids = _some_rows(n).to(device)
    gradients = [torch.full((len(ids), *p.shape[1:]), 1e-3, device=device) for p in params]
    optimizer = gs_adam.DeviceAdam(params, lr=1e-3)
    seconds = _seconds(lambda: optimizer.step(ids, gradients), device)
    return 24.0 * sum(p.numel() for p in params) / seconds


def _culling(renderer: Renderer, rows: Rows, view: View) -> float:
    """Rows a second, of rows most of which the view does not see."""
    n = _TABLE_BYTES[renderer.device.type] // (4 * _WIDTH)
    repeat = -(-n // len(rows["means"]))
    geometry = {
        name: rows[name].repeat(repeat, *[1] * (rows[name].ndim - 1))[:n].contiguous()
        for name in ("means", "scales", "quats", "opacities")
    }
    away = torch.ones(n, dtype=torch.bool, device=renderer.device)
    away[:: round(1 / _SHARE)] = False
    geometry["means"][away] -= 1e3 * view.viewmat[2, :3]  # behind the camera

    def cull() -> None:
        gs_cull.cull(
            geometry["means"],
            geometry["scales"],
            geometry["quats"],
            view.viewmat[None],
            view.K[None],
            view.width,
            view.height,
            opacities=geometry["opacities"],
            **renderer.options._asdict(),
        )

    return n / _seconds(cull, renderer.device)


def _rendering(renderer: Renderer, rows: Rows, view: View, n_visible: int) -> tuple[float, float]:
    """Seconds of a view, and of each row more, from two numbers of rows."""
    most = min(max(n_visible, 8), _RENDERED_ROWS[renderer.device.type])
    few = max(most // 4, 2)
    truth = torch.full((view.height, view.width, 3), 128, dtype=torch.uint8, device=renderer.device)

    def seconds(n: int) -> float:
        some = _repeated(rows, n)
        return _seconds(lambda: _render(renderer, some, view, truth), renderer.device)

    short, long = seconds(few), seconds(most)
    row_s = max(0.0, (long - short) / (most - few))
    return max(0.0, long - row_s * most), row_s


def _render(renderer: Renderer, rows: Rows, view: View, truth: Tensor) -> None:
    leaves = {name: values.detach().requires_grad_() for name, values in rows.items()}
    degree = math.isqrt(rows["shN"].shape[1] + 1) - 1
    splats = renderer.project(leaves, view, sh_degree=degree)
    image, _ = renderer.rasterize(splats)
    photometric_loss(image, truth, Crop(view, view.rect), 0.2).backward()


def _repeated(rows: Rows, n: int) -> dict[str, Tensor]:
    """``n`` rows: some of these, or all of them several times, smaller and moved within
    themselves."""
    n_given = len(rows["means"])
    if n <= n_given:
        at = torch.arange(n, device=rows["means"].device) * n_given // n
        return {name: values[at] for name, values in rows.items()}
    at = torch.arange(n, device=rows["means"].device) % n_given
    repeated = {name: values[at] for name, values in rows.items()}
    # The golden ratio spreads a row's copies evenly, and takes no random numbers.
    turn = (torch.arange(n, device=at.device) * 0.6180339887) % 1.0
    angles = 2 * math.pi * turn[:, None] + torch.tensor([0.0, 2.1, 4.2], device=at.device)
    repeated["means"] = repeated["means"] + torch.exp(repeated["scales"]) * torch.cos(angles)
    repeated["scales"] = repeated["scales"] - 0.5 * math.log(n / n_given)
    return repeated


def _some_rows(n: int) -> Tensor:
    """Sorted ids of about one row in twenty, in no pattern."""
    chosen = np.random.default_rng(0).random(n) < _SHARE
    return torch.from_numpy(np.flatnonzero(chosen).astype(np.int32))


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """The shortest of several runs after one that warms up."""

    def timed() -> float:
        _finish(device)
        start = time.perf_counter()
        work()
        _finish(device)
        return time.perf_counter() - start

    timed()
    return max(min(timed() for _ in range(_REPEATS)), 1e-9)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _on(stream: torch.cuda.Stream | None) -> torch.cuda.StreamContext:
    return torch.cuda.stream(stream)  # with None it does nothing
