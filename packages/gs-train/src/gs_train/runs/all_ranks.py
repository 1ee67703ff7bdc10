# SPDX-License-Identifier: Apache-2.0
"""A command on all ranks of this machine: one of them speaks, all have the same options, and a stop
reaches all of them. A process that is alone is a world of one."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal

import torch

from gs_train.files.agreement import by_first
from gs_train.machine.interrupt import Interrupted, StopRequest
from gs_train.runs.folder import RunFolder
from gs_train.runs.guard import in_one_line
from gs_train.world import SharedStop, World, joined

Kind = Literal["cuda", "cpu"]


def kind_of(renderer: str) -> Kind:
    """The kind of device of each rank.

    Args:
        renderer: named as on the command line.
    """
    return "cuda" if renderer != "cpu" and torch.cuda.is_available() else "cpu"


@contextlib.contextmanager
def on_all_ranks(kind: Kind, folder: RunFolder) -> Iterator[World]:
    """The ranks that this process is one of, see :func:`gs_train.world.joined`; while entered,
    ranks but the first print nothing.

    Args:
        kind: of device of each rank.
        folder: of the run that the command is about.
    """

    def describe(error: BaseException) -> str:
        if isinstance(error, Exception):
            return in_one_line(error, folder)[0]
        return type(error).__name__

    with joined(kind, describe=describe) as world, _quiet(world):
        yield world


def agree_on_options(world: World, options: Mapping[str, Any]) -> None:
    """Make sure that all ranks have the same version and the same options. A collective.

    Args:
        options: by name, as JSON has them.
    """
    if world.size == 1:
        return
    world.agree("the version of gs-train", importlib.metadata.version("gs-train"))
    for name, value in options.items():
        world.agree(f"--{name.replace('_', '-')}", value)


def stop_of_all(own: StopRequest, world: World) -> StopRequest | SharedStop:
    """The request of this process, or those of all ranks."""
    return own if world.size == 1 else SharedStop(own)


def check_stop(stop: StopRequest | SharedStop, world: World, work: str) -> None:
    """Raise Interrupted where a stop was asked for. A collective."""
    if isinstance(stop, SharedStop):
        stop.share(world)
    stop.check(work)


def by_first_unless_stopped(world: World, work: Callable[[], Any]) -> Any:
    """What rank 0 got from some work, on all ranks; all are stopped where rank 0 was. A collective.

    Args:
        work: gives what JSON has.
    """
    if world.size == 1:
        return work()

    def outcome() -> dict[str, Any]:
        try:
            return {"result": work()}
        except Interrupted as stopped:
            return {"signal": stopped.signal_number, "message": str(stopped)}

    told = by_first(world, outcome)
    if "signal" in told:
        raise Interrupted(told["signal"], told["message"], is_common=True)
    return told["result"]


@contextlib.contextmanager
def _quiet(world: World) -> Iterator[None]:
    if world.rank == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
        yield
