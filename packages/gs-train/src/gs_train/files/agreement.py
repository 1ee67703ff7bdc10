# SPDX-License-Identifier: Apache-2.0
"""Work of one rank, or of each, whose outcome all ranks know: the results, or one error for all.

A rank that meets trouble with a file tells the others instead of leaving them to wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from gs_train.errors import CommonError, InputError
from gs_train.world import World
from gs_train.world.protocol import Ints

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


def raise_common(world: World, failed: Sequence[int] | Ints, cause: Exception | None) -> None:
    """Raise the trouble of a rank on all ranks, where a gather has told that there is some.

    A collective where one has failed.

    Args:
        failed: (W,) not 0 of ranks that cannot go on; the same on all ranks.
        cause: why this one cannot.

    Raises:
        CommonError: one of them cannot; the lowest one is named.
    """
    if any(failed):
        rank = next(r for r, has in enumerate(failed) if has)
        text = world.broadcast(None if cause is None else _text(cause), rank)
        raise CommonError(f"rank {rank}: {text}") from cause


def _outcome(work: Callable[[], Any]) -> tuple[dict[str, Any], Exception | None]:
    """What is told to the others, and the error to raise from."""
    try:
        return {"result": work()}, None
    except (InputError, OSError) as error:
        return {"error": _text(error)}, error


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error)


def _agreed(told: list[dict[str, Any]], cause: Exception | None) -> list[Any]:
    for rank, outcome in enumerate(told):
        if "error" in outcome:
            raise CommonError(f"rank {rank}: {outcome['error']}") from cause
    return [outcome["result"] for outcome in told]
