# SPDX-License-Identifier: Apache-2.0
"""Ranks of one run have one version of the package and the same options."""

from __future__ import annotations

import importlib.metadata
import threading

import pytest
from threads_as_ranks import ThreadWorld, outcomes, results

from gs_train.runs.all_ranks import agree_on_options


def test_ranks_with_the_same_options_go_on() -> None:
    results(3, lambda world: agree_on_options(world, {"steps": 7, "cap": None}))


def test_an_option_that_differs_on_one_rank_is_named_by_all() -> None:
    found = outcomes(
        4, lambda world: agree_on_options(world, {"cap": 9, "batch_size": 2 + world.rank // 3})
    )
    assert [str(each) for each in found] == ["--batch-size must be the same on all ranks"] * 4


@pytest.mark.parametrize("culprit", [0, 2])
def test_another_version_on_one_rank_is_named_by_all(
    culprit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = threading.local()
    monkeypatch.setattr(importlib.metadata, "version", lambda _: here.version)

    def run(world: ThreadWorld) -> None:
        here.version = "0.2.0" if world.rank == culprit else "0.1.0"
        agree_on_options(world, {"steps": 7})

    (line,) = {str(each) for each in outcomes(3, run)}
    assert line == "the version of gs-train must be the same on all ranks"
