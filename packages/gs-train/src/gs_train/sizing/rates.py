# SPDX-License-Identifier: Apache-2.0
"""How fast this machine copies, updates and renders: a few timed micro-measurements."""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import gs_adam
import gs_pinned
from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.renderers import Renderer, Rows, View
from gs_train.rows.attributes import GEOMETRY_WIDTH
from gs_train.sizing.timed import seconds_of, table_rows
from gs_train.sizing.view_rates import Begin, measure_views
from gs_train.sizing.workload import Workload, middle_view

_WIDTH = 48  # floats of a row: the appearance of one Gaussian
_SHARE = 0.05  # of the rows that sparse measurements touch
_ROUNDS = 4  # choices of these rows that take turns, so that no cache holds them all


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
        cull_rows: rows a second more that a view is culled from, or the first of a batch.
        cull_more_rows: the same of each further view of a batch that is culled at once.
        view_s: seconds that a view costs whatever it sees: culling, rendering, loss, backward, when
            each view is culled before it is drawn.
        row_s: seconds more for each row that it sees: these, reading it and adding its gradient.
        batch_view_s, batch_row_s: the same when a batch is culled at once, while the one before
            renders.
        batch_s: seconds that such a batch costs whatever its size.
        streamed_view_s, streamed_row_s: of views in a batch of eight whose rows come for it alone
            and which the host updates: what it costs whatever its size is spread over these.
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
    cull_more_rows: float
    view_s: float
    row_s: float
    batch_view_s: float
    batch_row_s: float
    batch_s: float
    streamed_view_s: float
    streamed_row_s: float

    @property
    def is_of_gpu(self) -> bool:
        """Whether what renders is no CPU."""
        return self.device != "CPU"

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
            may_be_zero = name.endswith("_s")
            if not isinstance(value, int | float) or not 0 <= value < math.inf:
                value = math.nan
            if not value > 0 and not (may_be_zero and value == 0):
                raise InputError(
                    f"--offload-rates {path}: {name} must be positive, got {values[name]}"
                )
        return cls(**values)


STAGES = 5
"""Things that `measure_rates` measures one after another."""


def measure_rates(
    renderer: Renderer,
    rows: Rows,
    view: View,
    *,
    n_visible: int,
    n_first: int | None = None,
    begin: Begin = lambda _: None,
) -> Rates:
    """Measure, in a few seconds (ten more where the CPU renderer compiles).

    On a machine where others work at the same time, the rates are those that they leave.

    Args:
        renderer: whose device and speed count.
        rows: the six attributes of some rows that ``view`` sees, on the renderer's device.
        view: to render.
        n_visible: rows that a view of the scene to predict sees; ``rows`` are repeated, smaller,
            to be as many, up to two million (400 thousand on the CPU) and what memory is free for.
        n_first: rows that it sees when training begins, where that is known.
        begin: called with the name of what is measured next, of `STAGES`.

    Cost: on a GPU about 1.5 GiB of device memory, or what rendering takes, and 2.3 GiB of host
        memory; less where less is free. All of it is given back.
    """
    device = renderer.device
    begin("copies between host and device")
    to_device, to_host, both, gather = _link(device)
    begin("Adam on the host")
    host_adam, host_rows = _host_adam(device)
    begin("Adam on the device")
    device_adam = _device_adam(device)
    views = measure_views(renderer, rows, view, n_visible, n_first, begin=begin)
    gc.collect()  # optimizers and what they are made of refer to one another
    if device.type == "cuda":
        torch.cuda.empty_cache()
    return Rates(
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU",
        to_device=to_device,
        to_host=to_host,
        both=both,
        gather=gather,
        device_adam=device_adam,
        host_adam=host_adam,
        host_rows=host_rows,
        **views._asdict(),
    )


def measure_rates_for(
    work: Workload,
    geometry: Rows,
    views: Sequence[View],
    renderer: Renderer,
    rows_of: Callable[[Tensor], Rows],
    *,
    n_first: int | None = None,
    begin: Begin = lambda _: None,
) -> Rates | None:
    """:func:`measure_rates` with a view of a scene, one that sees neither most nor least.

    Args:
        work: the scene to predict.
        geometry: of some of its rows or all, on the renderer's device.
        views: of the scene.
        rows_of: gives the six attributes of (R,) int64 sorted rows of ``geometry``.
        n_first: rows of the scene when training begins, where that is known.
        begin: see :func:`measure_rates`.

    Returns:
        None where no view sees any of them.
    """
    middle = middle_view(geometry, list(views), renderer)
    if middle is None:
        return None
    view, ids = middle
    n_visible = round(work.mean.visible / work.batch_size)
    seen_first = None if n_first is None else round(n_visible * n_first / work.n_rows)
    return measure_rates(
        renderer, rows_of(ids), view, n_visible=n_visible, n_first=seen_first, begin=begin
    )


def _link(device: torch.device) -> tuple[float, float, float, float]:
    """Bytes a second to the device, to the host, both at once, and of gathered rows."""
    n = table_rows(device, 4 * _WIDTH)
    n_moved = n // 4
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

        def gather() -> None:
            gs_pinned.gather(table, ids, gathered)

        size = 4.0 * source.numel()
        return (
            size / seconds_of(send, device),
            size / seconds_of(fetch, device),
            size / seconds_of(exchange, device),
            4.0 * gathered.numel() / seconds_of(gather, device),
        )


def _host_adam(device: torch.device) -> tuple[float, float]:
    """Bytes a second of rows without gradients, all of them, and of sorted rows with."""
    n = table_rows(device, 4 * _WIDTH)
    rounds = [_some_rows(n, seed) for seed in range(_ROUNDS)]
    n_updated = sum(map(len, rounds)) / _ROUNDS
    turns = itertools.cycle(rounds)
    gradients = torch.full((max(map(len, rounds)), _WIDTH), 1e-3)
    # In large pages, as the engine's are. Moments of zero might cost less than others.
    values, *moments = (gs_pinned.Table(n, _WIDTH, pinned=False).torch() for _ in range(3))
    state = {"exp_avg": [moments[0].fill_(1.0)], "exp_avg_sq": [moments[1].fill_(1.0)]}
    dense = gs_adam.HostAdam([values], lr=1e-3, semantics="dense", state=state)
    sparse = gs_adam.HostAdam([values], lr=1e-3, semantics="sparse", state=state)

    def update_none() -> None:
        dense.end_step(dense.begin_step())

    def update_some() -> None:
        ids = next(turns)
        step = sparse.begin_step()
        sparse.update(ids, [gradients[: len(ids)]], step=step)
        sparse.end_step(step)

    host = torch.device("cpu")
    return (
        24.0 * n * _WIDTH / seconds_of(update_none, host),
        28.0 * n_updated * _WIDTH / seconds_of(update_some, host),
    )


def _device_adam(device: torch.device) -> float:
    """Bytes a second of dense Adam on geometry."""
    n = table_rows(device, 3 * 4 * GEOMETRY_WIDTH)  # values and moments
    params = [torch.nn.Parameter(torch.zeros(n, width, device=device)) for width in (3, 3, 4, 1)]
    ids = _some_rows(n).to(device)
    gradients = [torch.full((len(ids), *p.shape[1:]), 1e-3, device=device) for p in params]
    optimizer = gs_adam.DeviceAdam(params, lr=1e-3)
    optimizer.step(ids, gradients)
    for state in optimizer.state.values():  # moments of zero might cost less than others
        state["exp_avg"].fill_(1.0)
        state["exp_avg_sq"].fill_(1.0)
    seconds = seconds_of(lambda: optimizer.step(ids, gradients), device)
    return 24.0 * n * GEOMETRY_WIDTH / seconds


def _some_rows(n: int, seed: int = 0) -> Tensor:
    """Sorted ids of about one row in twenty, in no pattern."""
    chosen = np.random.default_rng(seed).random(n) < _SHARE
    return torch.from_numpy(np.flatnonzero(chosen).astype(np.int32))


def _stream(device: torch.device) -> torch.cuda.Stream | None:
    return torch.cuda.Stream(device) if device.type == "cuda" else None


def _on(stream: torch.cuda.Stream | None) -> torch.cuda.StreamContext:
    return torch.cuda.stream(stream)  # with None it does nothing
