# SPDX-License-Identifier: Apache-2.0
"""How fast a machine copies, updates and renders: measured, or read from a file."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from gs_train.errors import InputError
from gs_train.files.atomic import replacing
from gs_train.machine.out_of_memory import memory_that_ran_out
from gs_train.renderers import Renderer, Rows, View
from gs_train.sizing.census import middle_view
from gs_train.sizing.timings import Begin, time_device_adam, time_host_adam, time_link, time_views
from gs_train.sizing.workload import Workload

STAGES = 5
"""Things that `measure_rates` measures one after another."""

_LATER = "between_gpus"

_SAMPLED_ROWS = 1_000_000
"""Rows that are on the device while rates are measured, at most."""


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
        between_gpus: what a GPU sends to another one while it receives as much; None: not
            measured.
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
    between_gpus: float | None = None

    @property
    def between_ranks(self) -> float:
        """What a rank sends to others; as through the host where it was not measured."""
        return self.both if self.between_gpus is None else self.between_gpus

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
        if isinstance(values, dict) and values.get(_LATER) is None:  # or of an earlier version
            values[_LATER] = None
        if not isinstance(values, dict) or set(values) != set(names):
            raise InputError(
                f"--offload-rates {path} must hold {', '.join(names)} and nothing else"
            )
        for name in names[1:]:
            value = values[name]
            if name == _LATER and value is None:
                continue
            is_rate = isinstance(value, int | float) and 0 <= value < math.inf
            if not is_rate or (value == 0 and not name.endswith("_s")):
                raise InputError(f"--offload-rates {path}: {name} must be positive, got {value}")
        return cls(**values)


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
    measured = time_link(device)
    begin("Adam on the host")
    measured |= time_host_adam(device)
    begin("Adam on the device")
    measured |= time_device_adam(device)
    measured |= time_views(renderer, rows, view, n_visible, n_first, begin=begin)
    gc.collect()  # optimizers and what they are made of refer to one another
    if device.type == "cuda":
        torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    return Rates(name, **measured)


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


def rates_for(
    work: Workload,
    rows: Rows,
    views: list[View],
    renderer: Renderer,
    *,
    begin: Begin = lambda _: None,
) -> Rates | None:
    """The machine's, in some seconds; None where that takes more memory than there is, or where no
    view sees any row.

    Args:
        work: of the scene as it will be.
        rows: as it is now, on any device.
        begin: see :func:`measure_rates`.
    """
    n_first = len(rows["means"])
    every = -(-n_first // _SAMPLED_ROWS)

    def sampled(ids: Tensor) -> dict[str, Tensor]:
        chosen = {name: values[ids] for name, values in some.items()}
        # As large as covers what all rows cover.
        chosen["scales"] = chosen["scales"] + 0.5 * math.log(every)
        return chosen

    try:
        some = {
            name: values.detach()[::every].to(renderer.device).contiguous()
            for name, values in rows.items()
        }
        return measure_rates_for(work, some, views, renderer, sampled, n_first=n_first, begin=begin)
    except (MemoryError, RuntimeError) as error:
        if memory_that_ran_out(error) is None:
            raise
        return None
