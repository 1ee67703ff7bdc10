# SPDX-License-Identifier: Apache-2.0
"""``--offload auto``: the fastest preset whose memory fits."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gs_train.errors import InputError
from gs_train.options.config import FitConfig
from gs_train.options.presets import PRESETS, Preset, preset_named
from gs_train.sizes import format_bytes
from gs_train.sizing.budget import Need, need
from gs_train.sizing.caps import PROCESS_BYTES, Caps
from gs_train.sizing.fitting import fit_into
from gs_train.sizing.room import Room, residents_least, room_least, room_wanted
from gs_train.sizing.workload import Workload

GROWTH = 30
"""Adaptive density control without a cap is expected to reach so many times the first points."""

_CANDIDATES = ("none", "best")  # the faster first

_SMALLER = ("clm", "naive", "gs-scale")
"""What is left where neither fits, the faster first: a scene of few rows may have no room for the
two rings through which ``best`` moves rows where the host updates them. ``gs-scale`` has two too,
and needs least of the device.
"""


@dataclass(frozen=True)
class Choice:
    """A preset and what it was chosen for.

    Attributes:
        preset: which.
        room: what its working memory is dimensioned for.
        need: bytes by part.
        n_rows: Gaussians that these are for.
        reason: one line.
    """

    preset: Preset
    room: Room
    need: Need
    n_rows: int
    reason: str


def expected_rows(config: FitConfig, n_now: int) -> int:
    """The number of Gaussians that memory has to be there for.

    The cap of the options where there is one. Without one it is a guess: ``GROWTH`` times the
    present number while densification lies ahead, and the present number where it never starts.
    """
    if config.strategy == "mcmc":
        return max(n_now, config.mcmc.cap_max if config.cap is None else config.cap)
    cap = config.adc.cap if config.cap is None else config.cap
    if cap is not None:
        return max(n_now, cap)
    images = config.steps * config.batch_size
    grows = config.adc.refine_start < min(images, config.adc.refine_stop)
    return n_now * GROWTH if grows else n_now


def statistics_bytes(config: FitConfig) -> int:
    """Bytes a row on the device that densification keeps between steps, or takes to refine."""
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

    Raises:
        InputError: nothing fits. Says the smallest caps that would do, and for which preset.
    """
    if config.offload != "auto":
        preset = preset_named(config.offload).splitting_above(config.mem_limit)
        room = fit_into(preset, work, caps, grows_to=expected_rows(config, work.n_rows))
        if room is None:
            raise _too_small((preset,), work, caps)
        return _choice(preset, work, room, "as --offload says")
    later = work.with_rows(expected_rows(config, work.n_rows))
    for preset in (PRESETS[name] for name in (*_CANDIDATES, *_SMALLER)):
        if _is_able(preset, config):
            preset = preset.splitting_above(config.mem_limit)
            room = fit_into(preset, later, caps)
            if room is not None:
                return _choice(preset, later, room, _memory_reason(preset, later, caps))
    able = tuple(PRESETS[name] for name in PRESETS if _is_able(PRESETS[name], config))
    raise _too_small(able, later, caps)


def smallest_rooms(preset: Preset, work: Workload) -> list[Room]:
    """What a preset gets along with, in the ways that it has: views in parts, nothing kept longer
    than it must be. With residents that needs less on the host, and more on the device."""
    rooms = [room_least(preset, work)]
    if preset.travels:
        rooms.append(residents_least(preset, work))
    return rooms


def smallest_caps(preset: Preset, work: Workload) -> list[Need]:
    """What a preset needs in each of `smallest_rooms`."""
    return [need(preset, work, room) for room in smallest_rooms(preset, work)]


def _is_able(preset: Preset, config: FitConfig) -> bool:
    """Whether a run with these options can use the preset."""
    is_wanted = config.batch_size == 1 or not preset.single_view
    return is_wanted and (config.semantics == "dense" or preset.placement != "mirror")


def _choice(preset: Preset, work: Workload, room: Room, reason: str) -> Choice:
    return Choice(preset, room, need(preset, work, room), work.n_rows, reason)


def _memory_reason(preset: Preset, work: Workload, caps: Caps) -> str:
    wanted = need(PRESETS["none"], work, room_wanted(PRESETS["none"], work)).device_bytes
    sizes = f"{format_bytes(wanted)} for {work.n_rows:,} Gaussians, {format_bytes(caps.device)}"
    if preset.placement == "device":
        return f"all of it fits on the device ({sizes} there)"
    what = "appearance is" if preset.placement == "split" else "moments are"
    reason = f"not all of it fits on the device ({sizes} there), so {what} in host memory"
    if preset.name in _CANDIDATES:
        return reason
    return f"{reason}; best does not fit either"


def _too_small(presets: tuple[Preset, ...], work: Workload, caps: Caps) -> InputError:
    least = [(preset, each) for preset in presets for each in smallest_caps(preset, work)]
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
