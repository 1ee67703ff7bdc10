# SPDX-License-Identifier: Apache-2.0
"""Room for instances that was chosen before their number is known."""

from __future__ import annotations

import contextlib
import weakref

import torch

from gs_raster.cuda.addresses import address
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
        n_views: of a batch.
        overflowed: (1,) int32 on the device, 0 while all views had room.
        n_instances: (n_views,) int64, page-locked: instances of each view, which the device writes
            when it has counted them; -1 of the others.

    Raises:
        CudaError: this build has no CUDA.
        ValueError: ``n_views`` is below 1.
    """

    def __init__(self, n_views: int, device: torch.device | str) -> None:
        require_cuda()
        self.n_views = whole("n_views", n_views)
        if self.n_views < 1:
            raise ValueError(f"n_views must be at least 1, got {n_views}")
        self.overflowed = torch.zeros(1, dtype=torch.int32, device=device)
        self.n_instances = torch.full(
            (n_views,), -1, dtype=torch.int64, device="cpu", pin_memory=True
        )
        self._on_host = self.n_instances.numpy()
        self._address = self.n_instances.data_ptr()
        self._flag = self.overflowed.device, self.overflowed.data_ptr()
        self._rooms = [0] * n_views
        self._drawn = [torch.cuda.Event() for _ in range(n_views)]
        for event in self._drawn:  # which makes it
            event.record(torch.cuda.current_stream(self._flag[0]))
        self._handles = [event.cuda_event for event in self._drawn]
        # Views that may have had too little room: those that the host has not looked at; and
        # whether another one may have.
        self._open: set[int] = set()
        self._may_be_set = False
        # Torch would give the memory to others while the device may still write there.
        weakref.finalize(self, _wait, self._drawn).atexit = False

    def begin(self) -> None:
        """Forget the batch before. A view of it that the device has not passed may still be written
        to ``n_instances``; what :meth:`wait_for` says of a view that was drawn since is right."""
        self._on_host[:] = -1
        if self._open or self._may_be_set:
            self.go_on()

    def go_on(self) -> None:
        """From here on gradients are added again, as if all views before had had room. Enqueued on
        torch's current stream."""
        self.overflowed.zero_()
        self._open.clear()
        self._may_be_set = False

    def first_overflow(self, n_views: int) -> int | None:
        """The first of ``n_views`` views that had too little room; None if all had enough.

        Waits until they are drawn, not for what was enqueued after.
        """
        return next((k for k in range(n_views) if self.wait_for(k) > self._rooms[k]), None)

    def wait_for(self, index: int) -> int:
        """Instances of a view of which :func:`draw` was called, 0 of one without rows. Waits until
        the view is drawn, not for what was enqueued after."""
        self._drawn[index].synchronize()
        count = max(int(self._on_host[index]), 0)
        if index in self._open:
            self._open.discard(index)
            self._may_be_set |= count > self._rooms[index]
        return count

    def flag(self, name: str, device: torch.device) -> int:
        """Address of ``overflowed``; ``name`` is for errors.

        Raises:
            ValueError: it is on another device.
        """
        if self._flag[0] == device:
            return self._flag[1]
        return address(name, self.overflowed, (1,), torch.int32, device)

    def places_of(self, index: int, device: torch.device) -> tuple[int, int, int]:
        """Where the device sets the flag of the batch, where it writes the instances of a view, and
        the handle of the event that is recorded behind the view.

        Raises:
            ValueError: the check is on another device, or the index is out of range.
        """
        flag = self.flag("check_room.overflowed", device)
        if not 0 <= whole("index", index) < self.n_views:
            raise ValueError(f"index must be from 0 to {self.n_views - 1}, got {index}")
        return flag, self._address + 8 * index, self._handles[index]

    def note(self, index: int, room: int) -> None:
        """View ``index`` has been enqueued with this room, and its event behind it; :func:`draw`
        calls it."""
        self._may_be_set |= index in self._open
        self._open.add(index)
        self._rooms[index] = room


def _wait(drawn: list[torch.cuda.Event]) -> None:
    """Wait for views that are on their way."""
    with contextlib.suppress(RuntimeError):  # of a device that has failed, which others tell
        for event in drawn:
            event.synchronize()
