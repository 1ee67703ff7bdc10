# SPDX-License-Identifier: Apache-2.0
"""Threads as ranks find out at once that they wait for what never comes."""

from __future__ import annotations

import pytest
import torch
from threads_as_ranks import HangError, OthersFailedError, ThreadWorld, outcomes, results


def test_a_gather_that_one_rank_leaves_out_is_an_error() -> None:
    def run(world: ThreadWorld) -> None:
        world.gather([1])
        if world.rank != 2:
            world.gather([2])

    with pytest.raises(HangError, match=r"for ever, for call 1, call 1, and 1 have ended"):
        results(3, run)


def test_ranks_in_different_calls_are_an_error() -> None:
    def run(world: ThreadWorld) -> None:
        if world.rank == 0:
            world.barrier()
        else:
            world.sum(torch.ones(1))

    with pytest.raises(HangError, match="for ever, for call 0, exchange 0"):
        results(2, run)


def test_the_error_of_one_rank_reaches_the_others() -> None:
    def run(world: ThreadWorld) -> None:
        if world.rank == 1:
            raise ZeroDivisionError
        world.barrier()

    assert [type(each) for each in outcomes(2, run)] == [OthersFailedError, ZeroDivisionError]
    with pytest.raises(ZeroDivisionError):
        results(2, run)
