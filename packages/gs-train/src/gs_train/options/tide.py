# SPDX-License-Identifier: Apache-2.0
"""The options of rows that are in blocks on a drive, and what such rows cannot do yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gs_train.errors import InputError
from gs_train.sizes import Count, parse_bytes

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


def check_tide(
    offload: str,
    *,
    strategy: str,
    semantics: str,
    regularise: str,
    weights: Mapping[str, float],
    gpus: str | None,
) -> None:
    """Check the options of a run whose rows are in blocks on a drive.

    Args:
        offload: the preset that keeps them there.
        strategy, semantics, regularise, gpus: of the run.
        weights: of losses of all rows, by option.

    Raises:
        InputError: rows in blocks cannot do what an option asks for; names the option, and what to
            give instead.
    """
    name = f"--offload {offload}"
    if strategy != "fixed":
        raise InputError(
            f"{name} trains a fixed number of Gaussians: give --strategy fixed, got {strategy}"
        )
    if semantics != "dense":
        raise InputError(
            f"{name} needs --semantics dense, got {semantics}; --offload best takes both"
        )
    if regularise != "all":
        raise InputError(
            f"{name} has no --regularise {regularise}: leave it out, with --opacity-reg 0 "
            "and --scale-reg 0, or take --offload best"
        )
    for option, weight in weights.items():
        if weight:
            raise InputError(
                f"{name} cannot regularise all Gaussians in every step: {option} must be 0, got "
                f"{weight:g}; --offload best takes any"
            )
    if gpus not in (None, "1"):
        raise InputError(
            f"{name} is for one GPU: leave --gpus out, or take --offload none or best, got "
            f"--gpus {gpus}"
        )
