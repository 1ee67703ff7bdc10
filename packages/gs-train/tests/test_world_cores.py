# SPDX-License-Identifier: Apache-2.0
"""Which cores each rank of a host gets."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import given

from gs_train.world.cores import allowed_cores, cores_of_list, share_of_cores

NOWHERE: frozenset[int] = frozenset()


@given(
    st.lists(st.integers(0, 31), unique=True, min_size=1),
    st.lists(st.frozensets(st.integers(0, 31)), min_size=1, max_size=9),
)
def test_every_core_goes_to_one_rank_and_all_get_as_many(
    cores: list[int], near: list[frozenset[int]]
) -> None:
    shares = [share_of_cores(cores, near, rank) for rank in range(len(near))]
    if len(cores) < len(near):
        assert all(share == tuple(cores) for share in shares)
        return
    assert sorted(core for share in shares for core in share) == sorted(cores)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_ranks_get_the_cores_near_their_gpus() -> None:
    low, high = frozenset(range(8)), frozenset(range(8, 16))
    near = [high, low, high, low]
    shares = [set(share_of_cores(range(16), near, rank)) for rank in range(4)]
    assert all(share <= nodes for share, nodes in zip(shares, near))


def test_no_core_is_idle_where_all_gpus_are_near_the_same_ones() -> None:
    near = [frozenset(range(4)), frozenset(range(4))]
    assert share_of_cores(range(8), near, 0) == (0, 1, 2, 3)
    assert share_of_cores(range(8), near, 1) == (4, 5, 6, 7)


def test_siblings_of_one_physical_core_go_to_one_rank() -> None:
    cores = (0, 4, 1, 5, 2, 6, 3, 7)  # as allowed_cores lists them
    assert share_of_cores(cores, [NOWHERE] * 2, 0) == (0, 4, 1, 5)


def test_the_system_names_every_core_once() -> None:
    cores = allowed_cores()
    assert len(set(cores)) == len(cores) >= 1


def test_lists_of_cores_are_read_as_the_kernel_writes_them() -> None:
    assert cores_of_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert cores_of_list("") == NOWHERE
