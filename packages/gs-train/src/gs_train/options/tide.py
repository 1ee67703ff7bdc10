# SPDX-License-Identifier: Apache-2.0
"""The options of rows that are in blocks on a drive, and what such rows cannot do yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gs_train.errors import InputError
from gs_train.sizes import Count, parse_bytes

if TYPE_CHECKING:
    from gs_train.options.config import FitConfig

MOST_BLOCK_ROWS = 8192
LEAST_BLOCK_ROWS = 16


@dataclass(frozen=True)
class TideConfig:
    """How much of the rows is in memory; no result depends on it.

    Attributes:
        slots: blocks of Gaussians that the device holds (as many as half of its memory holds).
        arena: memory of the host for blocks of Gaussians, such as 8GiB (most of what is there).
    """

    slots: Count | None = None
    arena: str | None = None

    def __post_init__(self) -> None:
        if self.slots is not None and (type(self.slots) is not int or self.slots < 1):
            raise InputError(f"--tide.slots must be at least 1, got {self.slots}")
        if self.arena_bytes is not None and self.arena_bytes < 1:
            raise InputError(f"--tide.arena must be at least one byte, got {self.arena}")

    @property
    def arena_bytes(self) -> int | None:
        """``arena`` in bytes; None: not given.

        Raises:
            InputError: the text is no size.
        """
        return None if self.arena is None else parse_bytes(self.arena, option="--tide.arena")


def check_tide(config: FitConfig) -> None:
    """Check the options of a run whose rows are in blocks on a drive.

    Raises:
        InputError: rows in blocks cannot do what an option asks for; names the option, and what to
            give instead.
    """
    name = f"--offload {config.offload}"
    if config.strategy != "fixed":
        raise InputError(
            f"{name} trains a fixed number of Gaussians: give --strategy fixed, got "
            f"{config.strategy}"
        )
    if config.semantics != "dense":
        raise InputError(
            f"{name} needs --semantics dense, got {config.semantics}; --offload best takes both"
        )
    if config.regularise != "all":
        raise InputError(
            f"{name} has no --regularise {config.regularise}: leave it out, with --opacity-reg 0 "
            "and --scale-reg 0, or take --offload best"
        )
    for option in ("opacity_reg", "scale_reg"):
        weight, given = config.by_strategy(option), f"--{option.replace('_', '-')}"
        if weight:
            raise InputError(
                f"{name} cannot regularise all Gaussians in every step: {given} must be 0, got "
                f"{weight:g}; --offload best takes any"
            )
    if config.gpus not in (None, "1"):
        raise InputError(
            f"{name} is for one GPU: leave --gpus out, or take --offload none or best, got "
            f"--gpus {config.gpus}"
        )
