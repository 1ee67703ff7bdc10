# SPDX-License-Identifier: Apache-2.0
"""``--offload auto``: the fastest preset whose memory fits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from gs_train.config import FitConfig
from gs_train.engine.budget import Need, need
from gs_train.engine.caps import PROCESS_BYTES, Caps
from gs_train.engine.fitting import fit_into
from gs_train.engine.presets import PRESETS, Preset, preset_named
from gs_train.engine.rates import Rates
from gs_train.engine.room import Room, residents_least, room_least, room_wanted
from gs_train.engine.speed import predict
from gs_train.engine.workload import Workload
from gs_train.errors import InputError
from gs_train.sizes import format_bytes

GROWTH = 30
"""Adaptive density control without a cap is expected to reach so many times the first points."""

_CANDIDATES = ("none", "best")

_SMALLER = ("clm", "naive", "gs-scale")
"""What is left where neither fits, the faster first: a scene of few rows may have no room for the
two rings through which ``best`` moves rows where the host updates them. ``gs-scale`` has two too,
and needs least of the device.
"""

_WORTH_COMPARING = 5_000_000
"""With fewer Gaussians a step is bound by launching it, of which ``none`` has least."""

_FASTER = 1.1
"""What is foretold is not more exact, and ``none`` leaves the host's memory alone."""


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
    """Bytes a row on the device that densification keeps between steps."""
    if config.strategy == "mcmc":
        return 4  # the order of the keys
    return 12 if config.adc.refine_scale2d_stop > 0 else 8


def choose(
    config: FitConfig,
    work: Workload,
    caps: Caps,
    rates: Callable[[Workload], Rates | None] = lambda _: None,
) -> Choice:
    """The preset of a run.

    ``auto`` takes ``none`` where it fits for ``expected_rows`` and ``best`` is not foretold to be
    faster, else ``best``, and another one where neither fits. A preset that is named is refused
    only when it does not fit the rows that there are now.

    Args:
        config: the run's options.
        work: measured for the rows that there are now.
        caps: what the run may take.
        rates: gives the machine's, for a scene of as many rows as are expected. Asked where both
            fit and there will be so many that updating them all may cost more than fetching some;
            None: not known.

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
    fitting = _fitting(_CANDIDATES, config, later, caps) or _fitting(_SMALLER, config, later, caps)
    if not fitting:
        able = tuple(PRESETS[name] for name in PRESETS if _is_able(PRESETS[name], config))
        raise _too_small(able, later, caps)
    names = tuple(choice.preset.name for choice in fitting)
    if names != _CANDIDATES or not _is_worth_comparing(config, later, caps):
        return fitting[0]
    none, best = fitting
    known = rates(later)
    return none if known is None else _faster(none, best, later, known)


def smallest_rooms(preset: Preset, work: Workload) -> list[Room]:
    """What a preset gets along with, in the ways that it has: views in parts, nothing kept longer
    than it must be. With residents that needs less on the host, and more on the device."""
    rooms = [room_least(preset, work)]
    if preset.residents:
        rooms.append(residents_least(preset, work))
    return rooms


def smallest_caps(preset: Preset, work: Workload) -> list[Need]:
    """What a preset needs in each of `smallest_rooms`."""
    return [need(preset, work, room) for room in smallest_rooms(preset, work)]


def _is_able(preset: Preset, config: FitConfig) -> bool:
    """Whether a run with these options can use the preset."""
    is_wanted = config.batch_size == 1 or not preset.single_view
    return is_wanted and (config.semantics == "dense" or preset.placement != "mirror")


def _fitting(names: tuple[str, ...], config: FitConfig, work: Workload, caps: Caps) -> list[Choice]:
    """Those of the presets that the run can use and that fit."""
    presets = [PRESETS[name].splitting_above(config.mem_limit) for name in names]
    rooms = [fit_into(p, work, caps) if _is_able(p, config) else None for p in presets]
    return [
        _choice(preset, work, room, _memory_reason(preset, work, caps))
        for preset, room in zip(presets, rooms)
        if room is not None
    ]


def _choice(preset: Preset, work: Workload, room: Room, reason: str) -> Choice:
    return Choice(preset, room, need(preset, work, room), work.n_rows, reason)


def _is_worth_comparing(config: FitConfig, work: Workload, caps: Caps) -> bool:
    """Whether ``best`` may be faster than ``none``, and it can be told: what is foretold is dense
    Adam, and rows that come while another batch renders, which MCMC's noise makes late."""
    is_foretold = config.semantics == "dense" and config.strategy == "adc"
    return is_foretold and not caps.shared and work.n_rows >= _WORTH_COMPARING


def _faster(none: Choice, best: Choice, work: Workload, rates: Rates) -> Choice:
    """The one that is foretold to train faster; the reason says so."""
    ours, theirs = (
        predict(of.preset, work, rates, of.room).images_per_second for of in (best, none)
    )
    expected = f"images/s expected: {ours:.0f} with best, {theirs:.0f} with none"
    if ours < _FASTER * theirs:
        return replace(none, reason=f"{none.reason}, and best is not much faster ({expected})")
    return replace(best, reason=f"all of it would fit on the device, but is slower so ({expected})")


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
