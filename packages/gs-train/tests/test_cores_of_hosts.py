# SPDX-License-Identifier: Apache-2.0
"""Which cores ranks get on hosts of many kinds, which trees like the kernel's describe."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

from gs_train.machine.usable_cores import usable_cores
from gs_train.world.cores import cores_near_slot, on_cores, physical_cores, share_of_cores


class Host(NamedTuple):
    """A host of sockets with equally many physical cores, of two cores each: core c and core
    c + half are siblings.

    Attributes:
        gpus: the socket of each GPU.
        says_nodes: whether the kernel says where GPUs are; containers may hide it.
    """

    n_sockets: int
    n_physical: int
    gpus: tuple[int, ...]
    says_nodes: bool = True

    @property
    def cores(self) -> range:
        """All cores."""
        return range(2 * self.n_physical)

    def socket(self, core: int) -> int:
        """Of a core."""
        return core % self.n_physical * self.n_sockets // self.n_physical

    def write(self, system: Path) -> None:
        """The kernel's files about it."""
        for core in self.cores:
            low = core % self.n_physical
            _write(
                system / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list",
                f"{low},{low + self.n_physical}",
            )
        for socket in range(self.n_sockets):
            own = [str(core) for core in self.cores if self.socket(core) == socket]
            _write(system / f"devices/system/node/node{socket}/cpulist", ",".join(own))
        if self.says_nodes:
            for gpu, socket in enumerate(self.gpus):
                node = socket if self.n_sockets > 1 else -1
                _write(system / f"bus/pci/devices/{_address(gpu)}/numa_node", str(node))

    def shares(self, system: Path, allowed: Sequence[int] | None = None) -> list[tuple[int, ...]]:
        """Of each rank; of those cores that a control group allows."""
        self.write(system)
        physical = physical_cores(self.cores if allowed is None else allowed, system)
        cores = sorted(physical, key=lambda core: (physical[core], core))
        near = [cores_near_slot(_address(gpu), system) for gpu in range(len(self.gpus))]
        return [share_of_cores(cores, near, rank, physical) for rank in range(len(near))]

    def near(self, shares: Sequence[Sequence[int]]) -> list[int]:
        """How many cores of each rank are at the socket of its GPU."""
        return [
            sum(self.socket(core) == socket for core in share)
            for share, socket in zip(shares, self.gpus)
        ]


def _address(gpu: int) -> str:
    return f"0000:{16 * gpu + 7:02x}:00.0"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text + "\n")


def _assert_fair(shares: Sequence[Sequence[int]], cores: Sequence[int]) -> None:
    assert sorted(core for share in shares for core in share) == sorted(cores)
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def _n_divided(host: Host, shares: Sequence[Sequence[int]]) -> int:
    """Physical cores that more than one rank uses."""
    users = [{core % host.n_physical for core in share} for share in shares]
    return sum(
        sum(core in used for used in users) > 1 for core in {core for one in users for core in one}
    )


@pytest.mark.parametrize("says_nodes", [True, False])
@pytest.mark.parametrize("n_sockets", [1, 2])
@pytest.mark.parametrize("n_gpus", [1, 2, 4, 8])
def test_ranks_get_as_many_whole_cores_near_their_gpus(
    n_gpus: int, n_sockets: int, says_nodes: bool, tmp_path: Path
) -> None:
    gpus = tuple(gpu * n_sockets // n_gpus for gpu in range(n_gpus))
    host = Host(n_sockets, 16, gpus, says_nodes)
    shares = host.shares(tmp_path)
    _assert_fair(shares, host.cores)
    assert _n_divided(host, shares) == 0
    if n_gpus >= n_sockets:  # in the order of sockets, which is that of cores
        assert host.near(shares) == [len(share) for share in shares]


@pytest.mark.parametrize(
    ("gpus", "near"),
    [
        ((0, 0, 0, 1), [4, 6, 6, 8]),
        ((1, 1), [8, 8]),
        ((0, 1, 1, 1), [8, 4, 6, 6]),
        ((1, 0, 1, 0, 1, 0, 1, 0), [4] * 8),
    ],
)
def test_gpus_that_crowd_at_one_socket_share_its_cores(
    gpus: tuple[int, ...], near: list[int], tmp_path: Path
) -> None:
    host = Host(2, 16, gpus)
    shares = host.shares(tmp_path)
    _assert_fair(shares, host.cores)
    assert _n_divided(host, shares) == 0
    assert host.near(shares) == near


@pytest.mark.parametrize(
    ("allowed", "near"),
    [
        ([*range(4), *range(8, 12), *range(16, 20), *range(24, 28)], [4, 4, 4, 4]),  # half of each
        ([*range(8), *range(16, 24)], [4, 4, 0, 0]),  # one socket only
        ([*range(8), *range(8, 10)], [3, 3, 1, 1]),  # without siblings, little of the second
        ([5], [1, 1, 0, 0]),  # all ranks have the only core
    ],
)
def test_a_control_group_may_cut_a_neighbourhood(
    allowed: list[int], near: list[int], tmp_path: Path
) -> None:
    host = Host(2, 16, (0, 0, 1, 1))
    shares = host.shares(tmp_path, allowed)
    assert host.near(shares) == near
    if len(allowed) >= len(shares):
        _assert_fair(shares, allowed)
        assert _n_divided(host, shares) == 0


def test_a_physical_core_is_divided_only_where_numbers_do_not_come_out(tmp_path: Path) -> None:
    host = Host(1, 6, (0, 0, 0, 0))  # three cores each
    shares = host.shares(tmp_path)
    _assert_fair(shares, host.cores)
    assert _n_divided(host, shares) == 2


def test_threads_of_a_rank_stay_on_its_cores() -> None:
    core = min(os.sched_getaffinity(0))
    with on_cores([core]), ThreadPoolExecutor(usable_cores()) as pool:
        assert usable_cores() == 1
        assert pool.submit(os.sched_getaffinity, 0).result() == {core}
    assert core in os.sched_getaffinity(0)
