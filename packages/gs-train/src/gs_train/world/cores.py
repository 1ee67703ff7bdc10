# SPDX-License-Identifier: Apache-2.0
"""The processor cores of a rank: its share of the host's, the nearest to its GPU first."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import torch

_SYSTEM = Path("/sys")


def allowed_cores() -> tuple[int, ...]:
    """Cores that this process may use, those of one physical core side by side."""
    return tuple(sorted(os.sched_getaffinity(0), key=_physical))


def share_of_cores(
    cores: Sequence[int],
    near: Sequence[frozenset[int]],
    local_rank: int,
    physical: Mapping[int, int] | None = None,
) -> tuple[int, ...]:
    """What one of the ranks of a host gets; every core goes to one rank, and all get as many.

    Ranks whose GPUs are near the same cores get equally many of these: the slowest rank sets the
    pace of all. A physical core is divided among ranks only where the numbers do not come out.

    Args:
        cores: that the ranks share, those of one physical core side by side.
        near: of each rank of the host, the cores near its GPU; empty where that is not known.
        local_rank: of the ranks, the one in question.
        physical: the physical core of each core; None: each core is one.

    Returns:
        Its cores; all of them where there are fewer cores than ranks.

    >>> share_of_cores(range(8), [frozenset({4, 5, 6, 7}), frozenset()], 0)
    (4, 5, 6, 7)
    """
    n_ranks = len(near)
    if len(cores) < n_ranks:
        return tuple(cores)
    counts = [len(cores) // n_ranks + (r < len(cores) % n_ranks) for r in range(n_ranks)]
    deal = _Deal(cores, counts, {core: core for core in cores} if physical is None else physical)
    neighbourhoods = {nodes: None for nodes in near if nodes}  # in the order of ranks
    for is_even, is_whole in ((True, True), (True, False), (False, False)):
        for nodes in neighbourhoods:
            ranks = [r for r in range(n_ranks) if near[r] == nodes]
            deal.among(ranks, nodes, is_even=is_even, is_whole=is_whole)
    for is_whole in (True, False):
        deal.among(range(n_ranks), frozenset(cores), is_even=False, is_whole=is_whole)
    return tuple(deal.shares[local_rank])


class _Deal:
    """Cores that are dealt to ranks, until each has as many as it is to have."""

    def __init__(
        self, cores: Sequence[int], counts: Sequence[int], physical: Mapping[int, int]
    ) -> None:
        self.shares: list[list[int]] = [[] for _ in counts]
        self._free = list(cores)
        self._counts = counts
        self._physical = physical

    def among(
        self, ranks: Iterable[int], nodes: frozenset[int], *, is_even: bool, is_whole: bool
    ) -> None:
        """Deal free cores of a neighbourhood.

        Args:
            is_even: each rank takes at most its part of the neighbourhood; else all that it needs.
            is_whole: physical cores stay whole.
        """
        ranks = [r for r in ranks if len(self.shares[r]) < self._counts[r]]
        for n_left, rank in zip(range(len(ranks), 0, -1), ranks):
            there = [core for core in self._free if core in nodes]
            most = self._counts[rank] - len(self.shares[rank])
            if is_even:
                most = min(most, len(there) // n_left)
            taken = self._whole(there, most) if is_whole else there[:most]
            self.shares[rank] += taken
            self._free = [core for core in self._free if core not in taken]

    def _whole(self, there: Sequence[int], most: int) -> list[int]:
        """At most so many cores, of physical cores that are free in the neighbourhood as far as
        they are free at all."""
        free = Counter(self._physical[core] for core in self._free)
        taken: list[int] = []
        for physical, group in itertools.groupby(there, self._physical.__getitem__):
            siblings = list(group)
            if len(siblings) == free[physical] and len(taken) + len(siblings) <= most:
                taken += siblings
        return taken


def physical_cores(cores: Sequence[int], system: Path = _SYSTEM) -> dict[int, int]:
    """The physical core of each core, by the lowest of its siblings; itself where the system does
    not say."""
    return {core: _physical(core, system)[0] for core in cores}


def cores_near(device: torch.device) -> frozenset[int]:
    """Cores of the memory node that a GPU is attached to; empty where the system does not say."""
    if device.type != "cuda":
        return frozenset()
    properties = torch.cuda.get_device_properties(device)
    fields = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if None in fields:  # torch before 2.9
        return frozenset()
    domain, bus, slot = fields
    return cores_near_slot(f"{domain:04x}:{bus:02x}:{slot:02x}.0")


def cores_near_slot(address: str, system: Path = _SYSTEM) -> frozenset[int]:
    """Cores of the memory node of a PCI device; empty where the system does not say.

    Args:
        address: such as ``0000:17:00.0``.
        system: where the kernel tells about itself.
    """
    node = _read(system / f"bus/pci/devices/{address}/numa_node")
    if not node.isdecimal():  # -1: the host has one node
        return frozenset()
    return cores_of_list(_read(system / f"devices/system/node/node{node}/cpulist"))


def cores_of_list(text: str) -> frozenset[int]:
    """Numbers as the kernel lists them.

    >>> sorted(cores_of_list("0-2,8"))
    [0, 1, 2, 8]
    """
    cores: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cores.update(range(int(first), int(last or first) + 1))
    return frozenset(cores)


def granted_cores(system: Path = _SYSTEM, process: Path = Path("/proc/self")) -> float:
    """How many cores' time the control groups of this process grant; infinite where they do not
    limit the time.

    A container may see all cores of its host and have the time of few: threads beyond these only
    wait for each other.

    Args:
        system, process: where the kernel tells about itself and about this process.
    """
    granted, top = math.inf, system / "fs/cgroup"
    for line in _read(process / "cgroup").splitlines():
        _, controllers, place = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        inner = top / controllers / place.lstrip("/")  # the second version has no controllers
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(top):  # a container may see a part of them, or none
                granted = min(granted, _quota(folder))
    return granted


@contextlib.contextmanager
def on_cores(cores: Sequence[int], most_threads: float = math.inf) -> Iterator[None]:
    """While entered, this thread and what it starts run on these cores, torch on as many threads.

    ``OMP_NUM_THREADS`` decides the threads where it is set, but not the 1 that torchrun sets where
    it was not.

    Args:
        most_threads: of torch; at least one.
    """
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    os.sched_setaffinity(0, cores)
    chosen = os.environ.get("OMP_NUM_THREADS")
    if chosen is None or (chosen == "1" and "TORCHELASTIC_RUN_ID" in os.environ):
        torch.set_num_threads(max(1, int(min(len(cores), most_threads))))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        torch.set_num_threads(threads)


def _physical(core: int, system: Path = _SYSTEM) -> tuple[int, int]:
    siblings = _read(system / f"devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    return min(cores_of_list(siblings), default=core), core


def _quota(group: Path) -> float:
    """Cores' time of a control group, of the second version or of the first."""
    words = _read(group / "cpu.max").split()
    if not words:
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        words = " ".join(_read(group / name) for name in names).split()
    if len(words) == 2 and all(word.isdecimal() for word in words):  # else max, or -1
        quota, period = map(int, words)
        if quota and period:
            return quota / period
    return math.inf


def _read(path: Path) -> str:
    """A file of the kernel; nothing where there is none."""
    with contextlib.suppress(OSError):
        return path.read_text().strip()
    return ""
