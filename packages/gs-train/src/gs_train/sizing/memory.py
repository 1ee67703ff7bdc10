# SPDX-License-Identifier: Apache-2.0
"""Memory: the rows that there is room for, the bytes that a run needs, and those it may take."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from gs_pinned import available_bytes
from gs_train.engine.buffers import HEADROOM
from gs_train.options.config import FitConfig
from gs_train.options.limits import Limits

MOST_ROWS = 2**31 - 2
"""Of any model: ids are 32-bit numbers."""

PROCESS_BYTES = 512 << 20
"""Of host memory that the process takes for itself before there is a scene: Python, torch, compiled
kernels. Measured: 515 MiB on a CPU."""

_KEPT_FREE = 0.1
_GAPS_OF_CUDA = 1.06  # measured: 1.045 at 34M and at 100M Gaussians, on several streams


@dataclass(frozen=True)
class Room(Limits):
    """Limits that are all numbers: the rows that working memory is dimensioned for.

    Attributes:
        rows: of the largest microbatch.
        slots: on the device at once in a batch that the host updates.
        residents: on the device with their moments; 0 where the host updates every batch.
    """

    rows: int
    slots: int = 0
    residents: int = 0

    @classmethod
    def of_residents(cls, rows: int, residents: int) -> Room:
        """A batch that sees more rows than these is updated by the host, in the same memory."""
        return cls(rows, int(residents * 3 / (2 * HEADROOM)), residents)


@dataclass(frozen=True)
class Need:
    """Bytes by part in each tier, in the order in which they are taken."""

    device: dict[str, int] = field(default_factory=dict)
    pinned: dict[str, int] = field(default_factory=dict)
    pageable: dict[str, int] = field(default_factory=dict)

    @property
    def device_bytes(self) -> int:
        return sum(self.device.values())

    @property
    def pinned_bytes(self) -> int:
        return sum(self.pinned.values())

    @property
    def host_bytes(self) -> int:
        """Page-locked and pageable."""
        return self.pinned_bytes + sum(self.pageable.values())


@dataclass(frozen=True)
class Caps:
    """Bytes that a run may take.

    Attributes:
        device: of the renderer's device.
        host: page-locked and pageable together.
        shared: the device is the host: both together must fit into ``host`` as well.
        is_given: the options give ``device``: a run may take all of it.
        host_limit: what the options give for ``host``, for rows to come as well; None: nothing.
        process: bytes of ``host`` that are the process's own; 0 where ``host`` is what is free
            beside it.
        gaps: bytes that are taken of the device for each byte of tensors.
    """

    device: int
    host: int
    shared: bool = False
    is_given: bool = False
    host_limit: int | None = None
    process: int = 0
    gaps: float = 1.0

    def hold(self, need: Need) -> bool:
        """Whether all of it fits."""
        return self.taken(need.device_bytes) <= self.device and self.hold_on_host(need)

    def hold_on_host(self, need: Need) -> bool:
        """Whether what is in host memory fits."""
        return self.taken_of_host(need) <= self.host

    def taken_of_host(self, need: Need) -> int:
        """What all of it takes of ``host``, the process included."""
        return self.process + need.host_bytes + (need.device_bytes if self.shared else 0)

    def share(self, n_ranks: int) -> Caps:
        """Of a rank, each of which has a device of its own unless the device is the host."""
        return replace(
            self,
            device=self.device // n_ranks if self.shared else self.device,
            host=self.host // n_ranks,
            host_limit=None if self.host_limit is None else self.host_limit // n_ranks,
        )

    def taken(self, device_bytes: int) -> int:
        """What tensors of so many bytes take of the device, gaps between them included."""
        return math.ceil(self.gaps * device_bytes)


def caps_of(config: FitConfig, device: torch.device, *, is_here: bool = True) -> Caps:
    """The caps that the options give; by default all free device memory, and all available host
    memory less a tenth.

    Args:
        device: where rendering happens.
        is_here: for a run on this machine, which cannot take more of the host than is available,
            whatever its options allow; else for one on a machine that has what they say.
    """
    available = available_bytes()
    host = host_limit = config.bytes_of("host_memory")
    if host is None:
        host = int(available * (1 - _KEPT_FREE))
    elif is_here:
        host = min(host, available + PROCESS_BYTES)
    given = on_device = config.bytes_of("device_memory")
    is_gpu = device.type == "cuda"
    if on_device is None:
        on_device = free_on(device) if is_gpu else host
    return Caps(
        on_device,
        host,
        shared=not is_gpu,
        is_given=given is not None,
        host_limit=host_limit,
        process=0 if host_limit is None else PROCESS_BYTES,
        gaps=_GAPS_OF_CUDA if is_gpu else 1.0,
    )


def free_on(device: torch.device) -> int:
    """Bytes that tensors can have on a GPU: what torch holds and does not use is free for them, and
    a cap on what torch takes may leave less than there is."""
    # Asking for the cap takes no device without an index.
    index = torch.cuda.current_device() if device.index is None else device.index
    free, total = torch.cuda.mem_get_info(index)
    reserved = torch.cuda.memory_reserved(index)
    left = int(torch.cuda.get_per_process_memory_fraction(index) * total) - reserved
    return max(0, min(free, left)) + reserved - torch.cuda.memory_allocated(index)


def largest(low: int, high: int, holds: Callable[[int], bool]) -> int:
    """The largest whole number in [low, high] that ``holds``, where ``low`` does and no number
    holds above one that does not."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def at_most(n: int, limit: int | None) -> int:
    """``n``, or the limit where there is one and it is less."""
    return n if limit is None else min(n, limit)
