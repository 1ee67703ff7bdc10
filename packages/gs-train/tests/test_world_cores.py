# SPDX-License-Identifier: Apache-2.0
"""Which cores each rank of a host gets."""

from __future__ import annotations

import math
import os
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings

from gs_train.world.cores import (
    allowed_cores,
    cores_of_list,
    granted_cores,
    on_cores,
    share_of_cores,
)

NOWHERE: frozenset[int] = frozenset()


@settings(deadline=None)
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


def test_ranks_of_one_neighbourhood_share_it_and_no_core_is_idle() -> None:
    near = [frozenset(range(4)), frozenset(range(4))]
    assert share_of_cores(range(8), near, 0) == (0, 1, 4, 5)
    assert share_of_cores(range(8), near, 1) == (2, 3, 6, 7)


def test_siblings_of_one_physical_core_go_to_one_rank() -> None:
    cores = (0, 4, 1, 5, 2, 6, 3, 7)  # as allowed_cores lists them
    assert share_of_cores(cores, [NOWHERE] * 2, 0) == (0, 4, 1, 5)


def test_the_system_names_every_core_once() -> None:
    cores = allowed_cores()
    assert len(set(cores)) == len(cores) >= 1


def test_lists_of_cores_are_read_as_the_kernel_writes_them() -> None:
    assert cores_of_list("0-3,8,10-11") == {0, 1, 2, 3, 8, 10, 11}
    assert cores_of_list("") == NOWHERE


def _written(root: Path, texts: dict[str, str]) -> Path:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


SECOND = "0::/pod/run\n"
FIRST = "7:cpuset:/\n4:cpu,cpuacct:/box\n0::/\n"
HALF = {"cpu/box/cpu.cfs_quota_us": "50000\n", "cpu/box/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("groups", "limits", "granted"),
    [
        (SECOND, {}, math.inf),
        (SECOND, {"pod/run/cpu.max": "max 100000\n"}, math.inf),
        (SECOND, {"pod/run/cpu.max": "max 100000\n", "pod/cpu.max": "350000 100000\n"}, 3.5),
        (SECOND, {"cpu.max": "400000 100000\n"}, 4.0),  # of a container, which sees its own top
        (FIRST, {f"cpu,cpuacct/{name[4:]}": text for name, text in HALF.items()}, 0.5),
        (FIRST, {"cpu,cpuacct/box/cpu.cfs_quota_us": "-1\n"}, math.inf),
        ("", {"cpu.max": "400000 100000\n"}, math.inf),
    ],
)
def test_a_group_of_processes_may_have_the_time_of_few_cores(
    groups: str, limits: dict[str, str], granted: float, tmp_path: Path
) -> None:
    process = _written(tmp_path / "proc", {"cgroup": groups})
    system = _written(tmp_path / "sys", {f"fs/cgroup/{name}": limits[name] for name in limits})
    assert granted_cores(system, process) == granted


@pytest.mark.parametrize(("most", "n_threads"), [(0.25, 1), (2.0, 2), (math.inf, 3)])
def test_threads_are_no_more_than_the_cores_time(
    most: float, n_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    with on_cores((0, 1, 2), most):
        assert torch.get_num_threads() == n_threads
