# SPDX-License-Identifier: Apache-2.0
"""Work of one rank, or of each, whose outcome all ranks know: the results, or one error for all.

A rank that meets trouble with a file tells the others instead of leaving them to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gs_train.errors import CommonError, InputError
from gs_train.world import World

Result = TypeVar("Result")


def by_first(world: World, work: Callable[[], Result]) -> Result:
    """What rank 0 got from some work, on all ranks; the other ranks do not do it.

    A collective. In a world of one the work is done, and its errors are as they are.

    Args:
        work: gives what JSON has.

    Raises:
        CommonError: rank 0 met an InputError or an OSError, and is named; on all ranks.
    """
    if world.size == 1:
        return work()
    told, cause = _outcome(work) if world.rank == 0 else ({}, None)
    return _agreed([world.broadcast(told, 0)], cause)[0]


def by_each(world: World, work: Callable[[], Result]) -> list[Result]:
    """What each rank got from some work, by rank, on all ranks.

    A collective. In a world of one the work is done, and its errors are as they are.

    Args:
        work: gives what JSON has.

    Raises:
        CommonError: some ranks met an InputError or an OSError; the lowest one is named; on all
            ranks, and after all have done their work.

    Cost: W small broadcasts.
    """
    if world.size == 1:
        return [work()]
    told, cause = _outcome(work)
    return _agreed([world.broadcast(told, root) for root in range(world.size)], cause)


def _outcome(work: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
    """What is told to the others, and the error to raise from."""
    try:
        return {"result": work()}, None
    except InputError as error:
        return {"error": str(error)}, error
    except OSError as error:
        return {"error": _line(error)}, error


def _line(error: OSError) -> str:
    if error.filename is None:
        return str(error)
    return f"{error.filename}: {error.strerror}"


def _agreed(told: list[dict[str, Any]], cause: Exception | None) -> list[Any]:
    for rank, outcome in enumerate(told):
        if "error" in outcome:
            raise CommonError(f"rank {rank}: {outcome['error']}") from cause
    return [outcome["result"] for outcome in told]
