# SPDX-License-Identifier: Apache-2.0
"""Lists of blocks that were made a step before."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from street import street_views

from gs_train.blocks.block_lists import BlockLists
from gs_train.blocks.box_kernels import are_among
from gs_train.blocks.boxes import BlockBoxes
from gs_train.blocks.sleep_reach import SleepReach
from gs_train.machine.side_thread import SideThread
from gs_train.renderers import RenderOptions, make_renderer

SOME = st.sets(st.integers(0, 20))


@settings(deadline=None)
@given(SOME, SOME)
def test_sorted_numbers_are_found_among_others(blocks: set[int], others: set[int]) -> None:
    found = are_among(*(np.array(sorted(one), np.int64) for one in (blocks, others)))
    assert found == (blocks <= others)


@pytest.fixture
def listing(monkeypatch: pytest.MonkeyPatch) -> tuple[BlockLists, list[str], threading.Event]:
    """Lists of a few empty blocks, the names of the threads that looked at their boxes, and what
    each look waits for."""
    threads: list[str] = []
    may_look = threading.Event()
    found = BlockBoxes.candidates

    def candidates(*args: object, **options: object) -> object:
        may_look.wait()
        threads.append(threading.current_thread().name)
        return found(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(BlockBoxes, "candidates", candidates)
    reaches = {name: SleepReach((0.9, 0.999), 1e-15, 0.01) for name in ("means", "scales")}
    side = SideThread(torch.device("cpu"), has_thread=True)
    return BlockLists(BlockBoxes(5), reaches, side), threads, may_look


def test_the_list_of_the_batch_after_is_made_beside_and_once(
    listing: tuple[BlockLists, list[str], threading.Event],
) -> None:
    lists, threads, may_look = listing
    views, renderer = street_views(), make_renderer("cpu", RenderOptions())
    here, changed = threading.current_thread().name, np.arange(2)
    may_look.set()
    first = lists.expect(views[:2], renderer, changed, None, views[2:4])
    lists.of(views[8:], renderer, changed)  # a look between two batches
    assert threads == [here, here]
    may_look.clear()
    assert lists.of(views[:2], renderer, changed) is first  # and waits for nothing
    may_look.set()
    second = lists.expect(views[2:4], renderer, changed, None)
    assert lists.of(views[2:4], renderer, changed) is second
    assert len(threads) == 3
    assert threads[2] != here


def test_an_error_of_a_list_that_nobody_waited_for_is_raised_once(
    listing: tuple[BlockLists, list[str], threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    lists, _, may_look = listing
    may_look.set()
    views, renderer = street_views(), make_renderer("cpu", RenderOptions())
    lists.expect(views[:2], renderer, None, None, views[2:4])

    def fail(*given: object, **options: object) -> None:
        raise RuntimeError("the device failed")

    monkeypatch.setattr(BlockBoxes, "candidates", fail)
    lists.of(views[:2], renderer, np.arange(2))
    with pytest.raises(RuntimeError, match="the device failed"):
        lists.end()
    lists.end()
