# SPDX-License-Identifier: Apache-2.0
"""``--offload auto``: the fastest preset whose memory fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.limits import Limits
from gs_train.options.presets import PRESETS, Preset, preset_named
from gs_train.sizes import format_bytes
from gs_train.sizing.fitting import fit_into, limits_within, smallest_rooms
from gs_train.sizing.forecasts import forecast_of, need
from gs_train.sizing.memory import PROCESS_BYTES, Caps, Need
from gs_train.sizing.workload import Workload
from gs_train.tide.block_room import BlockRoom

GROWTH = 30
"""Adaptive density control without a cap is expected to reach so many times the first points."""

_FASTEST_FIRST = ("none", "best", "clm", "naive", "gs-scale")
"""As ``auto`` tries the presets. A scene of few rows may have no room for the two rings through
which ``best`` moves rows where the host updates them. ``gs-scale`` has two too, and needs least of
the device.
"""


@dataclass(frozen=True)
class Choice:
    """Where the rows of a run live, and why.

    Attributes:
        preset: which.
        limits: of rows, where memory sets them.
        reason: one line for the user.
        host_bytes_before: memory that the process had resident before its rows got there; None
            where that cannot be told, or is not asked for.
        blocks: of a preset whose rows are on a drive: what memory has room for; None: of others.
    """

    preset: Preset
    limits: Limits
    reason: str
    host_bytes_before: int | None = None
    blocks: BlockRoom | None = None

    def to_plain(self) -> dict[str, Any]:
        """What a checkpoint keeps of it."""
        return {"preset": self.preset.name, "limits": self.limits.to_plain()}


def expected_rows(config: FitConfig, n_now: int) -> int:
    """The number of Gaussians that memory has to be there for.

    The cap of the options where there is one. Without one it is a guess: ``GROWTH`` times the
    present number while densification lies ahead, and the present number where it never starts.
    """
    if config.strategy == "fixed":
        return n_now
    cap = config.row_cap
    if cap is not None:
        return max(n_now, cap)
    images = config.steps * config.batch_size
    grows = config.adc.refine_start < min(images, config.adc.refine_stop)
    return n_now * GROWTH if grows else n_now


def statistics_bytes(config: FitConfig) -> int:
    """Bytes a row on the device that densification keeps between steps, or takes to refine."""
    if config.strategy == "fixed":
        return 0
    if config.strategy == "mcmc":
        return 32  # keys that are being sorted; later their order, opacities and their sums
    return 12 if config.adc.refine_scale2d_stop > 0 else 8


def choose(config: FitConfig, work: Workload, caps: Caps) -> Choice:
    """The preset of a run.

    ``auto`` takes ``none`` where it fits for ``expected_rows``: it updates rows as ``best`` does
    and moves none. Else it takes ``best``, and another one where neither fits. A preset that is
    named is refused only when it does not fit the rows that there are now.

    Args:
        config: the run's options.
        work: measured for the rows that there are now.
        caps: what the run may take.

    Returns:
        Without what the process had resident.

    Raises:
        InputError: nothing fits. Says the smallest caps that would do, and for which preset.
    """
    expected = expected_rows(config, work.n_rows)
    later = work.with_rows(expected)
    if config.offload != "auto":
        preset = preset_named(config.offload).splitting_above(config.mem_limit)
        room = fit_into(preset, work, caps, grows_to=expected)
        if room is None:
            raise _too_small([preset], work, caps)
        limits = limits_within(preset, work, caps, room, grows_to=expected)
        return Choice(preset, limits, "as --offload says")
    able = [preset for preset in PRESETS.values() if _is_able(preset, config)]
    for preset in sorted(able, key=lambda preset: _FASTEST_FIRST.index(preset.name)):
        preset = preset.splitting_above(config.mem_limit)
        room = fit_into(preset, later, caps)
        if room is not None:
            limits = limits_within(preset, later, caps, room)
            return Choice(preset, limits, _memory_reason(preset, later, caps))
    raise _too_small(able, later, caps)


def _is_able(preset: Preset, config: FitConfig) -> bool:
    """Whether a run with these options can use the preset."""
    is_wanted = config.batch_size == 1 or not preset.single_view
    return is_wanted and (config.semantics == "dense" or preset.takes_sparse)


def _memory_reason(preset: Preset, work: Workload, caps: Caps) -> str:
    wanted = need(PRESETS["none"], work).device_bytes
    sizes = f"{format_bytes(wanted)} for {work.n_rows:,} Gaussians, {format_bytes(caps.device)}"
    on_host = forecast_of(preset).on_host
    if on_host is None:
        return f"all of it fits on the device ({sizes} there)"
    reason = f"not all of it fits on the device ({sizes} there), so {on_host} in host memory"
    return reason if preset.name == "best" else f"{reason}; best does not fit either"


def _too_small(presets: list[Preset], work: Workload, caps: Caps) -> InputError:
    least = [
        (preset, need(preset, work, room))
        for preset in presets
        for room in smallest_rooms(preset, work)
    ]
    least = [(p, n) for p, n in least if not any(_is_less(other, n) for _, other in least)]
    given = replace(caps, process=PROCESS_BYTES)  # as where the options give it
    remedies = [
        f"--device-memory {_mib(caps.taken(n.device_bytes))} --host-memory "
        f"{_mib(given.taken_of_host(n))} with --offload {p.name}"
        for p, n in sorted(least, key=lambda pair: pair[1].device_bytes)
    ]
    return InputError(
        f"{work.n_rows:,} Gaussians do not fit into --device-memory {format_bytes(caps.device)} "
        f"and --host-memory {format_bytes(caps.host)}; the smallest that do: "
        f"{', or '.join(remedies)}; a smaller --cap or --max-side needs less"
    )


def _is_less(one: Need, other: Need) -> bool:
    """Of both memories."""
    return one.device_bytes < other.device_bytes and one.host_bytes < other.host_bytes


def _mib(n: int) -> str:
    """Bytes rounded up to whole MiB, as the options take them."""
    return f"{-(-n // 2**20)}MiB"
