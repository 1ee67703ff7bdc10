# SPDX-License-Identifier: Apache-2.0
"""What one rank or each does is known to all, errors included."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from threads_as_ranks import ThreadWorld, outcomes, results

from gs_train.errors import CommonError, InputError
from gs_train.files.agreement import by_each, by_first, raise_common


def test_all_have_what_rank_0_got() -> None:
    done = []

    def run(world: ThreadWorld) -> Any:
        return by_first(world, lambda: done.append(world.rank) or {"path": [1, "a"]})

    assert results(3, run) == [{"path": [1, "a"]}] * 3
    assert done == [0]


def test_all_have_what_each_got() -> None:
    assert results(3, lambda world: by_each(world, lambda: 10 * world.rank)) == [[0, 10, 20]] * 3


@pytest.mark.parametrize("culprit", [0, 1, 2])
@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("the disk is full"), "the disk is full"),
        (OSError(errno.EIO, "Input/output error", "/a/b"), "/a/b: Input/output error"),
        (OSError("no number"), "no number"),
    ],
)
def test_all_raise_the_error_of_one(culprit: int, error: Exception, text: str) -> None:
    went_on = []

    def run(world: ThreadWorld) -> Any:
        def work() -> int:
            went_on.append(world.rank)
            if world.rank == culprit:
                raise error
            return 0

        return (by_each if culprit else by_first)(world, work)

    found = outcomes(3, run)
    assert {type(each) for each in found} == {CommonError}
    assert {str(each) for each in found} == {f"rank {culprit}: {text}"}
    assert found[culprit].__cause__ is error  # type: ignore[union-attr]
    assert sorted(went_on) == ([0, 1, 2] if culprit else [0])


def test_of_two_errors_the_lowest_rank_is_named() -> None:
    def work(rank: int) -> int:
        if rank:
            raise InputError(f"trouble {rank}")
        return 0

    found = outcomes(3, lambda world: by_each(world, lambda: work(world.rank)))
    assert {str(each) for each in found} == {"rank 1: trouble 1"}


def test_a_mistake_of_the_program_stays_what_it_is() -> None:
    def run(world: ThreadWorld) -> Any:
        return by_each(world, lambda: 1 // world.rank)

    found = outcomes(2, run)
    assert isinstance(found[0], ZeroDivisionError)
    assert str(found[1]) == "another rank has failed"


@pytest.mark.parametrize("culprits", [set(), {0}, {2}, {1, 2}])
def test_trouble_that_a_gather_has_told_is_raised_by_all(culprits: set[int]) -> None:
    def run(world: ThreadWorld) -> None:
        error = OSError(errno.EIO, "Input/output error", f"/photographs/{world.rank}")
        own = error if world.rank in culprits else None
        raise_common(world, world.gather(own is not None), own)

    if not culprits:
        assert results(3, run) == [None] * 3
        return
    first = min(culprits)
    line = f"rank {first}: /photographs/{first}: Input/output error"
    found = outcomes(3, run)
    assert {(type(each), str(each)) for each in found} == {(CommonError, line)}
