# SPDX-License-Identifier: Apache-2.0
"""``gs-train plan --gpus N``: what several GPUs of one machine need each, and whether they pay."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import torch

from gs_train.commands.plan_presets import auto_choice, predicted
from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS
from gs_train.rows.strands import N_STRANDS, most_rows_of_rank
from gs_train.runs.offload import share_of
from gs_train.sizes import parse_bytes
from gs_train.sizing.memory import Caps
from gs_train.sizing.rates import Rates
from gs_train.sizing.workload import Workload

_WORTH = 0.2  # of a GPU's speed, that each further one must add


def planned_ranks(gpus: str | None, renderer: str) -> int:
    """How many ranks to plan for; they need not be here.

    Raises:
        InputError: it is no number of ranks.
    """
    if gpus is None:
        return 1
    if gpus == "all" and renderer != "cpu" and torch.cuda.device_count():
        return torch.cuda.device_count()
    if not (gpus.isdecimal() and 1 <= int(gpus) <= N_STRANDS):
        raise InputError(
            f"--gpus must be from 1 to {N_STRANDS}, or all where this machine has GPUs, "
            f"got {gpus!r}"
        )
    return int(gpus)


def link_of(gpu_link: str | None) -> int | None:
    """Bytes a second that ``--gpu-link`` says.

    Raises:
        InputError: it is no size.
    """
    if gpu_link is None:
        return None
    rate = parse_bytes(gpu_link, option="--gpu-link")
    if rate < 1:
        raise InputError(f"--gpu-link must be at least one byte a second, got {gpu_link}")
    return rate


def with_link(rates: Rates, given: int | None) -> tuple[Rates, str]:
    """The rates, with the rate between GPUs that was given; and where that rate is from."""
    if given is not None:
        return replace(rates, between_gpus=float(given)), "as --gpu-link says"
    if rates.between_gpus is not None:
        return rates, "measured"
    return rates, "as between a GPU and host memory" if rates.is_of_gpu else "as copies in memory"


def plan_ranks(
    n_ranks: int,
    one: dict[str, Any],
    first: Workload,
    run: FitConfig,
    caps: Caps,
    rates_and_source: tuple[Rates, str],
) -> dict[str, Any]:
    """What each of several ranks needs, how fast all of them are, and a sentence about that.

    Forecasts are those that ``fit --offload auto`` asks on ranks, of a rank that owns as many rows
    as it may come to own.

    Args:
        one: of one GPU: ``n_rows``, ``auto`` and ``presets`` as ``plan --json`` prints them.
        first: what batches see of the rows that there are now.
        run, caps: of all ranks together.
        rates_and_source: from `with_link`.

    Returns:
        What ``plan --json`` has as ``ranks``. ``caps`` and bytes are of one rank, but for
        ``host_bytes_of_all``; ``largest_n`` and ``images_per_second`` are of all ranks together.
    """
    rates, source = rates_and_source
    work, run, caps = first.share(n_ranks), share_of(run, n_ranks), caps.share(n_ranks)
    n_rows = most_rows_of_rank(one["n_rows"], n_ranks)
    presets: dict[str, dict[str, Any]] = {}
    for name, preset in PRESETS.items():
        if preset.residents:  # those that ranks take
            of = predicted(preset, work, n_rows, run, caps, rates)
            of["host_bytes_of_all"] = n_ranks * of["host_bytes"]
            of["largest_n"] = _all_rows(of["largest_n"], n_ranks)
            presets[name] = of
    auto = _auto(replace(run, offload="auto"), work, caps)
    speed_up, verdict = _verdict(n_ranks, one, presets.get(auto["preset"] or ""), work, rates)
    return {
        "n_ranks": n_ranks,
        "n_rows": n_rows,
        "caps": asdict(caps),
        "between_ranks": rates.between_ranks,
        "between_ranks_source": source,
        "auto": auto,
        "presets": presets,
        "speed_up": speed_up,
        "verdict": verdict,
    }


def _auto(run: FitConfig, work: Workload, caps: Caps) -> dict[str, Any]:
    found = auto_choice(run, work, caps)
    if found["preset"] is None or PRESETS[found["preset"]].residents:
        return found
    return {"preset": None, "reason": "each GPU's share of the scene fits into no preset for ranks"}


def _all_rows(n_of_rank: int, n_ranks: int) -> int:
    """The rows of all ranks where one of them may own so many."""
    even = max(0, n_of_rank - 1) * n_ranks
    return even * 100 // (most_rows_of_rank(100, 1) - 1)


def _verdict(
    n_ranks: int,
    one: dict[str, Any],
    several: dict[str, Any] | None,
    work: Workload,
    rates: Rates,
) -> tuple[float | None, str]:
    """How many times the speed of one GPU several have, where both hold the scene; a sentence.

    Args:
        several: of the preset that ranks take; None where none fits.
    """
    what = "GPUs" if rates.is_of_gpu else "processes"
    alone = one["presets"][one["auto"]["preset"]] if one["auto"]["preset"] else None
    if several is None:
        also = " either" if alone is None else ""
        return None, f"{n_ranks} {what} do not hold the scene{also}"
    rate = f"{several['images_per_second']:.3g} images/s"
    if alone is None:
        return None, f"{n_ranks} {what} hold the scene, which one does not: {rate}"
    speed_up = several["images_per_second"] / alone["images_per_second"]
    times = f"{speed_up:.2f} times as fast as one ({rate})"
    if speed_up >= 1 + _WORTH * (n_ranks - 1):
        return speed_up, f"{n_ranks} {what} are {times}"
    more = "a second one does" if n_ranks == 2 else "so many do"
    return speed_up, f"{n_ranks} {what} are {times}: {more} not pay{_why(several, work, rates)}"


def _why(several: dict[str, Any], work: Workload, rates: Rates) -> str:
    if not rates.is_of_gpu:
        return ", for processes share the cores of this machine"
    seconds = several["seconds"]
    if seconds["exchange"] > seconds["device"] / 2:
        return (
            f", for splats travel {1e3 * seconds['exchange']:.3g} ms a step at "
            f"{rates.between_ranks / 1e9:.3g} GB/s, and drawing takes "
            f"{1e3 * seconds['device']:.3g} ms"
        )
    if several["bound"] == "host":
        return ", for the host updates rows that find no room on the device"
    if several["bound"] == "link":
        return ", for rows that find no room on the device come from the host"
    if work.batch_size % work.n_ranks:
        return (
            f" with --batch-size {work.batch_size}; a multiple of {work.n_ranks} lets each draw "
            "whole views"
        )
    return ""
