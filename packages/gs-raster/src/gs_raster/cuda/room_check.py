# SPDX-License-Identifier: Apache-2.0
"""Room for instances that was chosen before their number is known."""

from __future__ import annotations

import torch

from gs_raster.cuda.place import require_cuda
from gs_raster.numbers import whole


class RoomCheck:
    """Whether the instances of a batch's views had room, without a wait for any count.

    The device notes the number of each view, and sets a flag of the batch where a view has more
    instances than room. From that view on :func:`draw_backward` adds nothing.
    So the host need look only after it has enqueued more: where :meth:`first_overflow` names a
    view, the batch is drawn again from that view on, in order, after :meth:`begin`.

    Args:
        n_views: of a batch.
        device: a CUDA device.

    Attributes:
        overflowed: (1,) int32 on the device, 0 while all views had room.
        counts: (n_views,) int64 on the device: instances of each view that it has listed.
        n_instances: (n_views,) int64, page-locked: the same where the host may read; -1 of the
            others.

    Raises:
        CudaError: this build has no CUDA.
        ValueError: ``n_views`` is below 1.
    """

    def __init__(self, n_views: int, device: torch.device | str) -> None:
        require_cuda()
        if whole("n_views", n_views) < 1:
            raise ValueError(f"n_views must be at least 1, got {n_views}")
        self.overflowed = torch.zeros(1, dtype=torch.int32, device=device)
        self.counts = torch.zeros(n_views, dtype=torch.int64, device=device)
        self.n_instances = torch.full(
            (n_views,), -1, dtype=torch.int64, device="cpu", pin_memory=True
        )
        self._on_host = self.n_instances.numpy()
        # Of each view, made once: what the device writes, and where the host reads it.
        each = [slice(k, k + 1) for k in range(n_views)]
        self._copies = [(self.n_instances[k], self.counts[k]) for k in each]
        self._rooms = [0] * n_views
        self._drawn = [torch.cuda.Event() for _ in range(n_views)]

    def begin(self) -> None:
        """Forget the batch before. A view of it that the device has not passed may still be written
        to ``n_instances``; what :meth:`wait_for` says of a view that was drawn since is right."""
        self._on_host[:] = -1
        self.overflowed.zero_()

    def first_overflow(self, n_views: int) -> int | None:
        """The first of ``n_views`` views that had too little room; None if all had enough.

        Waits until they are drawn, not for what was enqueued after.
        """
        return next((k for k in range(n_views) if self.wait_for(k) > self._rooms[k]), None)

    def wait_for(self, index: int) -> int:
        """Instances of a view of which :func:`draw` was called, 0 of one without rows. Waits until
        the view is drawn, not for what was enqueued after."""
        self._drawn[index].synchronize()
        return max(int(self._on_host[index]), 0)

    def note(self, index: int, room: int) -> None:
        """View ``index`` has been enqueued on torch's current stream with this room, and writes
        into ``counts``; :func:`draw` calls it."""
        self._rooms[index] = room
        on_host, on_device = self._copies[index]
        # By torch, whose allocator then keeps page-locked memory until the device has passed.
        on_host.copy_(on_device, non_blocking=True)
        self._drawn[index].record(torch.cuda.current_stream(self.counts.device))
