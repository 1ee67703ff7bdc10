# SPDX-License-Identifier: Apache-2.0
"""Work of one rank, or of each, whose outcome all ranks know: the results, or one error for all.

A rank that meets trouble with a file tells the others instead of leaving them to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from gs_train.errors import CommonError, InputError
from gs_train.world import Pending, World
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


def post_by_each(world: World, work: Callable[[], Result]) -> Pending[Result]:
    """This rank's result of some work, which counts once no rank has met trouble.

    A collective, and so is ``wait``, which returns at once where all ranks did their work some time
    ago. In a world of one the work is done, and its errors are as they are.

    Raises:
        CommonError: from ``wait``: some ranks met an InputError or an OSError; the lowest one is
            named; on all ranks.

    Cost: a posted gather; after an error, a broadcast.
    """
    if world.size == 1:
        return _Work(world, work(), None, None)
    result, cause = None, None
    try:
        result = work()
    except (InputError, OSError) as error:
        cause = error
    return _Work(world, result, cause, world.post_gather(int(cause is not None)))


@dataclass(frozen=True)
class _Work(Generic[Result]):
    """A rank's own result, and whether others have theirs."""

    world: World
    result: Result | None
    cause: Exception | None
    failed: Pending[Ints] | None

    def wait(self) -> Result:
        failed = [] if self.failed is None else self.failed.wait().tolist()
        if any(failed):
            rank = failed.index(1)
            text = self.world.broadcast(None if self.cause is None else _text(self.cause), rank)
            raise CommonError(f"rank {rank}: {text}") from self.cause
        return self.result  # type: ignore[return-value]


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
