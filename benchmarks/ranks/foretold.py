# SPDX-License-Identifier: Apache-2.0
"""What ``gs-train plan`` foretells of a made scene, to stand beside what was measured."""

from __future__ import annotations

import dataclasses
import multiprocessing
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

import gs_order
from gs_train.options.limits import UNLIMITED, Limits
from gs_train.options.presets import PRESETS
from gs_train.renderers import Renderer, View
from gs_train.sizing.census import measure_workload
from gs_train.sizing.fitting import fit_into, limits_within, smallest_rooms
from gs_train.sizing.forecasts import need, predict, room_under
from gs_train.sizing.memory import MOST_ROWS, Caps, available_bytes, largest
from gs_train.sizing.peer_link import measure_between_gpus
from gs_train.sizing.rates import Rates, rates_for
from gs_train.sizing.workload import Workload


def between_gpus() -> float | None:
    """See `measure_between_gpus`: in a process of its own, which leaves nothing on any GPU."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        rate: float | None = pool.apply(measure_between_gpus)
    return rate


def workloads_of(
    rows: Mapping[str, Tensor], views: list[View], renderer: Renderer, batches: Iterable[int]
) -> dict[int, Workload]:
    """What batches of each size see of all rows, in shuffled epochs, on one rank."""
    return {
        batch: measure_workload(
            rows, views, renderer, n_rows=len(rows["means"]), sh_degree=3, batch_size=batch,
            sampler=gs_order.ViewSampler(len(views), batch),
        )
        for batch in set(batches)
    }  # fmt: skip


class Foretelling:
    """The forecasts of a scene whose rows are not limited, by rates measured on this rank.

    Args:
        rows: all of the scene.
        views: of the scene, on the renderer's device.
        renderer: draws.
        batches: the sizes that will be asked for.
        between_gpus: what `between_gpus` gives.

    Cost: some seconds for the rates, and for the census of each batch size.
    """

    def __init__(
        self,
        rows: Mapping[str, Tensor],
        views: list[View],
        renderer: Renderer,
        batches: Iterable[int],
        between_gpus: float | None,
    ) -> None:
        self._works = workloads_of(rows, views, renderer, batches)
        work = self._works[max(self._works)]
        rates: Rates | None = rates_for(work, dict(rows), views, renderer)
        if rates is not None and rates.is_of_gpu:
            rates = dataclasses.replace(rates, between_gpus=between_gpus)
        self._rates = rates

    def of(self, preset: str, batch: int, ranks: int) -> dict[str, Any]:
        """Facts of a line: images a second of all ranks, and the device's bytes of one rank, all of
        them and by part; nothing where no rates could be measured."""
        if self._rates is None:
            return {}
        work = self._works[batch]
        if ranks > 1:
            work = work.share(ranks)
        room = room_under(PRESETS[preset], work, UNLIMITED)
        needed = need(PRESETS[preset], work, room)
        speed = predict(PRESETS[preset], work, self._rates, room)
        return {
            "foretold_images_per_second": speed.images_per_second,
            "foretold_device_bytes": needed.device_bytes,
            "foretold_device_parts": needed.device,
        }


def caps_of_rank(cap_bytes: int, device: torch.device, ranks: int) -> Caps:
    """Memory of one of several ranks that may take so much of its device."""
    gaps = 1.06 if device.type == "cuda" else 1.0  # as of `caps_of`
    return Caps(cap_bytes, int(0.8 * available_bytes()) // ranks, is_given=True, gaps=gaps)


def largest_of(preset: str, work: Workload, caps: Caps, ranks: int) -> int:
    """The most rows that all ranks together hold, as foretold.

    Args:
        work: of all rows on one rank.
        caps: of each rank.
    """

    def fits(n: int) -> bool:
        return fit_into(PRESETS[preset], _of_rank(work, n, ranks), caps) is not None

    return largest(ranks, MOST_ROWS, fits) if fits(ranks) else 0


def limits_of(
    preset: str, work: Workload, caps: Caps, n_rows: int, ranks: int
) -> tuple[Limits, bool]:
    """The limits of a rank in a run of so many rows, and whether it is foretold to fit; those of
    the least room where it is not."""
    own = _of_rank(work, n_rows, ranks)
    room = fit_into(PRESETS[preset], own, caps)
    if room is None:
        return smallest_rooms(PRESETS[preset], own)[-1], False
    return limits_within(PRESETS[preset], own, caps, room), True


def _of_rank(work: Workload, n_rows: int, ranks: int) -> Workload:
    whole = work.with_rows(n_rows)
    return whole.share(ranks) if ranks > 1 else whole
