# SPDX-License-Identifier: Apache-2.0
"""Photographs on the renderer's device, in the order of need, decoded and copied ahead."""

from __future__ import annotations

import collections
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gs_train.data import ImageCache
from gs_train.machine.usable_cores import usable_cores

# Views that the cache plans for: what it evicts is what comes back last, or not at all, among
# these. Told anew when half of them are over, because telling costs a pass over the plan.
_ANNOUNCED = 4096
_STAGED = 3
_AHEAD = 2
"""Images on the device, or on their way, before they are asked for."""

_POLL_S = 0.2


@dataclass
class _Arrived:
    """A view's image on its way to the device: complete once ``copied`` has passed."""

    index: int
    image: Tensor
    copied: torch.cuda.Event


class ImageFeed:
    """The photographs of a known sequence of views, one after the other.

    Decoding and reading run in the cache's threads. For a CUDA device one more thread copies images
    through page-locked memory on a stream of its own, so the training stream only waits for a copy
    that has usually ended.

    Args:
        sequence: view indices in the order of need; consumed ahead.
        load: gives a view's photograph, (H, W, 3 or 4) uint8; called in background threads.
        device: where images are wanted.
        cache_bytes: bound on decoded images held.
        largest_bytes: of one image.
        shown: the view that ``load`` gave for an index, where another stands in for it.

    Threads: use from one thread; :meth:`close` (or leaving the context) ends the background work.
    """

    def __init__(
        self,
        sequence: Iterable[int],
        load: Callable[[int], np.ndarray],
        *,
        device: torch.device,
        cache_bytes: int,
        largest_bytes: int,
        shown: Callable[[int], int] = lambda index: index,
    ) -> None:
        self._device = device
        self._shown = shown
        n_threads = max(2, min(4, usable_cores() // 4))  # that decode, or wait for a disk
        self._cache = ImageCache(load, capacity_bytes=cache_bytes, n_threads=n_threads)
        self._order = _announced(iter(sequence), self._cache)
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None
        self._ended: BaseException | None = None
        self._n_taken = 0  # images whose room the thread has not been given again
        if device.type == "cuda":
            # Two queues without locks of Python's: taking an image holds up the launching thread.
            self._ready: queue.SimpleQueue[_Arrived | BaseException] = queue.SimpleQueue()
            self._room: queue.SimpleQueue[None] = queue.SimpleQueue()
            for _ in range(_AHEAD):
                self._room.put(None)
            self._thread = threading.Thread(
                target=self._copy_ahead, args=(largest_bytes,), name="gs-image-feed", daemon=True
            )
            self._thread.start()

    def __enter__(self) -> ImageFeed:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def next(self, *, refill: bool = True) -> tuple[int, Tensor]:
        """The next view's index and photograph, (H, W, 3 or 4) uint8.

        The image is ready for work on the device's current stream.

        Args:
            refill: begin at once to copy one more image; else `refill` does, or this method where
                no image is ready.

        Raises:
            StopIteration: the sequence is over.
            InputError: the image cannot be read.
        """
        if self._thread is None:
            index = next(self._order)
            image = torch.from_numpy(self._cache.get(index))
            return self._shown(index), image
        if self._ready.empty():
            self.refill()
        arrived = self._ended or self._ready.get()
        if isinstance(arrived, BaseException):
            self._ended = arrived
            raise arrived
        self._n_taken += 1
        if refill:
            self.refill()
        stream = torch.cuda.current_stream(self._device.index)
        stream.wait_event(arrived.copied)
        arrived.image.record_stream(stream)
        return arrived.index, arrived.image

    def refill(self) -> None:
        """Copy as many images as have been taken, in the background.

        The thread that copies needs Python's lock, which a thread that launches kernels gives it
        again and again, and waits for. So a caller that waits for the device calls this before it
        waits: the thread has the lock for itself then.
        """
        while self._n_taken:
            self._n_taken -= 1
            self._room.put(None)

    def close(self) -> None:
        """Stop the threads. Idempotent."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._cache.close()

    def _copy_ahead(self, largest_bytes: int) -> None:
        from gs_pinned import Table

        try:
            stream = torch.cuda.Stream(self._device)
            with Table(_STAGED, largest_bytes, dtype="uint8") as staging, torch.cuda.stream(stream):
                slots = itertools.cycle([_Slot(row) for row in staging.torch()])
                for index in self._order:
                    image = torch.from_numpy(self._cache.get(index))
                    view = self._shown(index)
                    arrived, copied = next(slots).send(image, self._device)
                    if not self._put(_Arrived(view, arrived, copied)):
                        break
                stream.synchronize()  # the staging memory goes with this block
            self._put(StopIteration("the sequence of views is over"))
        except BaseException as error:
            self._put(error)

    def _put(self, item: _Arrived | BaseException) -> bool:
        """Hand over to :meth:`next`; False when the feed is closed meanwhile."""
        while not self._closing.is_set():
            try:
                self._room.get(timeout=_POLL_S)
            except queue.Empty:
                continue
            self._ready.put(item)
            return True
        return False


class _Slot:
    """One page-locked staging buffer, reused once its last copy has passed."""

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory
        self._copied: torch.cuda.Event | None = None

    def send(self, image: Tensor, device: torch.device) -> tuple[Tensor, torch.cuda.Event]:
        if self._copied is not None:
            self._copied.synchronize()
        staged = self._memory[: image.numel()].view(image.shape)
        staged.copy_(image)
        arrived = staged.to(device, non_blocking=True)
        self._copied = torch.cuda.Event()
        self._copied.record()
        return arrived, self._copied


def _announced(sequence: Iterator[int], cache: ImageCache) -> Iterator[int]:
    """The sequence, with the cache told early which images it will be asked for."""
    upcoming = collections.deque(itertools.islice(sequence, _ANNOUNCED))
    for n in itertools.count():
        if not upcoming:
            return
        if n % (_ANNOUNCED // 2) == 0:
            cache.prefetch(tuple(upcoming))
        yield upcoming.popleft()
        upcoming.extend(itertools.islice(sequence, 1))
