# SPDX-License-Identifier: Apache-2.0
"""Ranks with a GPU each, over NCCL: what they do together, and the failure of one."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import world_calls as calls
from world_workers import Workers, lines

from gs_train.world.cores import cores_near

pytestmark = [pytest.mark.gpu, pytest.mark.gpu2]

GONE = "its process has ended without a word (the system may have run out of memory)"


@pytest.fixture
def workers() -> Iterator[Workers]:
    with Workers(2, kinds=("cuda", "cuda")) as workers:
        yield workers


def test_ranks_work_together_on_their_own_devices(workers: Workers) -> None:
    assert workers.call(calls.place) == [(0, 2, "cuda:0"), (1, 2, "cuda:1")]
    for total in workers.call(calls.sum_of_ranks):
        np.testing.assert_array_equal(total, [2, 1])
    for told, tensor in workers.call(calls.broadcast, {"n": 1}, 1):
        assert told == {"n": 1}
        assert (tensor == 1).all()
    for gathered in workers.call(calls.gather, [2]):
        np.testing.assert_array_equal(gathered, [[0, 1], [100, 101]])
    for counts in ([[5, 70], [0, 3]], [[0, 9], [0, 0]], [[0, 0], [0, 0]]):
        for rank, received in enumerate(workers.call(calls.exchange, np.array(counts), 13)):
            words = [(r, rank, k) for r in range(2) for k in range(counts[r][rank])]
            np.testing.assert_array_equal(received[:, :3], np.reshape(words, (-1, 3)))
            assert not received[:, 3:].any()


def test_no_rank_uses_the_device_of_another(workers: Workers) -> None:
    workers.call(calls.sum_of_ranks)
    assert workers.call(calls.devices_in_use) == [[0], [1]]


def test_each_rank_has_cores_of_its_own_near_its_device(workers: Workers) -> None:
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("the ranks share a core")
    shares = [set(cores) for cores, _ in workers.call(calls.threads)]
    assert shares[0] | shares[1] == allowed
    assert not shares[0] & shares[1]
    near = [cores_near(torch.device("cuda", rank)) & allowed for rank in range(2)]
    if not near[0] & near[1]:  # each on a memory node of its own, where the system says so
        for share, own in zip(shares, near):
            assert len(share & own) == min(len(share), len(own))


@pytest.mark.parametrize("name", ["all_to_all", "gather"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_is_killed_while_the_other_waits_for_it(
    workers: Workers, rank: int, name: str
) -> None:
    """With NCCL the other waits on its device, and is ended with its process."""
    ends = workers.ends(calls.fail, rank, "killed", name)
    assert ends[rank].exit_status == -signal.SIGKILL
    assert ends[1 - rank].exit_status == 2
    assert _ours(lines(ends)) == [f"gs-train: error: rank {rank}: {GONE}"]


def test_what_one_rank_says_ends_the_other(workers: Workers) -> None:
    ends = workers.ends(calls.fail, 1, "input", "all_to_all")
    assert [end.exit_status for end in ends] == [2, 2]
    assert _ours(lines(ends)) == ["gs-train: error: rank 1: photograph 7.jpg cannot be read"]


def _ours(said: list[str]) -> list[str]:
    """Without what NCCL and torch say of connections that have ended."""
    return [line for line in said if line.startswith("gs-train")]
